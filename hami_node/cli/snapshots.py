"""What `inspect` and `kubectl hami` look at: listed from the API server, or read from files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from hami_node.cli.commands import on_a_line
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources, resolve
from hami_node.errors import Forbidden, HamiError, NotFound
from hami_node.extender.rules import rules_of
from hami_node.inspection.cluster import inspect
from hami_node.inspection.picture import Basis, Listed, picture_of
from hami_node.inspection.pod import PodState, PodView, explain_pod
from hami_node.inspection.saved import read_saved
from hami_node.inspection.story import Story, story_of
from hami_node.inspection.views import ClusterView, Problem
from hami_node.inspection.waiting import totals_of, waiting_in
from hami_node.model import Node, Pod
from hami_node.setting_types import Role
from hami_node.text import shown
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire.quotas import decode_resource_quota

if TYPE_CHECKING:
    from hami_node.cluster.client import KubeClient

Json = Mapping[str, object]

UNSEEN: Final = "what is free can't be seen with your rights: nodes, and pods of all namespaces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was listed, when, and with which settings.

    Attributes:
        listed: nodes, pods and quotas.
        problems: what could not be read.
        settings: the extender's.
        now_s: Unix seconds, when this was so.
        plain_pods, events: as they were saved; from the API server they are read when needed.
        has_pods: False where a file has no pod, so that nobody knows who holds what.
        is_partial: only a namespace's pods are known, so that nobody knows what is free.
    """

    listed: Listed
    problems: tuple[Problem, ...] = ()
    settings: Settings
    now_s: float
    plain_pods: Mapping[str, Json] = field(default_factory=dict)
    events: tuple[Json, ...] = ()
    has_pods: bool = True
    is_partial: bool = False

    @property
    def basis(self) -> Basis:
        """The vendors and rules of the extender."""
        return basis_of(self.settings)


def basis_of(settings: Settings) -> Basis:
    """The vendors and rules of the extender with these settings."""
    rules = rules_of(settings, VENDORS)
    return Basis(vendors=rules.vendors, rules=rules.engine, node_labels=rules.node_labels)


def settings_of(
    env: Mapping[str, str], config_file: Path | None = None, resource_name: str | None = None
) -> tuple[Settings, tuple[Problem, ...]]:
    """The extender's settings; errors in the environment are shown, not fatal.

    Raises:
        ConfigError: a file or flag of this command is wrong.
    """
    flags = {} if resource_name is None else {"resource_count": resource_name}
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS,
        flags=flags,
        env=env,
        config_file=config_file,
        role=Role.EXTENDER,
    )
    found = resolve(sources)
    if found.errors and (config_file or resource_name):
        raise found.errors[0]
    problems = tuple(Problem(where="settings", why=str(error)) for error in found.errors)
    return found.settings, problems


def listed_of_node(kube: KubeClient, node_name: str, settings: Settings, now_s: float) -> Snapshot:
    """A node and its pods; quotas don't matter.

    Raises:
        HamiError: it does not exist.
    """
    try:
        node = kube.read_node(node_name)
    except NotFound as e:
        raise _absent(node_name) from e
    listed = Listed(nodes=(node,), pods=kube.list_pods(node_name))
    return Snapshot(listed=listed, settings=settings, now_s=now_s)


def listed(kube: KubeClient, settings: Settings, now_s: float) -> Snapshot:
    """All nodes and pods, and the quotas if a pod waits."""
    found = Listed(nodes=kube.list_nodes(), pods=kube.list_pods())
    return with_quotas(Snapshot(listed=found, settings=settings, now_s=now_s), kube)


def listed_in(
    kube: KubeClient, namespace: str, settings: Settings, now_s: float, error: Forbidden
) -> Snapshot:
    """The pods of a namespace, for those who may see no more; `error` is what they were told."""
    pods = kube.list_pods_in(namespace)
    nodes = {pod.node_name: Node(name=pod.node_name, uid="") for pod in pods if pod.node_name}
    return Snapshot(
        listed=Listed(nodes=tuple(nodes.values()), pods=pods),
        problems=(Problem(where="your rights", why=f"only {namespace} is seen: {error}"),),
        settings=settings,
        now_s=now_s,
        is_partial=True,
    )


def with_quotas(snapshot: Snapshot, kube: KubeClient) -> Snapshot:
    """Add the quotas, if a pod waits; if they may not be listed, a problem instead."""
    if not any(not pod.node_name and not pod.is_over for pod in snapshot.listed.pods):
        return snapshot
    try:
        quotas = tuple(decode_resource_quota(quota) for quota in kube.list_resource_quotas())
    except (Forbidden, NotFound) as e:
        problem = Problem(where="resourcequotas", why=f"quotas are left out: {e}")
        return replace(snapshot, problems=(*snapshot.problems, problem))
    return replace(snapshot, listed=replace(snapshot.listed, quotas=quotas))


def saved(
    files: Sequence[IO[bytes]], node_name: str | None, settings: Settings, now_s: float
) -> Snapshot:
    """What `kubectl get -o json` saved, as of the time of the oldest file."""
    whole = Listed(nodes=(), pods=())
    problems: list[Problem] = []
    plain: dict[str, Json] = {}
    events: list[Json] = []
    for file in files:
        found = read_saved(file.read(), str(getattr(file, "name", "standard input")))
        wanted = tuple(node for node in found.nodes if node_name in (None, node.name))
        whole = Listed(
            nodes=(*whole.nodes, *wanted),
            pods=(*whole.pods, *found.pods),
            quotas=(*whole.quotas, *found.quotas),
        )
        problems += found.problems
        plain |= found.plain_pods
        events += found.events
    if node_name and not whole.nodes:
        raise _absent(node_name)
    saved_s = min((_written_at(file, now_s) for file in files), default=now_s)
    return Snapshot(
        listed=whole,
        problems=tuple(problems),
        settings=settings,
        now_s=saved_s,
        plain_pods=plain,
        events=tuple(events),
        has_pods=bool(whole.pods),
    )


def _absent(node_name: str) -> HamiError:
    return HamiError(f"node {shown(node_name)} does not exist")


def _written_at(file: IO[bytes], now_s: float) -> float:
    """When a file was saved, for ages; for a pipe, now."""
    try:
        found = os.fstat(file.fileno())
    except (OSError, UnsupportedOperation):
        return now_s
    return found.st_mtime if stat.S_ISREG(found.st_mode) else now_s


def cluster_view(
    snapshot: Snapshot, *, waiting: Iterable[Pod] = (), has_totals: bool = True
) -> ClusterView:
    """Everything decoded.

    Args:
        snapshot: what was listed.
        waiting: the pods whose waiting is explained, if they wait.
        has_totals: False leaves out the sums over all cards.
    """
    listed, now_s, name = snapshot.listed, snapshot.now_s, snapshot.settings.scheduler_name
    waiting = [pod for pod in waiting if not pod.node_name and not pod.is_over]
    basis = snapshot.basis
    view = inspect(listed.nodes, listed.pods, basis.vendors, now_s)
    view = replace(view, problems=(*snapshot.problems, *view.problems))
    if not waiting and (snapshot.is_partial or not has_totals):
        return _as_far_as_seen(snapshot, view)
    picture = picture_of(listed, basis, now_s)
    view = replace(view, waiting=waiting_in(picture, waiting, now_s, name))
    if has_totals:
        view = replace(view, totals=totals_of(picture))
    return _as_far_as_seen(snapshot, view)


def _as_far_as_seen(snapshot: Snapshot, view: ClusterView) -> ClusterView:
    """Of a namespace alone the cards are not known, so nothing is said about them."""
    if not snapshot.is_partial:
        return view
    waits = (wait if wait.reserved_on else replace(wait, why=UNSEEN) for wait in view.waiting)
    return replace(view, nodes=(), totals=None, problems=snapshot.problems, waiting=tuple(waits))


def pod_view(snapshot: Snapshot, key: str, kube: KubeClient | None) -> PodView:
    """A pod explained, with what was said about it; `kube` is None for files.

    Raises:
        HamiError: it does not exist.
    """
    pod = _found(snapshot.listed.pods, key)
    basis, name = snapshot.basis, snapshot.settings.scheduler_name
    view = explain_pod(snapshot.listed, pod, basis, snapshot.now_s, name)
    if snapshot.is_partial and view.state is PodState.WAITING:
        view = replace(view, summary=UNSEEN, cures=(), nodes=(), problems=())
    story, problems = _story(snapshot, pod, kube)
    return replace(
        view,
        scheduler_said="" if pod.node_name else story.scheduler_said,
        events=story.events,
        problems=(*snapshot.problems, *view.problems, *problems),
    )


def _story(
    snapshot: Snapshot, pod: Pod, kube: KubeClient | None
) -> tuple[Story, tuple[Problem, ...]]:
    if kube is None:
        plain = snapshot.plain_pods.get(pod.key, {})
        return story_of(plain, snapshot.events, snapshot.now_s), ()
    try:
        plain = kube.read_plain_pod(pod.namespace, pod.name)
        events = kube.list_events(pod.namespace, pod.name)
    except (Forbidden, NotFound) as e:
        why = f"Events and the scheduler's words are left out: {on_a_line(str(e))}"
        return Story(), (Problem(where="events", why=why),)
    return story_of(plain, events, snapshot.now_s), ()


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
