"""The command `inspect`."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import click

from hami_node.cli.options import kubeconfig_of
from hami_node.config.sources import ConfigSources, Settings, resolve
from hami_node.errors import Forbidden, HamiError, NotFound
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS

if TYPE_CHECKING:
    from hami_node.inspection.picture import Basis, Listed
    from hami_node.inspection.views import ClusterView, Problem
    from hami_node.model import Pod
    from hami_node.ports import ListingKube


class _InspectParts(Protocol):
    """What the command uses of `cli.Programs`."""

    @property
    def connect(self) -> Callable[[Path | None], ListingKube]:
        """Connects to the API server."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the epoch."""

    @property
    def env(self) -> Callable[[], Mapping[str, str]]:
        """The environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """What was listed, when, and with which settings."""

    listed: Listed
    problems: tuple[Problem, ...]
    settings: Settings
    now_s: float


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
    pod_key = _pod_key(what, node_name)
    settings, problems = _settings(parts, config_file, resource_name)
    if files:
        snapshot = _saved(files, node_name, settings, parts.now())
    else:
        kube = parts.connect(kubeconfig or kubeconfig_of(parts.env()))
        snapshot = _listed(kube, node_name, settings, parts.now())
    snapshot = replace(snapshot, problems=(*problems, *snapshot.problems))
    if pod_key is None:
        _show_cluster(snapshot, output, is_whole=node_name is None)
    else:
        _show_pod(snapshot, pod_key, output)


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


def _settings(
    parts: _InspectParts, config_file: Path | None, resource_name: str | None
) -> tuple[Settings, tuple[Problem, ...]]:
    """The extender's settings; errors in the environment are shown, not fatal.

    Raises:
        ConfigError: a file or flag of this command is wrong.
    """
    from hami_node.inspection.views import Problem

    flags = {} if resource_name is None else {"resource_count": resource_name}
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS,
        flags=flags,
        env=parts.env(),
        config_file=config_file,
        role=Role.EXTENDER,
    )
    found = resolve(sources)
    if found.errors and (config_file or resource_name):
        raise found.errors[0]
    problems = tuple(Problem(where="settings", why=str(error)) for error in found.errors)
    return found.settings, problems


def _listed(
    kube: ListingKube, node_name: str | None, settings: Settings, now_s: float
) -> _Snapshot:
    from hami_node.inspection.picture import Listed

    nodes = (kube.read_node(node_name),) if node_name else kube.list_nodes()
    pods = kube.list_pods(node_name)
    listed = Listed(nodes=nodes, pods=pods)
    snapshot = _Snapshot(listed=listed, problems=(), settings=settings, now_s=now_s)
    if node_name or not any(not pod.node_name and not pod.is_over for pod in pods):
        return snapshot  # no pod waits: quotas don't matter
    return _with_quotas(snapshot, kube)


def _with_quotas(snapshot: _Snapshot, kube: ListingKube) -> _Snapshot:
    """Add the quotas; if they may not be listed, a problem instead."""
    from hami_node.inspection.views import Problem
    from hami_node.wire.quotas import decode_resource_quota

    try:
        quotas = tuple(decode_resource_quota(quota) for quota in kube.list_resource_quotas())
    except (Forbidden, NotFound) as e:
        problem = Problem(where="resourcequotas", why=f"quotas are left out: {e}")
        return replace(snapshot, problems=(*snapshot.problems, problem))
    return replace(snapshot, listed=replace(snapshot.listed, quotas=quotas))


def _saved(
    files: Sequence[IO[bytes]], node_name: str | None, settings: Settings, now_s: float
) -> _Snapshot:
    from hami_node.inspection.picture import Listed
    from hami_node.inspection.saved import read_saved

    listed = Listed(nodes=(), pods=())
    problems: list[Problem] = []
    for file in files:
        found = read_saved(file.read(), str(getattr(file, "name", "standard input")))
        wanted = tuple(node for node in found.nodes if node_name in (None, node.name))
        listed = Listed(
            nodes=(*listed.nodes, *wanted),
            pods=(*listed.pods, *found.pods),
            quotas=(*listed.quotas, *found.quotas),
        )
        problems += found.problems
    if node_name and not listed.nodes:
        raise click.UsageError(f"node {node_name!r} is not in the saved objects")
    saved_s = min((_written_at(file, now_s) for file in files), default=now_s)
    return _Snapshot(listed=listed, problems=tuple(problems), settings=settings, now_s=saved_s)


def _written_at(file: IO[bytes], now_s: float) -> float:
    """When a file was saved, for ages; for a pipe, now."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, UnsupportedOperation):
        return now_s
    return found.st_mtime if stat.S_ISREG(found.st_mode) else now_s


def _basis_of(settings: Settings) -> Basis:
    """The vendors and rules of the extender."""
    from hami_node.extender.rules import rules_of
    from hami_node.inspection.picture import Basis

    rules = rules_of(settings, VENDORS)
    return Basis(vendors=rules.vendors, rules=rules.engine, node_labels=rules.node_labels)


def _show_cluster(snapshot: _Snapshot, output: str, *, is_whole: bool) -> None:
    from hami_node.inspection.cluster import inspect as decode
    from hami_node.inspection.picture import picture_of
    from hami_node.inspection.waiting import totals_of, waiting_in

    listed, now_s, name = snapshot.listed, snapshot.now_s, snapshot.settings.scheduler_name
    basis = _basis_of(snapshot.settings)
    view = decode(listed.nodes, listed.pods, basis.vendors, now_s)
    picture = picture_of(listed, basis, now_s)
    view = replace(
        view,
        problems=(*snapshot.problems, *view.problems),
        waiting=waiting_in(picture, listed.pods, now_s, name) if is_whole else (),
        totals=totals_of(picture),
    )
    if output == "json":
        _print_cluster_as_json(view)
        return
    from hami_node.cli.tables import show_cluster

    show_cluster(view)


def _print_cluster_as_json(view: ClusterView) -> None:
    """Print the view with each vendor's free cores among the other totals: `..._cores_free`."""
    import msgspec

    document = msgspec.to_builtins(view)
    totals = document["totals"]
    for cores, free in totals.pop("cores_free").items():
        totals[f"{cores.lower().replace(' ', '_')}_free"] = free
    _print_json(document)


def _show_pod(snapshot: _Snapshot, key: str, output: str) -> None:
    from hami_node.inspection.pod import explain_pod

    pod = _found(snapshot.listed.pods, key)
    basis, name = _basis_of(snapshot.settings), snapshot.settings.scheduler_name
    view = explain_pod(snapshot.listed, pod, basis, snapshot.now_s, name)
    view = replace(view, problems=(*snapshot.problems, *view.problems))
    if output == "json":
        _print_json(view)
        return
    from hami_node.cli.pod_tables import show_pod

    show_pod(view)


def _found(pods: Sequence[Pod], key: str) -> Pod:
    """The pod.

    Raises:
        HamiError: it does not exist; names pods of the same name in other namespaces.
    """
    for pod in pods:
        if pod.key == key:
            return pod
    name = key.partition("/")[2]
    others = sorted(pod.key for pod in pods if pod.name == name)
    hint = f"; there is {', '.join(others[:3])}" if others else ""
    raise HamiError(f"pod {key} does not exist{hint}")


def _print_json(view: object) -> None:
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(view), indent=2, ensure_ascii=False))
