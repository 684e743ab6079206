"""`kubectl hami`: a plugin of kubectl. What a command needs is loaded when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

import click

from hami_node import __version__
from hami_node.cli.commands import HELP, Commands
from hami_node.cli.people import PEOPLE
from hami_node.cli.programs import Programs
from hami_node.cli.view import view

COMPLETE: Final = "__complete"
_PREFIX: Final = "kubectl-"
_WITH_VALUE: Final = frozenset(
    {
        *("-n", "--namespace", "-l", "--selector", "-o", "--output"),
        *("-f", "--filename", "--file", "--context", "--kubeconfig"),
        *("--as", "--as-group", "--config-file", "--device-config-file", "--daemon-namespace"),
    }
)
"""Flags that the next word belongs to."""


class _Plugin(Commands):
    """The commands of `kubectl hami`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        del ctx
        return ["top", "nodes", "pods", "why", "view", "completion"]


def called_as(program: str) -> str:
    """What the user typed: `kubectl hami` for a program that kubectl starts."""
    name = PurePath(program).name
    if not name.startswith(_PREFIX):
        return "kubectl hami"
    return "kubectl " + name.removeprefix(_PREFIX).replace("-", " ").replace("_", "-")


def _command_first(args: Sequence[str]) -> list[str]:
    """`-n ml pods` as `pods -n ml`."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-h", "--help"):
        at += 2 if args[at] in _WITH_VALUE else 1
    if not at or at >= len(args) or args[at].startswith("-"):
        return list(args)
    return [args[at], *args[:at], *args[at + 1 :]]


@click.group(
    "kubectl hami",
    cls=_Plugin,
    context_settings=HELP,
    epilog="Exit codes: 0 success; 1 the question can't be answered; 2 wrong usage; 3 the API "
    "server can't be reached or refuses; 130 interrupted by Ctrl-C.",
)
@click.version_option(__version__, "--version", prog_name="kubectl-hami")
def main() -> None:
    """Show shared accelerators: who holds what, who waits, and why.

    \b
    kubectl hami top -A            cards and pods: granted against used
    kubectl hami nodes             a line for each node with cards
    kubectl hami pods -n ml        slices and waiting pods of a namespace
    kubectl hami why ml/train-0    why a pod waits, and what would help
    kubectl hami view              the same in the browser

    Nothing is written, and the extender is not asked: what is shown is computed from nodes, pods
    and quotas with your own rights.
    """


for _command in (*PEOPLE, view):
    main.add_command(_command)


@main.command(short_help="A script that completes names for kubectl.")
def completion() -> None:
    """Print the program with which kubectl completes `kubectl hami ...`.

    kubectl 1.26 and later start it by its name. `pip install` puts it where it belongs; else:

    \b
    kubectl hami completion > ~/bin/kubectl_complete-hami
    chmod +x ~/bin/kubectl_complete-hami
    """
    from hami_node.cli.plugin.complete import SCRIPT

    click.echo(SCRIPT, nl=False)


def run() -> None:
    """The program `kubectl-hami`: flags may stand before the command, as kubectl's users write."""
    args = sys.argv[1:]
    if args[:1] == [COMPLETE]:
        complete(args[1:])
    else:
        main(_command_first(args), prog_name=called_as(sys.argv[0]))


def complete(args: Sequence[str] | None = None) -> None:
    """The program `kubectl_complete-hami`: print the candidates for the last word."""
    from hami_node.cli.plugin.complete import run as print_candidates

    words = sys.argv[1:] if args is None else list(args)
    print_candidates(main, [*_command_first(words[:-1]), *words[-1:]], Programs().env())


if __name__ == "__main__":
    run()
