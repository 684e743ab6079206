"""The chart's values with the comments that document them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

CHART: Final = Path(__file__).parents[1] / "daemonset" / "chart"
_MARK: Final = "# -- "


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value: its dotted path, its default, and the comment above it, if it has one."""

    path: str
    default: object
    text: str | None


def documented() -> tuple[Value, ...]:
    """Every value, in the order of values.yaml; what is documented as a whole has no parts here."""
    text = CHART.joinpath("values.yaml").read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    return tuple(_below(root, yaml.safe_load(text), text.splitlines(), ""))


def _below(
    node: yaml.MappingNode, values: dict[str, object], lines: list[str], above: str
) -> Iterator[Value]:
    for key, inner in node.value:
        path, default = f"{above}{key.value}", values[key.value]
        comment = lines[key.start_mark.line - 1].strip()
        text = comment.removeprefix(_MARK) if comment.startswith(_MARK) else None
        if text is None and isinstance(default, dict) and default:
            yield from _below(inner, default, lines, f"{path}.")
        else:
            yield Value(path=path, default=default, text=text)
