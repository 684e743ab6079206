"""`kubectl hami`: a plugin of kubectl. What a command needs is loaded when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from hami_node import __version__
from hami_node.cli.commands import HELP, Commands

if TYPE_CHECKING:
    from hami_node.cluster.access import Access
    from hami_node.cluster.client import KubeClient
    from hami_node.ports import Clock

COMPLETE: Final = "__complete"
_PREFIX: Final = "kubectl-"
_WITH_VALUE: Final = frozenset(
    {
        *("-n", "--namespace", "-l", "--selector", "-o", "--output"),
        *("-f", "--filename", "--file", "--context", "--kubeconfig"),
        *("--as", "--as-group", "--config-file", "--daemon-namespace"),
    }
)
"""Flags that the next word belongs to."""

F = TypeVar("F", bound=Callable[..., object])


def _clock() -> Clock:
    from hami_node.clock import SystemClock

    return SystemClock()


def _connect(access: Access) -> KubeClient:
    from hami_node.cluster.client import connect

    return connect(access, component="kubectl", clock=_clock()).with_retries()


def _now() -> float:
    return _clock().now()


def _env() -> Mapping[str, str]:
    from hami_node.config.sources import environment

    return environment()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubectlParts:
    """What the commands call; tests pass their own as click's `obj`."""

    connect: Callable[[Access], KubeClient] = _connect
    clock: Callable[[], Clock] = _clock
    now: Callable[[], float] = _now
    env: Callable[[], Mapping[str, str]] = _env


class _Plugin(Commands):
    """The commands of `kubectl hami`."""

    make_parts = KubectlParts

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which people need them."""
        del ctx
        return ["top", "nodes", "pods", "why", "view", "completion"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; the page in the browser is another room's."""
        if cmd_name == "view":
            from hami_node.cli.view import view

            return view
        return super().get_command(ctx, cmd_name)


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


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorated(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


_reach = _together(
    click.option("--context", default="", metavar="NAME", help="A context of the kubeconfig."),
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Default: the files of $KUBECONFIG, merged; then ~/.kube/config.",
    ),
    click.option("--as", "as_user", default="", metavar="USER", help="Act as somebody else."),
    click.option("--as-group", "as_groups", multiple=True, metavar="GROUP", hidden=True),
    click.option(
        "-f",
        "--filename",
        "--file",
        "files",
        multiple=True,
        type=click.File("rb"),
        metavar="FILE",
        help="What `kubectl get nodes,pods,resourcequotas,events -A -o json` saved, in place of a "
        "cluster; - is standard input; may be repeated.",
    ),
    click.option(
        "--config-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="device-config.yaml, where it renames resources. [env CONFIG_FILE]",
    ),
)
_shown = _together(
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
    ),
)
_namespaced = _together(
    click.option(
        "-n", "--namespace", default="", metavar="NAME", help="Default: that of the context."
    ),
    click.option("-A", "--all-namespaces", "is_all", is_flag=True, help="Pods of all namespaces."),
)
_daemons = click.option(
    "--daemon-namespace",
    default="hami-system",
    show_default=True,
    metavar="NAME",
    help="Where the daemons run that say what is used.",
)


@click.group(
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


@main.command(short_help="Cards and pods, by granted and used.")
@click.argument("parts", nargs=-1, metavar="[cards|pods]", type=click.Choice(["cards", "pods"]))
@_namespaced
@click.option("-l", "--selector", default="", metavar="LABELS", help="Nodes with these labels.")
@_reach
@_shown
@_daemons
@click.pass_obj
def top(obj: KubectlParts, /, parts: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
    """Show cards and pods, those that use most first.

    "Granted" is reserved by annotations. "MiB used" and "core use" are what daemons measure: of a
    card, by everybody on its node; of a pod, by its containers. They are read through the API
    server's pod proxy, of 64 nodes at most, with the right to get pods/proxy in the daemons'
    namespace; without it there is a dash.

    \b
    kubectl hami top -A
    kubectl hami top cards -l node.kubernetes.io/instance-type=p4d.24xlarge
    kubectl hami top pods -n ml
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_top_of

    show_top_of(Look.of(obj, **given), parts or ("cards", "pods"))


@main.command(short_help="Nodes with cards, a line for each.")
@click.argument("names", nargs=-1, metavar="[NODE]...")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Nodes with these labels.")
@_reach
@_shown
@click.pass_obj
def nodes(obj: KubectlParts, /, names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
    """Show nodes: cards, what is granted of them, the daemon's handshake, and what is wrong.

    With names also their cards, and who holds them. Memory is in MiB; cores are percent of a card,
    or their number where they are granted one by one.

    \b
    kubectl hami nodes
    kubectl hami nodes gpu-node-1
    kubectl get nodes,pods -A -o json | kubectl hami nodes -f -
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_nodes_of

    show_nodes_of(Look.of(obj, **given), names)


@main.command(short_help="Slices of pods, and the pods that wait.")
@click.argument("names", nargs=-1, metavar="[POD]...")
@_namespaced
@click.option("-l", "--selector", default="", metavar="LABELS", help="Pods with these labels.")
@_reach
@_shown
@click.pass_obj
def pods(obj: KubectlParts, /, names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
    """Show which pod holds which slice, and which wait for one, since when and why.

    \b
    kubectl hami pods
    kubectl hami pods -A -l app=train -o wide
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_pods_of

    show_pods_of(Look.of(obj, **given), names)


@main.command(short_help="Why a pod waits, and what would help.")
@click.argument("pod", metavar="[NAMESPACE/]POD")
@click.option("-n", "--namespace", default="", metavar="NAME", help="Default: that of the context.")
@_reach
@_shown
@click.pass_obj
def why(obj: KubectlParts, /, pod: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Explain a pod: each node's verdict, what would help, and what was said about it so far.

    \b
    kubectl hami why ml/train-0
    kubectl hami why train-0 -n ml -o yaml
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_why

    show_why(Look.of(obj, **given), pod)


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

    context = click.Context(main)
    commands = {name: main.get_command(context, name) for name in main.list_commands(context)}
    known = {name: command for name, command in commands.items() if command is not None}
    print_candidates(known, sys.argv[1:] if args is None else args, _env())


if __name__ == "__main__":
    run()
