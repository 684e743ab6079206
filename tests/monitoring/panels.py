"""Panels of Grafana dashboards, laid out by themselves from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
"""Of the reader's choice: no dashboard knows a data source of somebody's Grafana."""
TAG: Final = "hami-node"
Json = dict[str, Any]
Query = tuple[str, str]
"""Expression and legend."""

BYTES: Final = "bytes"
SECONDS: Final = "s"
RATIO: Final = "percentunit"
COUNT: Final = "short"
PER_SECOND: Final = "reqps"
GOOD_BELOW: Final = (("green", None), ("yellow", 0.75), ("red", 0.9))
"""Colours of a share."""
NONE_IS_GOOD: Final = (("green", None), ("red", 1))
PLAIN: Final = (("text", None),)
Steps = Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel before it has a place and a number."""

    kind: str
    title: str
    doc: str = ""
    queries: Sequence[Query] = ()
    width: int = 8
    height: int = 8
    unit: str = COUNT
    steps: Steps = PLAIN
    more: Mapping[str, Any] = field(default_factory=dict)


def row(title: str) -> Panel:
    """A heading."""
    return Panel(kind="row", title=title, width=WIDTH, height=1)


def stat(title: str, expr: str, doc: str, unit: str = COUNT, steps: Steps = PLAIN) -> Panel:
    """One number."""
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return Panel(
        kind="stat", title=title, doc=doc, queries=((expr, ""),), width=4, height=4, unit=unit,
        steps=steps, more={"options": options},
    )  # fmt: skip


def graph(
    title: str,
    doc: str,
    *queries: Query,
    unit: str = COUNT,
    width: int = 8,
    is_stacked: bool = False,
) -> Panel:
    """Lines over time."""
    options = {
        "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    stacking = {"mode": "normal" if is_stacked else "none", "group": "A"}
    custom = {
        "drawStyle": "line",
        "fillOpacity": 25 if is_stacked else 5,
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": stacking,
    }
    return Panel(
        kind="timeseries", title=title, doc=doc, queries=queries, width=width, unit=unit,
        more={"options": options, "custom": custom},
    )  # fmt: skip


def table(
    title: str, doc: str, expr: str, value: str, *, unit: str = COUNT, width: int = 12
) -> Panel:
    """The labels of each series, and its value under this name."""
    hidden = {"Time": True, "__name__": True, "instance": True, "job": True, "endpoint": True}
    organize = {
        "id": "organize",
        "options": {"excludeByName": hidden, "renameByName": {"Value": value}},
    }
    return Panel(
        kind="table", title=title, doc=doc, queries=((expr, ""),), width=width, unit=unit,
        more={"transformations": [organize]},
    )  # fmt: skip


def dashboard(
    name: str, title: str, doc: str, panels: Sequence[Panel], choices: Sequence[Json] = ()
) -> Json:
    """A whole dashboard; `name` is its file's and its address's."""
    return {
        "uid": name,
        "title": title,
        "description": doc,
        "tags": [TAG],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "1m",
        "timezone": "",
        "time": {"from": "now-6h", "to": "now"},
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards", "title": "hami-node", "tags": [TAG], "asDropdown": True,
                "includeVars": True, "keepTime": True, "targetBlank": False,
                "icon": "external link", "tooltip": "", "url": "",
            }
        ],
        "templating": {"list": [_source(), *choices]},
        "panels": _placed(panels),
    }  # fmt: skip


def choice(name: str, label: str, series: str, of: str, *, is_one: bool = False) -> Json:
    """A variable with the values of a label of some series; by default all of them."""
    query = f"label_values({series}, {of})"
    every = {"selected": True, "text": ["All"], "value": ["$__all"]}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": not is_one,
        "includeAll": not is_one,
        "allValue": None if is_one else ".*",
        "current": {} if is_one else every,
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def _source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
        "hide": 0,
        "regex": "",
        "skipUrlSync": False,
    }


def _placed(panels: Sequence[Panel]) -> list[Json]:
    """The panels in lines, each as high as its highest."""
    placed: list[Json] = []
    x = y = height = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
        placed.append(_body(panel, number, place))
        x, height = x + panel.width, max(height, panel.height)
    return placed


def _body(panel: Panel, number: int, place: Mapping[str, int]) -> Json:
    body: Json = {"id": number, "type": panel.kind, "title": panel.title, "gridPos": dict(place)}
    if panel.kind == "row":
        return body | {"collapsed": False, "panels": []}
    more = dict(panel.more)
    defaults: Json = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for color, value in panel.steps],
        },
        "mappings": [],
    }
    if "custom" in more:
        defaults["custom"] = more.pop("custom")
    return body | {
        "description": panel.doc,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [_target(panel, query, at) for at, query in enumerate(panel.queries)],
        **more,
    }


def _target(panel: Panel, query: Query, at: int) -> Json:
    expr, legend = query
    target: Json = {
        "refId": chr(ord("A") + at),
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": expr,
        "legendFormat": legend or "__auto",
    }
    if panel.kind == "table":
        return target | {"instant": True, "range": False, "format": "table"}
    return target | {"range": True}
