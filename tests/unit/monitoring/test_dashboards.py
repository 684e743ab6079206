"""Dashboards are what Grafana takes, for any data source."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from tests.monitoring.files import DASHBOARDS, dashboards, panels, variables
from tests.monitoring.panels import SOURCE, WIDTH
from tests.monitoring.write import pages

BOARDS = dashboards()


def test_files_are_as_they_are_made() -> None:
    for path, text in pages().items():
        assert path.read_text() == text, f"{path.name}: python -m tests.monitoring.write"
    made = {path for path in pages() if path.parent == DASHBOARDS}
    assert set(DASHBOARDS.glob("*.json")) == made


def test_addresses_and_titles_are_unique() -> None:
    for key in ("uid", "title"):
        values = [board[key] for board in BOARDS.values()]
        assert len(set(values)) == len(values)
    assert all(len(board["uid"]) <= 40 for board in BOARDS.values())
    assert all("id" not in board for board in BOARDS.values())


@pytest.mark.parametrize("name", BOARDS)
def test_panels_have_numbers_places_and_words_of_their_own(name: str) -> None:
    found = list(panels(BOARDS[name]))
    numbers = [panel["id"] for panel in found]
    assert len(set(numbers)) == len(numbers)
    titles = [(panel["type"], panel["title"]) for panel in found]
    assert len(set(titles)) == len(titles)
    for panel in found:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert panel["targets"], panel["title"]
    for one, other in combinations(found, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


@pytest.mark.parametrize("name", BOARDS)
def test_the_reader_chooses_the_data_source(name: str) -> None:
    board = BOARDS[name]
    (source,) = (each for each in variables(board) if each["type"] == "datasource")
    assert (source["name"], source["query"]) == ("datasource", "prometheus")
    assert sources_in(board) == [SOURCE] * len(sources_in(board)) != []


def sources_in(part: Any) -> list[Any]:
    """Every data source that is named anywhere."""
    if isinstance(part, list):
        return [found for each in part for found in sources_in(each)]
    if not isinstance(part, dict):
        return []
    own = [part["datasource"]] if "datasource" in part else []
    return own + [found for each in part.values() for found in sources_in(each)]


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_that_is_used_is_declared_and_every_declared_one_used(name: str) -> None:
    board = BOARDS[name]
    text = json.dumps([board["panels"], [each.get("query") for each in variables(board)]])
    used = {each for each in re.findall(r"\$\{?(\w+)", text) if not each.startswith("__")}
    assert used == {each["name"] for each in variables(board)}


@pytest.mark.parametrize("name", BOARDS)
def test_legends_name_labels_that_the_query_keeps(name: str) -> None:
    for panel in panels(BOARDS[name]):
        for target in panel.get("targets", ()):
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(re.findall(r"\w+", target["expr"])) | {"pod", "instance"}
            records = "hami_node:" in target["expr"]
            assert labels <= kept or records, (panel["title"], labels - kept)
