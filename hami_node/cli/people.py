"""What people look at: `top`, `nodes`, `pods`, `why`, of `hami-node` and of `kubectl hami`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

import click

from hami_node.cli.options import (
    DOCUMENTS,
    completed,
    config_file_option,
    daemons_option,
    files_option,
    namespace_option,
    output_option,
    reach_options,
    together,
)
from hami_node.cli.programs import Programs

_ALL: Final = click.option(
    "-A", "--all-namespaces", "is_all", is_flag=True, help="Pods of all namespaces."
)
_OF_NODES: Final = click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Nodes with these labels."
)
_OF_PODS: Final = click.option(
    "-l", "--selector", default="", metavar="LABELS", help="Pods with these labels."
)
_LOOK: Final = together(
    reach_options, files_option, config_file_option, output_option(*DOCUMENTS), click.pass_obj
)


@click.command(short_help="Cards and pods, by granted and used.")
@click.argument("parts", nargs=-1, metavar="[cards|pods]", type=click.Choice(["cards", "pods"]))
@namespace_option
@_ALL
@_OF_NODES
@daemons_option
@_LOOK
def top(programs: Programs, /, parts: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
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

    show_top_of(Look.of(programs, **given), parts or ("cards", "pods"))


@click.command(short_help="Nodes with cards, a line for each.")
@click.argument("names", nargs=-1, metavar="[NODE]...", shell_complete=completed("nodes"))
@_OF_NODES
@_LOOK
def nodes(programs: Programs, /, names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
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

    show_nodes_of(Look.of(programs, **given), names)


@click.command(short_help="Slices of pods, and the pods that wait.")
@click.argument("names", nargs=-1, metavar="[POD]...", shell_complete=completed("pods"))
@namespace_option
@_ALL
@_OF_PODS
@_LOOK
def pods(programs: Programs, /, names: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - options
    """Show which pod holds which slice, and which wait for one, since when and why.

    \b
    kubectl hami pods
    kubectl hami pods -A -l app=train -o wide
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_pods_of

    show_pods_of(Look.of(programs, **given), names)


@click.command(short_help="Why a pod waits, and what would help.")
@click.argument("pod", metavar="[NAMESPACE/]POD", shell_complete=completed("keys"))
@namespace_option
@_LOOK
def why(programs: Programs, /, pod: str, **given: Any) -> None:  # noqa: ANN401 - options
    """Explain a pod: each node's verdict, what would help, and what was said about it so far.

    \b
    kubectl hami why ml/train-0
    kubectl hami why train-0 -n ml -o yaml
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_why

    show_why(Look.of(programs, **given), pod)


PEOPLE: Final = (top, nodes, pods, why)


def as_of(program: str, command: click.Command) -> click.Command:
    """The command with the examples of another program."""
    found = copy.copy(command)
    found.help = (command.help or "").replace("kubectl hami", program)
    return found


@click.command(short_help="All at once: nodes, cards, slices, their holders, and who waits.")
@click.argument("what", nargs=-1, metavar="[pod [NAMESPACE/]NAME]")
@click.option("--node", "node_name", metavar="NAME", help="Show this node only.")
@click.option(
    "--resource-name",
    metavar="NAME",
    help="The resource that counts cards, if device-config.yaml changes nothing else.",
)
@reach_options
@files_option
@config_file_option
@output_option("table", "json")
@click.pass_obj
def inspect(
    programs: Programs,
    /,
    *,
    what: tuple[str, ...],
    node_name: str | None,
    files: Sequence[IO[bytes]],
    config_file: Path | None,
    **given: Any,  # noqa: ANN401 - options
) -> None:
    """Show nodes, cards, slices, their holders and waiting pods, decoded from annotations.

    It is `top`, `nodes` and `pods` of the whole cluster in one; with a pod it is `why`. What can't
    be decoded is listed under "broken" and is never left out. Memory is in MiB, cores are percent
    of a card, or their number where they are granted individually. A narrow terminal leaves columns
    out (identity, limiter); a pipe and -o json have everything. Nothing is written.

    \b
    hami-node inspect
    hami-node inspect pod ml/train-0
    hami-node inspect --node gpu-node-1 -o json
    kubectl get nodes,pods,resourcequotas -A -o json | hami-node inspect --file -
    """
    from hami_node.cli.plugin.look import Look
    from hami_node.cli.plugin.views import show_everything, show_why

    if what and (what[0] not in ("pod", "pods", "po") or len(what) != 2):
        raise click.UsageError(f"{' '.join(what)!r} is not understood; use: pod NAMESPACE/NAME")
    if what and node_name is not None:
        raise click.UsageError("a pod is explained for all nodes: leave out --node")
    is_all = not what or what[1].count("/") == 1
    look = Look.of(programs, files=files, config_file=config_file, is_all=is_all, **given)
    if what:
        show_why(look, what[1])
    else:
        show_everything(look, node_name)
