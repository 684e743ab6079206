"""Every value is documented and has its place in the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from hami_node.config.settings import declarations
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.chart_values import CHART, documented

VALUES: Final[dict[str, Any]] = yaml.safe_load(CHART.joinpath("values.yaml").read_text())
SCHEMA: Final[dict[str, Any]] = json.loads(CHART.joinpath("values.schema.json").read_text())


@pytest.mark.parametrize("value", documented(), ids=lambda value: value.path)
def test_value_has_a_sentence(value: Any) -> None:
    assert value.text is not None
    assert value.text.endswith(".")
    assert len(value.text) > 5


def leaves(
    values: dict[str, Any], schema: dict[str, Any], above: str
) -> Iterator[tuple[str, bool]]:
    """(path, whether the schema knows it); what the schema takes as a whole is one leaf."""
    known = schema.get("properties", {})
    for key in sorted({*values, *known}):
        path = f"{above}{key}"
        if key not in known or key not in values:
            yield path, False
        elif "properties" in known[key] and isinstance(values[key], dict):
            yield from leaves(values[key], known[key], f"{path}.")
        else:
            yield path, True


def free_form() -> set[str]:
    """Values whose schema has parts that values.yaml does not have to have."""
    return {"devicePlugin.updateStrategy.rollingUpdate"}


def test_schema_has_every_value_and_no_other() -> None:
    strange = {path for path, is_known in leaves(VALUES, SCHEMA, "") if not is_known}
    assert strange - free_form() == set()


def objects_of(schema: dict[str, Any], above: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield above, schema
        for key, inner in schema["properties"].items():
            yield from objects_of(inner, f"{above}.{key}" if above else key)


def test_schema_takes_no_misspelt_value_anywhere_but_in_global() -> None:
    """A parent chart hands its other charts' `global` values to this one as well."""
    is_open = {
        path for path, one in objects_of(SCHEMA, "") if one["additionalProperties"] is not False
    }
    assert is_open == {"global"}


def image_of(values: dict[str, Any], tag: str) -> str:
    name = "/".join(filter(None, (values["registry"], values["repository"])))
    return f"{name}:{values['tag'] or tag}"


def test_images_lists_every_image() -> None:
    chart = yaml.safe_load(CHART.joinpath("Chart.yaml").read_text())
    lines = CHART.joinpath("images.txt").read_text().splitlines()
    listed = [line for line in lines if not line.startswith("#")]
    assert listed == [
        image_of(VALUES["image"], chart["appVersion"]),
        image_of(VALUES["scheduler"]["kubeScheduler"]["image"], "v1.34.0"),
        image_of(VALUES["limiter"]["image"], ""),
    ]
    shown = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert [one["image"] for one in shown] == listed


PAGE: Final = CHART.parents[1] / "docs" / "install.md"


def named_values() -> set[str]:
    """Values that docs/install.md names as ours: in the table of HAMi's, only the second column."""
    text = re.sub(r"^\| `[^|]*\|(?=[^|]*\|$)", "", PAGE.read_text(), flags=re.MULTILINE)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    words = [word.partition("=")[0].rstrip(":,") for span in spans for word in span.split()]
    return {word for word in words if "." in word and word.partition(".")[0] in VALUES}


@pytest.mark.parametrize("name", sorted(named_values()))
def test_page_names_values_that_exist(name: str) -> None:
    if name.startswith("config.settings."):
        known = {one.name.replace("_", "-") for one in declarations(SETTINGS_BLOCKS).values()}
        assert name.removeprefix("config.settings.") in known
    else:
        paths = [f"{value.path}." for value in documented()]
        assert any(path.startswith(f"{name}.") for path in paths)
