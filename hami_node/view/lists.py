"""The lists of the page: a window of each, filtered and sorted here, so that little is sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from hami_node.engine.place import PodRequest
from hami_node.errors import WireError
from hami_node.inspection.views import Problem
from hami_node.inspection.waiting import waiting_in
from hami_node.model import Pod
from hami_node.text import cut
from hami_node.vendors.request import request_of
from hami_node.view.http.query import Query, Window
from hami_node.view.live_picture import LivePicture
from hami_node.view.rows import MAX_TEXT, NodeRow

MAX_NAMESPACES: Final = 1000
MAX_REASONS: Final = 8
"""Different requests explained for one window: each looks at every node."""
MAX_PODS: Final = 20
"""Pods found by a search."""
MIB_PER_GIB: Final = 1024

Json = dict[str, Any]
T = TypeVar("T")

_FILTERS: Final[Mapping[str, Callable[[NodeRow, float], bool]]] = {
    "sick": lambda row, _: row.sick > 0,
    "late": lambda row, now_s: row.is_late(now_s),
    "problems": lambda row, _: bool(row.problems),
    "not-ready": lambda row, _: not row.is_ready,
    "free": lambda row, _: bool(row.rooms),
    "held": lambda row, _: row.holders > 0,
}
_SORTS: Final[Mapping[str, Callable[[NodeRow], Any]]] = {
    "name": lambda row: row.name,
    "free": lambda row: (-max((room.memory_mib for room in row.rooms), default=-1), row.name),
    "used": lambda row: (-(row.used_mib / row.memory_mib if row.memory_mib else -1), row.name),
    "problems": lambda row: (-len(row.problems), row.name),
}


def nodes_list(picture: LivePicture, query: Query, now_s: float) -> Json:
    """Rows of nodes. Times and lateness are beside them: a row stays equal while they pass."""
    words, namespace, window = query.words("q"), query.name("ns"), query.window()
    wanted = query.one_of("only", ("", *_FILTERS))
    order = _SORTS[query.one_of("sort", tuple(_SORTS))]
    with picture.lock:
        rows: Iterable[NodeRow] = tuple(picture.rows.values())
    if wanted:
        rows = (row for row in rows if _FILTERS[wanted](row, now_s))
    if namespace:
        rows = (row for row in rows if namespace in row.namespaces)
    found = sorted((row for row in rows if all(word in row.words for word in words)), key=order)
    shown = found[window.offset : window.end]
    return {
        "total": len(found),
        "offset": window.offset,
        "rows": [msgspec.Raw(row.wire) for row in shown],
        "reported": [row.reported_s for row in shown],
        "late": [row.is_late(now_s) for row in shown],
    }


def pods_list(picture: LivePicture, query: Query) -> Json:
    """The first pods whose name has these words; for a search."""
    words, namespace = query.words("q"), query.name("ns")
    found: list[Json] = []
    total = 0
    with picture.lock:
        for pod in picture.pods():
            if namespace and pod.namespace != namespace:
                continue
            if all(word in pod.key.lower() for word in words):
                total += 1
                if len(found) < MAX_PODS:
                    found.append({"pod": pod.key, "node": pod.node_name, "phase": pod.phase})
    return {"total": total, "rows": found}


def waiting_list(
    picture: LivePicture,
    query: Query,
    now_s: float,
    scheduler_name: str,
    reasons: dict[PodRequest, str],
) -> Json:
    """Pods that wait for cards, those that wait longest first; reasons as far as affordable."""
    words, namespace, window = query.words("q"), query.name("ns"), query.window()
    with picture.lock:
        pods = [
            pod
            for pod in picture.waiting.values()
            if (not namespace or pod.namespace == namespace)
            and all(word in pod.key.lower() for word in words)
        ]
        pods.sort(key=lambda pod: (pod.creation_time or "9", pod.key))
        shown = pods[window.offset : window.end]
        explained, later = _affordable(shown, picture, reasons)
        with picture.picture() as seen:
            views = waiting_in(seen, explained, now_s, scheduler_name, reasons)
    by_key = {f"{view.namespace}/{view.pod}": view for view in views}
    rows = []
    for pod in shown:
        view = by_key.get(pod.key)
        row: Json = {"pod": pod.key, "created": pod.creation_time, "is_known": view is not None}
        if view is not None:
            row["asks"], row["reserved"] = cut(view.asks, MAX_TEXT), view.reserved_on
            row["why"] = cut(view.why, 2 * MAX_TEXT)
        rows.append(row)
    return {"total": len(pods), "offset": window.offset, "rows": rows, "later": later}


def _affordable(
    pods: Sequence[Pod], picture: LivePicture, reasons: Mapping[PodRequest, str]
) -> tuple[list[Pod], int]:
    """The pods whose reasons are known or few enough to be found now; and how many are not."""
    new: set[PodRequest] = set()
    chosen: list[Pod] = []
    for pod in pods:
        try:
            request = request_of(pod, picture.basis.vendors)
        except WireError:
            chosen.append(pod)
            continue
        if request not in reasons and request not in new:
            if len(new) >= MAX_REASONS:
                continue
            new.add(request)
        chosen.append(pod)
    return chosen, len(pods) - len(chosen)


def problems_list(picture: LivePicture, query: Query, others: Iterable[Problem]) -> Json:
    """Published data that is invalid, closed cards, and what pods hold that does not exist."""
    words = query.words("q")
    found: list[tuple[str, Problem]] = [("", problem) for problem in others]
    with picture.lock:
        for name in sorted(picture.rows):
            found += [(name, problem) for problem in picture.rows[name].problems]
        found += [("", problem) for problem in picture.lost()]
    rows = [
        {"node": node, "where": cut(problem.where, MAX_TEXT), "why": cut(problem.why, MAX_TEXT)}
        for node, problem in found
        if all(word in f"{problem.where} {problem.why}".lower() for word in words)
    ]
    return _page(rows, query.window())


def namespaces_list(picture: LivePicture) -> Json:
    """Namespaces whose pods hold or want cards, with how many of them."""
    with picture.lock:
        counts = Counter(pod.namespace for pod in picture.pods() if not pod.is_over)
    names = sorted(counts)[:MAX_NAMESPACES]
    return {"total": len(counts), "rows": [{"name": name, "pods": counts[name]} for name in names]}


def rooms_list(picture: LivePicture) -> Json:
    """How many pods of a size would fit, each on one card and without a share of cores.

    Counted card by card; what a namespace's quota or a pod's wishes forbid is not looked at.
    """
    with picture.lock:
        rooms = Counter(room for row in picture.rows.values() for room in row.rooms)
        largest = max(
            ((room.memory_mib, row.name) for row in picture.rows.values() for room in row.rooms),
            default=(0, ""),
        )
    free_mib = sum(room.memory_mib * count for room, count in rooms.items())
    sizes, size_mib = [], MIB_PER_GIB
    while size_mib <= largest[0]:
        pods = sum(min(r.memory_mib // size_mib, r.slots) * n for r, n in rooms.items())
        cards = sum(count for room, count in rooms.items() if room.memory_mib >= size_mib)
        sizes.append({"mib": size_mib, "pods": pods, "cards": cards})
        size_mib *= 2
    return {
        "free": free_mib,
        "cards": sum(rooms.values()),
        "largest": {"mib": largest[0], "node": largest[1]},
        "sizes": sizes,
    }


def _page(rows: Sequence[T], window: Window) -> Json:
    return {
        "total": len(rows),
        "offset": window.offset,
        "rows": rows[window.offset : window.end],
    }
