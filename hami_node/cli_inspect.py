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

from hami_node.cli_options import kubeconfig_of
from hami_node.config import ConfigSources, Settings, resolve
from hami_node.errors import Forbidden, HamiError, NotFound
from hami_node.settings import Role

if TYPE_CHECKING:
    from hami_node.inspection.cluster import Problem
    from hami_node.inspection.picture import Listed
    from hami_node.model import Pod
    from hami_node.ports import ListingKube


class _Parts(Protocol):
    """What the command needs of `cli.Parts`."""

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
class _Look:
    """What was found, when, and under which settings."""

    listed: Listed
    problems: tuple[Problem, ...]
    settings: Settings
    now_s: float


@click.command(short_help="Show who holds which slice of which card, and who waits and why.")
@click.argument("what", nargs=-1, metavar="[pod [NAMESPACE/]NAME]")
@click.option("--node", "node_name", metavar="NAME", help="Show this node only.")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.File("rb"),
    help="Decode what `kubectl get nodes,pods,resourcequotas -A -o json` saved instead of asking "
    "the API server; - is standard input; may be repeated.",
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
    help="The resource that counts cards, if that is all device-config.yaml changes.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.",
)
@click.pass_obj
def inspect(
    parts: _Parts,
    *,
    what: tuple[str, ...],
    node_name: str | None,
    files: Sequence[IO[bytes]],
    output: str,
    config_file: Path | None,
    resource_name: str | None,
    kubeconfig: Path | None,
) -> None:
    """Show nodes, cards, slices, who holds what and who waits, decoded from annotations.

    What can't be decoded stands under "broken" and is never left out. Memory is MiB, cores are
    percent of one card (on Neuron: their number).

    With a pod: what every node says to it, what it lacks and what would help, if it waits; else
    what it holds. Computed from nodes, pods and quotas as the extender decides; nothing is asked of
    the extender, and nothing is written.

    \b
    hami-node inspect
    hami-node inspect pod ml/train-0
    hami-node inspect --node gpu-node-1 -o json
    kubectl get nodes,pods,resourcequotas -A -o json | hami-node inspect --file -
    """
    pod_key = _pod_key(what, node_name)
    settings, problems = _settings(parts, config_file, resource_name)
    if files:
        look = _saved(files, node_name, settings, parts.now())
    else:
        kube = parts.connect(kubeconfig or kubeconfig_of(parts.env()))
        look = _listed(kube, node_name, settings, parts.now())
    look = replace(look, problems=(*problems, *look.problems))
    if pod_key is None:
        _show_cluster(look, output, is_whole=node_name is None)
    else:
        _show_pod(look, pod_key, output)


def _pod_key(what: tuple[str, ...], node_name: str | None) -> str | None:
    """`namespace/name` of the pod that is meant; None for the whole cluster."""
    if not what:
        return None
    if what[0] not in ("pod", "pods", "po") or len(what) != 2:
        raise click.UsageError(f"{' '.join(what)!r} is not understood; say: pod NAMESPACE/NAME")
    if node_name is not None:
        raise click.UsageError("a pod is explained for all nodes: leave out --node")
    namespace, slash, name = what[1].rpartition("/")
    if not name or "/" in namespace or (slash and not namespace):
        raise click.UsageError(f"{what[1]!r} is no pod; say NAMESPACE/NAME")
    return f"{namespace or 'default'}/{name}"


def _settings(
    parts: _Parts, config_file: Path | None, resource_name: str | None
) -> tuple[Settings, tuple[Problem, ...]]:
    """The extender's settings; what is wrong in the environment is shown, not fatal.

    Raises:
        ConfigError: a file or flag that was given here is wrong.
    """
    from hami_node.inspection.cluster import Problem

    flags = {} if resource_name is None else {"resource_count": resource_name}
    sources = ConfigSources(
        flags=flags, env=parts.env(), config_file=config_file, role=Role.EXTENDER
    )
    found = resolve(sources)
    if found.errors and (config_file or resource_name):
        raise found.errors[0]
    problems = tuple(Problem(where="settings", why=str(error)) for error in found.errors)
    return found.settings, problems


def _listed(kube: ListingKube, node_name: str | None, settings: Settings, now_s: float) -> _Look:
    from hami_node.inspection.picture import Listed

    nodes = (kube.read_node(node_name),) if node_name else kube.list_nodes()
    pods = kube.list_pods(node_name)
    listed = Listed(nodes=nodes, pods=pods)
    look = _Look(listed=listed, problems=(), settings=settings, now_s=now_s)
    if node_name or not any(not pod.node_name and not pod.is_over for pod in pods):
        return look  # nobody waits: quotas keep nobody
    return _with_quotas(look, kube)


def _with_quotas(look: _Look, kube: ListingKube) -> _Look:
    """Add the quotas; who may not list them gets the rest, and is told."""
    from hami_node.inspection.cluster import Problem
    from hami_node.wire.quotas import decode_resource_quota

    try:
        quotas = tuple(decode_resource_quota(one) for one in kube.list_resource_quotas())
    except (Forbidden, NotFound) as e:
        why = f"quotas are not looked at: {e}"
        return replace(look, problems=(*look.problems, Problem(where="resourcequotas", why=why)))
    return replace(look, listed=replace(look.listed, quotas=quotas))


def _saved(
    files: Sequence[IO[bytes]], node_name: str | None, settings: Settings, now_s: float
) -> _Look:
    from hami_node.inspection.picture import Listed
    from hami_node.inspection.saved import read_saved

    listed = Listed(nodes=(), pods=())
    problems: list[Problem] = []
    for file in files:
        found = read_saved(file.read(), str(getattr(file, "name", "standard input")))
        wanted = tuple(one for one in found.nodes if node_name in (None, one.name))
        listed = Listed(
            nodes=(*listed.nodes, *wanted),
            pods=(*listed.pods, *found.pods),
            quotas=(*listed.quotas, *found.quotas),
        )
        problems += found.problems
    if node_name and not listed.nodes:
        raise click.UsageError(f"node {node_name!r} is not in what was saved")
    moment_s = min((_written_at(file, now_s) for file in files), default=now_s)
    return _Look(listed=listed, problems=tuple(problems), settings=settings, now_s=moment_s)


def _written_at(file: IO[bytes], now_s: float) -> float:
    """When a file was saved, which is when it was true; a pipe is true now."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, UnsupportedOperation):
        return now_s
    return found.st_mtime if stat.S_ISREG(found.st_mode) else now_s


def _show_cluster(look: _Look, output: str, *, is_whole: bool) -> None:
    from hami_node.extender.rules import rules_of
    from hami_node.inspection.cluster import inspect as decode
    from hami_node.inspection.picture import picture_of
    from hami_node.inspection.waiting import totals_of, waiting_in

    listed, rules, name = look.listed, rules_of(look.settings), look.settings.scheduler_name
    view = decode(listed.nodes, listed.pods, rules.names.gpu, look.now_s)
    picture = picture_of(listed, rules, look.now_s)
    view = replace(
        view,
        problems=(*look.problems, *view.problems),
        waiting=waiting_in(picture, listed.pods, look.now_s, name) if is_whole else (),
        totals=totals_of(picture),
    )
    if output == "json":
        _print_json(view)
        return
    from hami_node.inspect_tables import show_cluster

    show_cluster(view)


def _show_pod(look: _Look, key: str, output: str) -> None:
    from hami_node.extender.rules import rules_of
    from hami_node.inspection.pod import explain_pod

    pod = _found(look.listed.pods, key)
    rules, name = rules_of(look.settings), look.settings.scheduler_name
    view = explain_pod(look.listed, pod, rules, look.now_s, name)
    view = replace(view, problems=(*look.problems, *view.problems))
    if output == "json":
        _print_json(view)
        return
    from hami_node.inspect_pod_tables import show_pod

    show_pod(view)


def _found(pods: Sequence[Pod], key: str) -> Pod:
    """The pod.

    Raises:
        HamiError: there is none; names pods of the same name elsewhere.
    """
    for pod in pods:
        if pod.key == key:
            return pod
    name = key.partition("/")[2]
    others = sorted(pod.key for pod in pods if pod.name == name)
    hint = f"; there is {', '.join(others[:3])}" if others else ""
    raise HamiError(f"pod {key} is not there{hint}")


def _print_json(view: object) -> None:
    import msgspec

    click.echo(json.dumps(msgspec.to_builtins(view), indent=2, ensure_ascii=False))
