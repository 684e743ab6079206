"""What each of people's commands shows."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from hami_node.cli.plugin import tables
from hami_node.cli.plugin.look import Look
from hami_node.cli.show.documents import plain_cluster
from hami_node.cli.show.pod_tables import print_pod
from hami_node.cli.show.screen import Screen
from hami_node.cli.show.tables import show_cluster
from hami_node.cli.snapshots import Snapshot, cluster_view, pod_view
from hami_node.clock import Deadline
from hami_node.cluster.daemon_pages import daemons_in, read_pages
from hami_node.errors import HamiError
from hami_node.inspection.selectors import selector_of
from hami_node.inspection.top import TopView, of_nodes, of_pods, top_of
from hami_node.inspection.usage import Usage
from hami_node.inspection.views import ClusterView

if TYPE_CHECKING:
    from hami_node.cluster.client import KubeClient

USE_S: Final = 8.0
"""For all daemons' pages together."""
_OF_NODES: Final = ("nodes", "cards", "problems", "totals")
_NO_PODS: Final = "the file has no pods: who holds what is not known"


def show_everything(look: Look, node_name: str | None) -> None:
    """The whole cluster, or a node, in all tables."""

    def shows(snapshot: Snapshot, _: KubeClient | None, screen: Screen) -> object:
        view = cluster_view(snapshot, waiting=() if node_name else snapshot.listed.pods)
        if look.is_document:
            return plain_cluster(view)
        show_cluster(view, screen, has_pods=snapshot.has_pods)
        return None

    look.show(shows, node_name=node_name)


def show_nodes_of(look: Look, names: Collection[str]) -> None:
    """Nodes, a line for each; named ones with their cards and holders."""
    selects = selector_of(look.selector)

    def shows(snapshot: Snapshot, _: KubeClient | None, screen: Screen) -> object:
        labels = {node.name: node.labels for node in snapshot.listed.nodes}
        _refuse_absent(names, labels, "node")
        is_selected = bool(names or look.selector)
        view = cluster_view(snapshot, has_totals=not is_selected)
        wanted = frozenset(
            name for name in labels if (not names or name in names) and selects(labels[name])
        )
        view = of_nodes(view, wanted.__contains__)
        if look.is_document:
            document = plain_cluster(view)
            kept = (*_OF_NODES, "holders") if names else _OF_NODES
            return {key: value for key, value in document.items() if key in kept}
        tables.show_nodes(view, screen, has_details=bool(names), is_wide=look.is_wide)
        _say_without_pods(snapshot, screen)
        return None

    look.show(shows)


def show_pods_of(look: Look, names: Collection[str]) -> None:
    """Who holds what, and who waits and why."""
    selects = selector_of(look.selector)

    def shows(snapshot: Snapshot, _: KubeClient | None, screen: Screen) -> object:
        view = _pods_of(look, snapshot, selects, names)
        if look.is_document:
            document = plain_cluster(view)
            return {key: document[key] for key in ("holders", "waiting", "problems")}
        if snapshot.has_pods:
            tables.show_pods(view, screen, where=look.where)
        _say_without_pods(snapshot, screen)
        return None

    look.show(shows, is_partial_enough=True)


def _pods_of(
    look: Look,
    snapshot: Snapshot,
    selects: Callable[[dict[str, str]], bool],
    names: Collection[str] = (),
) -> ClusterView:
    wanted = {
        (pod.namespace, pod.name)
        for pod in snapshot.listed.pods
        if look.has_namespace(pod.namespace)
        and (not names or pod.name in names)
        and selects(dict(pod.labels))
    }
    if snapshot.has_pods:
        _refuse_absent(names, {name for _, name in wanted}, "pod", look.where)
    waiting = [pod for pod in snapshot.listed.pods if (pod.namespace, pod.name) in wanted]
    view = cluster_view(snapshot, waiting=waiting, has_totals=False)
    view = of_pods(view, lambda *key: key in wanted)
    keeps_others = snapshot.is_partial
    problems = tuple(
        item for item in view.problems if keeps_others or not item.where.startswith("node ")
    )
    return replace(view, problems=problems)


def show_why(look: Look, name: str) -> None:
    """A pod explained."""
    namespace, slash, pod = name.rpartition("/")
    if not pod or "/" in namespace or (slash and not namespace):
        raise click.UsageError(f"{name!r} is no pod; use NAMESPACE/POD")
    if namespace and look.namespace not in ("", namespace) and look.has_own_namespace:
        raise click.UsageError(f"{name!r} is not in namespace {look.namespace}: leave out -n")
    namespace = namespace or look.namespace
    at = replace(look, namespace=namespace, is_all=False)

    def shows(snapshot: Snapshot, kube: KubeClient | None, screen: Screen) -> object:
        key = f"{namespace}/{pod}" if namespace else _only_key(snapshot, pod)
        view = pod_view(snapshot, key, kube)
        if not look.is_document:
            print_pod(view, screen)
        return view

    at.show(shows, is_partial_enough=True)


def _only_key(snapshot: Snapshot, name: str) -> str:
    """The only pod of that name in a file, which has no current namespace."""
    keys = [pod.key for pod in snapshot.listed.pods if pod.name == name]
    if len(keys) != 1:
        found = f"the file has {', '.join(keys[:3])}: name one" if keys else "it is not in the file"
        raise HamiError(f"pod {name}: {found}")
    return keys[0]


def show_top_of(look: Look, parts: Collection[str]) -> None:
    """Cards and pods, by granted and used."""
    selects = selector_of(look.selector)

    def shows(snapshot: Snapshot, kube: KubeClient | None, screen: Screen) -> object:
        wanted = frozenset(
            node.name for node in snapshot.listed.nodes if selects(dict(node.labels))
        )
        view = of_nodes(cluster_view(snapshot, has_totals=False), wanted.__contains__)
        usage = _usage_of(look, snapshot, kube, frozenset(node.name for node in view.nodes))
        view = of_pods(view, lambda namespace, _: look.has_namespace(namespace))
        top = top_of(view, usage)
        if look.is_document:
            return _document(top, parts)
        shown = [part for part in parts if part != "pods" or snapshot.has_pods]
        tables.show_top(top, screen, parts=shown, where=look.where)
        _say_without_pods(snapshot, screen)
        return None

    look.show(shows)


def _document(top: TopView, parts: Collection[str]) -> dict[str, object]:
    found: dict[str, object] = {"cards": top.cards, "pods": top.pods}
    return {part: found[part] for part in found if part in parts} | {"note": top.note}


def _usage_of(
    look: Look, snapshot: Snapshot, kube: KubeClient | None, nodes: frozenset[str]
) -> Usage:
    """What containers and cards of these nodes use."""
    if kube is None:
        return Usage(note="a file does not say what is used")
    daemons = daemons_in(snapshot.listed.pods, look.daemon_namespace, nodes)
    deadline = Deadline.after(USE_S, look.programs.clock().monotonic)
    pages = read_pages(kube.read_pod_metrics, daemons, deadline)
    usage = Usage(note=pages.note)
    for node, page in pages.by_node.items():
        usage.add_page(node, page)
    if pages.unread:
        node, why = min(pages.unread.items())
        more = f" and {len(pages.unread) - 1} more" if len(pages.unread) > 1 else ""
        said = f"what is used on {node}{more} can't be read: {why}"
        usage.note = "; ".join(filter(None, (usage.note, said)))
    return usage


def _refuse_absent(
    names: Collection[str], known: Collection[str], what: str, where: str = ""
) -> None:
    absent = sorted(name for name in names if name not in known)
    if absent:
        which = " ".join(filter(None, (what, ", ".join(absent[:5]), where)))
        raise HamiError(f"{which} does not exist")


def _say_without_pods(snapshot: Snapshot, screen: Screen) -> None:
    if not snapshot.has_pods:
        screen.line(_NO_PODS)
