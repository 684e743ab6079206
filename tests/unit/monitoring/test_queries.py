"""What dashboards and rules ask for exists, by name and by label."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.monitoring.files import dashboards, queries, rules, variable_queries
from tests.monitoring.known import TARGET_LABELS, known_series
from tests.monitoring.promql import BadQueryError, groupings, selectors

RECORDS = {rule.name: rule for rule in rules() if not rule.is_alert}
ALERTS = {"ALERTS": frozenset({"alertname", "alertstate", "severity", "node"})}


def asked() -> Iterator[tuple[str, str]]:
    """(where, query) of everything."""
    for rule in rules():
        yield rule.name, rule.expr
    for name, board in dashboards().items():
        for title, query in queries(board):
            yield f"{name}: {title}", query
        for variable, series in variable_queries(board):
            yield f"{name}: ${variable}", series


def labels_of(name: str, known: dict[str, frozenset[str]]) -> frozenset[str] | None:
    """The labels that a series may have; None for one that there is not."""
    if name in ALERTS:
        return ALERTS[name]
    if name not in RECORDS:
        return known.get(name)
    inner = RECORDS[name].expr
    fixed = frozenset(RECORDS[name].body.get("labels", ()))
    records = [labels_of(each, known) for each, _ in selectors(inner) if each in RECORDS]
    return frozenset(groupings(inner)) | fixed.union(*(each or () for each in records))


def test_every_series_exists_and_has_the_labels_that_it_is_selected_by() -> None:
    known = known_series()
    wrong = []
    for where, query in asked():
        for name, labels in selectors(query):
            has = labels_of(name, known)
            if has is None:
                wrong.append(f"{where}: there is no {name}")
            elif odd := labels - has - TARGET_LABELS - {"part"}:
                wrong.append(f"{where}: {name} has no label {', '.join(sorted(odd))}")
    assert wrong == []


def test_every_label_that_is_grouped_by_exists_on_some_series_of_the_query() -> None:
    known = known_series()
    for where, query in asked():
        named = [labels_of(name, known) or frozenset() for name, _ in selectors(query)]
        has = frozenset().union(*named) | TARGET_LABELS | {"part"}
        assert set(groupings(query)) <= has, (where, set(groupings(query)) - has)


def test_rules_and_dashboards_ask_for_most_of_what_there_is() -> None:
    """A rough measure that the parser finds names at all."""
    named = {name for _, query in asked() for name, _ in selectors(query)}
    assert len(named & set(known_series())) > 60


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("up", [("up", set())]),
        (
            'sum by (node) (rate(a_total{code=~"5..",node="x{y"}[5m])) / 2',
            [("a_total", {"code", "node"})],
        ),
        ("a unless max by (n) (b offset 6h) > 1e3", [("a", set()), ("b", set())]),
        ("topk(3, a:b:sum) and on () (c == 0 or vector(0))", [("a:b:sum", set()), ("c", set())]),
        (
            'x * on (i) group_left (node) max by (i, node) (y{n=~".*"})',
            [("x", set()), ("y", {"n"})],
        ),
    ],
)
def test_the_parser_finds_series(query: str, found: list[tuple[str, set[str]]]) -> None:
    assert [(name, set(labels)) for name, labels in selectors(query)] == found


@pytest.mark.parametrize("query", ["sum(a", "smu(a)", "rate(a[5m)"])
def test_the_parser_refuses_what_can_not_be_right(query: str) -> None:
    with pytest.raises(BadQueryError):
        list(selectors(query))
