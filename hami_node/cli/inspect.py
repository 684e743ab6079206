"""The command `inspect`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import click

from hami_node.cli.options import access_of

if TYPE_CHECKING:
    from hami_node.cli.snapshots import Snapshot
    from hami_node.cluster.access import Access
    from hami_node.cluster.client import KubeClient
    from hami_node.inspection.pod import PodView


class _InspectParts(Protocol):
    """What the command uses of `cli.Programs`."""

    @property
    def connect(self) -> Callable[[Access], KubeClient]:
        """Connects to the API server."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the epoch."""

    @property
    def env(self) -> Callable[[], Mapping[str, str]]:
        """The environment."""


@click.command(short_help="Show which pod holds which slice of which card, and which wait and why.")
@click.argument("what", nargs=-1, metavar="[pod [NAMESPACE/]NAME]")
@click.option("--node", "node_name", metavar="NAME", help="Show this node only.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.File("rb"),
    help="Decode the saved output of `kubectl get nodes,pods,resourcequotas -A -o json` instead of "
    "listing from the API server; - is standard input; may be repeated.",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True
)
@click.option(
    "--config-file",
    "--device-config-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="HAMi's device-config.yaml: names of resources, defaults and policies. [env CONFIG_FILE]",
)
@click.option(
    "--resource-name",
    metavar="NAME",
    help="The resource that counts cards, if device-config.yaml changes nothing else.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.",
)
@click.pass_obj
def inspect(
    parts: _InspectParts,
    *,
    what: tuple[str, ...],
    node_name: str | None,
    files: Sequence[IO[bytes]],
    output: str,
    config_file: Path | None,
    resource_name: str | None,
    kubeconfig: Path | None,
) -> None:
    """Show nodes, cards, slices, their holders and waiting pods, decoded from annotations.

    What can't be decoded is listed under "broken" and is never left out. Memory is in MiB, cores
    are percent of a card, or their number where they are granted individually. A narrow terminal
    leaves columns out (identity, limiter); a pipe and -o json have everything.

    With a pod: the verdict of every node, what is missing and what would help, if the pod waits;
    else what it holds. Computed from nodes, pods and quotas with the extender's rules; the extender
    is not called, and nothing is written.

    \b
    hami-node inspect
    hami-node inspect pod ml/train-0
    hami-node inspect --node gpu-node-1 -o json
    kubectl get nodes,pods,resourcequotas -A -o json | hami-node inspect --file -
    """
    from hami_node.cli import snapshots

    pod_key = _pod_key(what, node_name)
    settings, problems = snapshots.settings_of(parts.env(), config_file, resource_name)
    kube = None if files else parts.connect(access_of(parts.env(), kubeconfig))
    if kube is None:
        snapshot = snapshots.saved(files, node_name, settings, parts.now())
    elif node_name:
        snapshot = snapshots.listed_of_node(kube, node_name, settings, parts.now())
    else:
        snapshot = snapshots.listed(kube, settings, parts.now())
    snapshot = replace(snapshot, problems=(*problems, *snapshot.problems))
    if pod_key is None:
        _show_cluster(snapshot, output, is_whole=node_name is None)
    else:
        _show_pod(snapshots.pod_view(snapshot, pod_key, kube), output)


def _pod_key(what: tuple[str, ...], node_name: str | None) -> str | None:
    """`namespace/name` of the named pod; None for the whole cluster."""
    if not what:
        return None
    if what[0] not in ("pod", "pods", "po") or len(what) != 2:
        raise click.UsageError(f"{' '.join(what)!r} is not understood; use: pod NAMESPACE/NAME")
    if node_name is not None:
        raise click.UsageError("a pod is explained for all nodes: leave out --node")
    namespace, slash, name = what[1].rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise click.UsageError(f"{what[1]!r} is no pod; use NAMESPACE/NAME")
    return f"{namespace or 'default'}/{name}"


def _show_cluster(snapshot: Snapshot, output: str, *, is_whole: bool) -> None:
    from hami_node.cli.snapshots import cluster_view

    view = cluster_view(snapshot, waiting=snapshot.listed.pods if is_whole else ())
    if output == "json":
        from hami_node.cli.show.documents import plain_cluster, print_json

        print_json(plain_cluster(view))
        return
    from hami_node.cli.show.tables import show_cluster

    show_cluster(view, has_pods=snapshot.has_pods)


def _show_pod(view: PodView, output: str) -> None:
    if output == "json":
        from hami_node.cli.show.documents import print_json

        print_json(view)
        return
    from hami_node.cli.show.pod_tables import show_pod

    show_pod(view)
