"""Which grants of a container that was served before may go beyond what its limits ask for."""

from __future__ import annotations

from collections.abc import Mapping

from hami_node.engine.resize import growth_objection, with_container
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Uuid
from hami_node.node.identity.candidate import Candidate
from hami_node.wire import names
from hami_node.wire.resize import decode_approval, decode_slot


def approved_grants(
    candidate: Candidate, cards: Mapping[Uuid, DeviceUsage], own: PodGrants
) -> ContainerGrants:
    """What the container was resized to; () for one that was not.

    The ledger's note is the proof. Where the ledger was lost, the pod's approval is one as far as
    the cards have room beside what others hold: it may be forged.

    Args:
        candidate: the container.
        cards: with what the containers of other pods hold.
        own: what those of its pod hold.
    """
    if candidate.is_resized:
        return candidate.grants
    pod, vendor = candidate.pod, candidate.vendor
    approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
    text = "" if approval is None else approval.grants.get(candidate.container.name, "")
    try:
        grants = decode_slot(text, names.POD_RESIZE_APPROVED, vendor.cards)
    except WireError:
        return ()
    nothing = PodGrants(containers=((),))
    held = with_container(own, pod.containers.index(candidate.container), grants)
    return () if growth_objection(cards, nothing, held) is not None else grants
