"""The rules and dashboards as they are in the chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent.parent.parent
RULES: Final = ROOT / "daemonset" / "chart" / "rules"
DASHBOARDS: Final = ROOT / "daemonset" / "chart" / "dashboards"
COMPONENT: Final = ROOT / "daemonset" / "components" / "monitoring"
ALERTS_PAGE: Final = ROOT / "docs" / "monitoring.md"

VARIABLES: Final = {
    "$__rate_interval": "5m",
    "$__range": "1h",
    "$__interval": "1m",
}
"""Grafana's own, as it would fill them in; those of a dashboard match everything."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: an alert, or a record with its fixed labels."""

    file: str
    name: str
    expr: str
    is_alert: bool
    body: dict[str, Any]


def rule_files() -> list[Path]:
    """All files with rules."""
    return sorted(RULES.glob("*.yaml"))


def rules() -> list[Rule]:
    """Every rule of every file."""
    return [
        Rule(
            path.stem,
            each.get("alert") or each["record"],
            " ".join(each["expr"].split()),
            "alert" in each,
            each,
        )
        for path in rule_files()
        for group in yaml.safe_load(path.read_text())["groups"]
        for each in group["rules"]
    ]


def dashboards() -> dict[str, dict[str, Any]]:
    """Every dashboard by its file's name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, rows and those in them included."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def variables(board: dict[str, Any]) -> list[dict[str, Any]]:
    """What a dashboard lets its reader choose."""
    found: list[dict[str, Any]] = board["templating"]["list"]
    return found


def queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(title of the panel, query) with every variable filled in."""
    names = sorted((each["name"] for each in variables(board)), key=len, reverse=True)
    for panel in panels(board):
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            for name in names:
                text = text.replace(f"${name}", ".*")
            yield panel["title"], text


def variable_queries(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(variable, series whose label it lists) of the variables that ask Prometheus."""
    names = sorted((each["name"] for each in variables(board)), key=len, reverse=True)
    for each in variables(board):
        if each["type"] == "query":
            text = each["query"]["query"]
            series = text.removeprefix("label_values(").rpartition(",")[0]
            for name in names:
                series = series.replace(f"${name}", ".*")
            yield each["name"], series
