"""What a pod of some size would find: the engine is asked, and nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from hami_node.engine.fleet.fleet import Placed
from hami_node.engine.place import PodRequest
from hami_node.errors import WireError
from hami_node.inspection.cluster import shown_cores
from hami_node.inspection.picture import Listed, Picture
from hami_node.inspection.pod import NodeVerdict, PodView, explain_pod
from hami_node.model import Container, Pod
from hami_node.text import cut
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.view.http.query import Query
from hami_node.view.live_picture import LivePicture
from hami_node.view.rows import MAX_TEXT

MOST_PODS: Final = 50
"""Equal pods that are tried one after another."""
SHOWN_NODES: Final = 20
SHOWN_REASONS: Final = 20
MOST: Final = 10_000_000
_KEY: Final = "\n what-if"
"""No pod has such a name."""

Json = dict[str, Any]


def options(picture: LivePicture) -> Json:
    """What can be asked for."""
    return {
        "vendors": [
            {
                "title": vendor.title,
                "count": vendor.counted[0],
                "memory": vendor.memory,
                "cores": vendor.cores,
                "factor": max(vendor.memory_factor, 1),
            }
            for vendor in picture.basis.vendors
        ]
    }


def what_if(picture: LivePicture, query: Query, now_s: float, scheduler_name: str) -> Json:
    """Where a pod of this size would go, how many of them, and why it would not.

    Raises:
        WireError: a parameter is wrong.
    """
    pod = _pod(picture.basis.vendors, query, scheduler_name)
    with picture.lock, picture.picture() as seen:
        listed = Listed(nodes=(), pods=(pod,))
        view = explain_pod(listed, pod, picture.basis, now_s, scheduler_name, seen)
        found: Json = {
            "asks": cut(view.asks, MAX_TEXT),
            "summary": cut(view.summary, 2 * MAX_TEXT),
            "cures": [cut(cure, MAX_TEXT) for cure in view.cures],
            **verdicts(view),
        }
        try:
            request = request_of(pod, picture.basis.vendors)
        except WireError:
            return found  # the summary says so
        if not request.is_empty:
            found["places"] = _places(seen, request, pod)
            found["most"] = MOST_PODS
    return found


def _pod(vendors: Iterable[VendorProtocol], query: Query, scheduler_name: str) -> Pod:
    by_count = {vendor.counted[0]: vendor for vendor in vendors}
    vendor = by_count[query.one_of("resource", tuple(by_count))]
    limits = {vendor.counted[0]: str(query.number("count", 1, MOST))}
    memory_mib = query.number("memory", 0, MOST)
    if vendor.memory and memory_mib:
        factor = max(vendor.memory_factor, 1)
        limits[vendor.memory] = str(-(-memory_mib // factor))
    cores = query.number("cores", 0, MOST)
    if vendor.cores and cores:
        limits[vendor.cores] = str(cores)
    return Pod(
        uid="what-if",
        namespace=query.name("ns") or "default",
        name="what-if",
        scheduler_name=scheduler_name,
        containers=(Container(name="main", limits=limits),),
    )


def _places(picture: Picture, request: PodRequest, pod: Pod) -> list[Json]:
    """Where the first pods of this kind would go, one after another; each counts for the next."""
    fleet, places = picture.fleet, list[Json]()
    ready = [name for name in picture.offers if picture.is_ready(name)]
    keys = []
    try:
        for number in range(MOST_PODS):
            answer = fleet.place(request, ready)
            if not isinstance(answer, Placed):
                break
            cards = picture.cards_of(answer.node)
            grants = [grant for grants in answer.grants.containers for grant in grants]
            places.append(
                {
                    "node": answer.node,
                    "cards": [
                        {
                            "index": cards[grant.uuid].device.index,
                            "memory": grant.memory_mib,
                            "cores": shown_cores(grant.vendor, grant.cores),
                        }
                        for grant in grants
                    ],
                }
            )
            keys.append(f"{_KEY} {number}")
            fleet.add_pod(keys[-1], pod.namespace, answer.node, answer.grants)
    finally:
        for key in keys:
            fleet.remove_pod(key)
    return places


def verdicts(view: PodView) -> Json:
    """The nodes' verdicts: how many of each, the best nodes, and the reasons by their number."""
    reasons = Counter(_reason(node) for node in view.nodes if node.why)
    return {
        "counts": Counter(node.verdict.value for node in view.nodes),
        "others": view.other_nodes,
        "nodes": [_verdict(node) for node in view.nodes[:SHOWN_NODES]],
        "reasons": [
            {"why": why, "nodes": count} for why, count in reasons.most_common(SHOWN_REASONS)
        ],
    }


def _reason(node: NodeVerdict) -> str:
    return cut(node.why, MAX_TEXT)


def _verdict(node: NodeVerdict) -> Json:
    best = node.best
    return {
        "node": node.node,
        "verdict": node.verdict.value,
        "why": _reason(node),
        "best": best
        and {
            "index": best.index,
            "model": cut(best.model, MAX_TEXT),
            "slots": best.slots_free,
            "memory": best.memory_free_mib,
            "cores": best.cores_free,
            "usable": best.is_usable,
        },
    }
