"""Whether there is room for a pod that shall hold more: on its cards, and in its quota."""

from __future__ import annotations

from collections.abc import Sequence

from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.resize import growth_objection, quota_objection
from hami_node.engine.usage import PodGrants, collapse
from hami_node.model import Pod
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.resizing import in_numbers, limits_of, no_room


def room_objection(
    fleet: Fleet,
    pod: Pod,
    change: tuple[PodGrants, PodGrants],
    vendors: Sequence[VendorProtocol],
    *,
    zero_is_limit: bool,
) -> str:
    """Why a pod that counts with the first of these grants can't have the second; "" if it can."""
    before, after = change
    usage = fleet.nodes[pod.node_name].usage
    objection = growth_objection(usage.without(pod.uid), before, after)
    if objection is not None:
        return no_room(objection)
    over = quota_objection(
        fleet.quotas.quota(pod.namespace),
        fleet.quota_charges(pod.uid),
        collapse(limits_of(pod, after, usage.cards, vendors)),
        zero_is_limit=zero_is_limit,
    )
    return "" if over is None else f"the quota of namespace {pod.namespace}: {in_numbers(over)}"
