"""The help of every command, as docs/commands.md has it; `tests.documents` writes it there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from hami_node.cli.main import main

_WIDTH: Final = 100


def commands() -> str:
    """A section for each command, with its help as it is printed in a terminal of 100 columns."""
    return "\n".join(_lines(main, "hami-node", None))


def _lines(command: click.Command, name: str, above: click.Context | None) -> Iterator[str]:
    widths = {"max_content_width": _WIDTH, "terminal_width": _WIDTH}
    settings: dict[str, Any] = {**main.context_settings, **widths}
    with click.Context(command, info_name=name, parent=above, **settings) as context:
        yield f"## {context.command_path}\n"
        yield f"```\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for inner in command.list_commands(context):
                found = command.get_command(context, inner)
                assert found is not None
                yield from _lines(found, inner, context)
