"""Findings about nodes: served twice, by nobody, by the wrong plugin, locked. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from hami_node.cluster.objects import Workload
from hami_node.errors import WireError
from hami_node.migrate.found.findings import Finding, Level, about_nodes, caution
from hami_node.migrate.seen.parts import OPERATOR_PLUGIN_LABEL, OWN_LABEL, Maker
from hami_node.migrate.seen.picture import NodeState, Picture
from hami_node.text import some
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.mode import Mode
from hami_node.wire import names
from hami_node.wire.lock import decode_lock

STALE_LOCK_S: Final = 300
"""HAMi's schedulers take no notice of a lock that is older."""


def node_findings(picture: Picture) -> Iterator[Finding]:
    """All of them, the worst first."""
    yield from _served_twice(picture)
    yield from _served_by_nobody(picture)
    yield from _not_ready(picture)
    yield from _second_allocator(picture)
    yield from _will_be_served_twice(picture)
    yield from _splits(picture)
    yield from _modes(picture)
    yield from _left_behind(picture)
    yield from _locks(picture)
    yield from _allocating(picture)
    yield from _unreserved(picture)


def _names(picture: Picture, test: Callable[[NodeState], bool]) -> list[str]:
    return [state.name for state in picture.nodes if test(state)]


def _served_twice(picture: Picture) -> Iterable[Finding]:
    pairs: dict[tuple[Maker, ...], list[str]] = {}
    for state in picture.nodes:
        if len(state.served_by) > 1:
            pairs.setdefault(tuple(sorted(state.served_by)), []).append(state.name)
    for makers, found in sorted(pairs.items()):
        both = " and ".join(makers)
        yield from about_nodes(
            Level.PROBLEM,
            found,
            f"served twice, by {both}: the plugin that registered last gets the pods, and the "
            "other's running pods lose their device IDs",
            _keep_one(picture, makers, found),
        )


def _keep_one(picture: Picture, makers: Sequence[Maker], found: Sequence[str]) -> str:
    if Maker.OURS in makers:
        return (
            f"take our label off: kubectl label node {found[0]} {OWN_LABEL}-; or keep the other "
            "plugin off, and then delete our pod there, so that it registers again"
        )
    if Maker.OPERATOR in makers:
        return f"kubectl label --overwrite node {found[0]} {OPERATOR_PLUGIN_LABEL}=false"
    others = [p.workload.shown for p in picture.nvidia_plugins]
    return f"keep one of the plugins off these nodes ({some(others)})"


def _served_by_nobody(picture: Picture) -> Iterable[Finding]:
    """Nodes that should be served: before anything is installed that is no problem."""
    is_any = any(state.served_by for state in picture.nodes)
    level = Level.PROBLEM if is_any or picture.daemon is not None else Level.CAUTION
    labelled = _names(picture, lambda one: not one.served_by and one.is_ours)
    yield from about_nodes(
        Level.PROBLEM,
        labelled,
        f"{OWN_LABEL}=true, but no pod of ours is there, and so nobody serves the node",
        _why_no_pod(picture.daemon.workload if picture.daemon else None),
    )
    kept_off = _names(picture, _is_kept_off)
    rest = _names(
        picture,
        lambda one: not one.served_by and not one.is_ours and one.name not in set(kept_off),
    )
    yield from about_nodes(
        level,
        rest,
        "the node has cards and no device plugin serves it: pods with cards never start there",
        f"serve it: kubectl label node {rest[0]} {OWN_LABEL}=true; or say that nobody is to: "
        f"{OWN_LABEL}=false"
        if rest
        else "",
    )


def _is_kept_off(state: NodeState) -> bool:
    """Nobody is to serve it: the label says so."""
    return not state.served_by and state.node.labels.get(OWN_LABEL) == "false"


def _why_no_pod(daemon: Workload | None) -> str:
    if daemon is None:
        return "install hami-node, or take the label off"
    where = f"kubectl -n {daemon.namespace}"
    return f"{where} describe {daemon.shown} says why (taints, an architecture, rights)"


def _not_ready(picture: Picture) -> Iterable[Finding]:
    found = [(state.name, pod) for state in picture.nodes for pod in state.unready]
    if found:
        namespace, _, name = found[0][1].partition("/")
        yield from about_nodes(
            Level.PROBLEM,
            [node for node, _ in found],
            f"the plugin's pod is not Ready ({some([pod for _, pod in found])})",
            f"kubectl -n {namespace} describe pod {name}; kubectl -n {namespace} logs {name}",
        )


def _second_allocator(picture: Picture) -> Iterable[Finding]:
    label = nvidia_names.LABEL_DRA_DRIVER
    yield from about_nodes(
        Level.PROBLEM,
        _names(picture, lambda one: bool(one.served_by) and one.node.labels.get(label) == "true"),
        f"{label}=true: NVIDIA's DRA driver gives out the same cards, unknown to us and to HAMi",
        f"serve these nodes by one of them only: {OWN_LABEL}=false, or the DRA driver off",
    )


def _will_be_served_twice(picture: Picture) -> Iterable[Finding]:
    """Both would run there: a pod is only missing by chance, such as a taint or a restart."""
    if picture.daemon is None:
        return
    both = {Maker.OURS, Maker.HAMI}
    yield from about_nodes(
        Level.PROBLEM,
        _names(picture, lambda one: len(one.served_by) < 2 and both <= set(one.wanted_by)),
        "HAMi's DaemonSet and ours both choose the node, by its labels",
        f"HAMi's DaemonSet must avoid {OWN_LABEL}=true: `hami-node migrate plan` has the command",
    )


def _splits(picture: Picture) -> Iterable[Finding]:
    if picture.daemon is None or picture.hami is None:
        return
    smaller = _names(
        picture,
        lambda one: (
            bool(one.served_by)
            and picture.ours.split_on(one.name) < picture.theirs.split_on(one.name)
        ),
    )
    yield from about_nodes(
        Level.PROBLEM,
        smaller,
        f"our deviceSplitCount ({picture.ours.split}) is smaller than HAMi's "
        f"({picture.theirs.split}): running pods hold slices that vanish in the hand-over",
        "give our configuration HAMi's number or more before the node is handed over",
    )


def _modes(picture: Picture) -> Iterable[Finding]:
    for mode, why, cure in (
        (
            Mode.MPS,
            "HAMi shares these cards by MPS, which we do not",
            "leave these nodes with HAMi, or drain them and share by slices",
        ),
        (
            Mode.MIG,
            "HAMi divides these cards by MIG",
            "leave them with HAMi at first; the way over is in docs/mig.md (drain 2.5 to 2.9)",
        ),
    ):
        found = _names(picture, lambda one, wanted=mode: one.mode == wanted)  # type: ignore[misc]
        yield from about_nodes(Level.CAUTION, found, why, cure)


def _left_behind(picture: Picture) -> Iterable[Finding]:
    """A daemon takes its mark along when it ends, unless it was killed."""
    found = _names(
        picture,
        lambda one: (
            bool(one.served_by)
            and Maker.OURS not in one.served_by
            and names.NODE_IDENTITY in one.node.annotations
        ),
    )
    is_used = picture.scheduler is not None and picture.scheduler.is_on
    yield from about_nodes(
        Level.PROBLEM if is_used else Level.CAUTION,
        found,
        f"{names.NODE_IDENTITY} was left by a daemon of ours that was killed: our extender binds "
        "pods there without the lock that HAMi's plugin needs to tell them apart",
        f"kubectl annotate node {found[0]} {names.NODE_IDENTITY}-" if found else "",
    )


def _locks(picture: Picture) -> Iterable[Finding]:
    """Young locks are the normal course of things, and pass."""
    held: list[str] = []
    stale: list[str] = []
    for state in picture.nodes:
        if not state.lock:
            continue
        try:
            time_s = decode_lock(state.lock).time_s
        except WireError:
            time_s = None
        age_s = STALE_LOCK_S if time_s is None else picture.listed.now_s - time_s
        (held if age_s < STALE_LOCK_S else stale).append(state.name)
    yield from about_nodes(
        Level.CAUTION,
        held,
        "a pod is being given its cards (node lock)",
        "wait until the lock is gone before you hand the node over",
    )
    yield from about_nodes(
        Level.PROBLEM,
        stale,
        "the node lock hami.io/mutex.lock is older than 5 minutes, or unreadable",
        f"if no pod there is `allocating`: kubectl annotate node {stale[0]} hami.io/mutex.lock-"
        if stale
        else "",
    )


def _allocating(picture: Picture) -> Iterable[Finding]:
    pods = [key for state in picture.nodes for key in state.allocating]
    if pods:
        yield caution(
            f"pods {some(pods)}",
            "bind-phase allocating: bound, and not yet served by the node's plugin",
            "wait until there is none on a node before you hand it over",
        )


def _unreserved(picture: Picture) -> Iterable[Finding]:
    found = _names(
        picture,
        lambda one: (
            bool(one.unreserved)
            and bool({Maker.OPERATOR, Maker.NVIDIA} & set(one.served_by))
            and Maker.OURS not in one.served_by
        ),
    )
    yield from about_nodes(
        Level.CAUTION,
        found,
        "running pods have whole cards from NVIDIA's plugin",
        "drain the node before you hand it over, or let them end: their cards stay closed",
    )
