"""Views as JSON and YAML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

if TYPE_CHECKING:
    from hami_node.inspection.views import ClusterView

_HIDDEN: Final = re.compile(r"[^\x20-\x7e\n]")


def plain_cluster(view: ClusterView) -> dict[str, Any]:
    """The view with each vendor's free cores among the other totals: `..._cores_free`."""
    document: dict[str, Any] = msgspec.to_builtins(view)
    totals = document["totals"]
    if totals is not None:
        for cores, free in totals.pop("cores_free").items():
            totals[f"{cores.lower().replace(' ', '_')}_free"] = free
    return document


def text_of(view: object, form: str) -> str:
    """A value as `json` or `yaml`; what a terminal might obey is escaped, which readers undo."""
    plain = msgspec.to_builtins(view)
    if form == "yaml":
        import yaml

        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=False))
    return _HIDDEN.sub(_escaped, json.dumps(plain, indent=2, ensure_ascii=False)) + "\n"


def print_json(view: object) -> None:
    """Print a value."""
    click.echo(text_of(view, "json"), nl=False)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    return char if char.isprintable() else json.dumps(char)[1:-1]
