"""What every command line of ours has in common: exit codes, errors in a line, closed pipes."""

from __future__ import annotations

import os
import signal
import sys
from enum import IntEnum
from io import TextIOWrapper
from typing import Any, Final

import click

from hami_node.cli.programs import Programs
from hami_node.errors import HamiError, KubeError

HELP: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 110,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


class ExitCode(IntEnum):
    """The result of a command; click itself exits with 2 on wrong usage."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_API = 3
    SIGNALLED = 128
    """Plus the signal's number, as a shell has it."""


class Commands(click.Group):
    """Turns our errors into a single line and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - click's signature
        """Run the program: what a terminal can't show is escaped instead of fatal."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's signature
        """Run the command."""
        if ctx.obj is None:
            ctx.obj = Programs()
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KubeError as e:
            click.echo(f"error: {on_a_line(str(e))}", err=True)
            ctx.exit(ExitCode.NO_API)
        except HamiError as e:
            click.echo(f"error: {on_a_line(str(e))}", err=True)
            ctx.exit(ExitCode.FAILED)
        except ModuleNotFoundError as e:
            from hami_node.cli.extras import missing_package

            if (missing := missing_package(e)) is None:
                raise
            click.echo(f"error: {missing}", err=True)
            ctx.exit(ExitCode.FAILED)
        except BrokenPipeError:
            _drop_output()
            ctx.exit(ExitCode.SIGNALLED + signal.SIGPIPE)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.SIGNALLED + signal.SIGINT)
        return result


def on_a_line(text: str) -> str:
    """An error without control characters: parts of it may come from other writers."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _drop_output() -> None:
    """Whoever read our output has gone: what is left of it must not fail when we end."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)
    os.close(nowhere)
