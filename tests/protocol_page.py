"""Print the names of the protocol into docs/protocol.md: `python -m tests.protocol_page`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/protocol.md"
NAMES = (
    ROOT / "hami_node/wire/names.py",
    *sorted((ROOT / "hami_node/vendors").glob("*/names.py"), reverse=True),
)
BEGIN = "<!-- names: made by `python -m tests.protocol_page`, do not edit -->\n"
END = "<!-- end of names -->\n"

_SECTION = re.compile(r"# -- (.+?) -+")
_COMMENT = re.compile(r"# (?P<flow>[^:]+?(?:->)[^:]+): (?P<what>.+); (?P<source>[^;]+)")
_CONSTANT = re.compile(r'[A-Z_]+: Final = "([^"]*)"')


class Name(NamedTuple):
    """One constant with what its comment says."""

    section: str
    text: str
    flow: str
    what: str
    source: str


def read_names(source: str) -> list[Name]:
    """Every constant of names.py; raises ValueError where the comment above it has no such form."""
    found: list[Name] = []
    section, above = "", ""
    for line in source.splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1]
        elif constant := _CONSTANT.fullmatch(line):
            said = _COMMENT.fullmatch(above)
            if not said:
                raise ValueError(f"no `writer -> reader: what; source` above: {line}")
            found.append(Name(section, constant[1], said["flow"], said["what"], said["source"]))
        above = line
    return found


def _by_section(names: Iterable[Name]) -> list[Name]:
    sections: dict[str, list[Name]] = {}
    for name in names:
        sections.setdefault(name.section, []).append(name)
    return [name for section in sections.values() for name in section]


def render(names: list[Name]) -> str:
    """One table per section."""
    lines: list[str] = []
    section = ""
    for name in names:
        if name.section != section:
            section = name.section
            lines += [
                "",
                f"### {section}",
                "",
                "| name | who | what |",
                "|---|---|---|",
            ]
        lines.append(f"| `{name.text}` | {name.flow} | {name.what} |")
    return "\n".join(lines) + "\n\n"


def updated(page: str, *sources: str) -> str:
    """The page with its tables made again; sections of one title become one table."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return (
        before
        + BEGIN
        + render(_by_section(name for source in sources for name in read_names(source)))
        + END
        + after
    )


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(), *(path.read_text() for path in NAMES)))
