"""Write the tables of docs/configuration.md and docs/metrics.md: `python -m tests.documents`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hami_node.config import IGNORED_ENV, IGNORED_FLAGS, Settings, plain
from hami_node.config_values import allowed
from hami_node.metric_families import FAMILIES
from hami_node.settings import GROUPS, names_of

DOCS: Final = Path(__file__).parent.parent / "docs"


def settings_tables() -> str:
    """One table for each group of settings."""
    return "\n".join(_settings_lines())


def _settings_lines() -> Iterator[str]:
    defaults = plain(Settings())
    for name, names in names_of().items():
        if name in GROUPS:
            yield f"\n### {GROUPS[name]}\n"
            yield "| flag | meaning, what it takes | default | other names |"
            yield "|---|---|---|---|"
        own = name.replace("_", "-")
        others = [f"`--{flag}`" for flag in names.flags] + [f"`{env}`" for env in names.env]
        if names.yaml:
            others.append(f"yaml `{names.yaml if '.' in names.yaml else 'nvidia.' + names.yaml}`")
        if names.node:
            others.append(f"node `{names.node}`")
        default = defaults[own]
        shown = ",".join(map(str, default)) if isinstance(default, list) else str(default)
        shown = "-" if default is None or shown == "" else f"`{shown.lower()}`"
        meaning = f"{names.doc} Takes {allowed(name)}."
        yield f"| `--{own}` | {meaning} | {shown} | {', '.join(others) or '-'} |"


def ignored_lists() -> str:
    """HAMi's names without effect."""
    flags = ", ".join(f"`{'-' if len(name) == 1 else '--'}{name}`" for name in IGNORED_FLAGS)
    return f"Flags {flags}.\n\nEnvironment {', '.join(f'`{name}`' for name in IGNORED_ENV)}."


def metrics_table() -> str:
    """Every metric."""
    rows = ["| metric | kind | labels besides `node` | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        rows.append(f"| `{family.name}` | {family.kind} | {labels} | {family.doc} |")
    return "\n".join(rows)


PARTS: Final = {
    "configuration.md": {"ignored": ignored_lists, "settings": settings_tables},
    "metrics.md": {"metrics": metrics_table},
}


def current(page: str) -> str:
    """The page with its generated parts as they should be now."""
    text = DOCS.joinpath(page).read_text()
    for mark, write in PARTS[page].items():
        begin, end = f"<!-- begin {mark} -->", f"<!-- end {mark} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        made = f"{begin}\n{write().strip()}\n{end}"
        text = pattern.sub(made.replace("\\", "\\\\"), text)
    return text


if __name__ == "__main__":
    for page in PARTS:
        DOCS.joinpath(page).write_text(current(page))
