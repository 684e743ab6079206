"""What a request to resize a running container means for the cards that it holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from hami_node.engine.filters import WHOLE_CARD, Reason
from hami_node.engine.objection import Amounts, Doubt, Objection
from hami_node.engine.resize import NewAmounts, with_container
from hami_node.engine.usage import DeviceUsage, PodGrants, larger_of
from hami_node.errors import WireError
from hami_node.model import ContainerGrants, ContainerKind, Grant, Pod, Uuid
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.quotas import maximum_in
from hami_node.wire.reservation import counts_of
from hami_node.wire.resize import (
    Outcome,
    ResizeRequest,
    decode_approval,
    decode_state,
    is_about,
)
from hami_node.wire.slots import slot_positions

_MEANINGS: Final[Mapping[StrEnum, str]] = {
    Doubt.UNKNOWN_CARD: "is not offered by the node now",
    Reason.NOT_HEALTHY: "is unhealthy",
    Reason.TOO_LITTLE_MEMORY: "has too little free memory",
    Reason.TOO_FEW_CORES: "has too few free cores",
    Reason.NOT_EXCLUSIVE: "is used by others, too, and all of its cores are asked for",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resizing:
    """The new grants of a pod's containers, all of one vendor."""

    vendor: VendorProtocol
    grants: Mapping[str, ContainerGrants]

    def beside(self, pod: Pod, held: PodGrants) -> PodGrants | None:
        """The larger of these and what the pod holds; None where that is not its containers'."""
        if len(held.containers) != len(pod.containers):
            return None
        for index, container in enumerate(pod.containers):
            new = self.grants.get(container.name, ())
            held = with_container(held, index, larger_of(held.containers[index], new))
        return held


def resizing_of(pod: Pod, request: ResizeRequest, vendors: Sequence[VendorProtocol]) -> Resizing:
    """What the request means for the containers of a pod that runs.

    Raises:
        WireError: a container can't be resized like that; the text says which and why.
    """
    found: dict[str, ContainerGrants] = {}
    owner: VendorProtocol | None = None
    for name, amounts in request.containers.items():
        vendor, held = _held(pod, name, vendors)
        if owner not in (None, vendor):
            raise WireError(names.POD_RESIZE, name, "one request is for the cards of one vendor")
        owner = vendor
        found[name] = _new_amounts(vendor, name, amounts).of(held)
    if owner is None:
        raise WireError(names.POD_RESIZE, "", "names no container")
    return Resizing(vendor=owner, grants=found)


def _held(
    pod: Pod, name: str, vendors: Sequence[VendorProtocol]
) -> tuple[VendorProtocol, ContainerGrants]:
    container = next((item for item in pod.containers if item.name == name), None)
    if container is None:
        raise WireError(names.POD_RESIZE, name, "the pod has no such container")
    if container.kind is ContainerKind.INIT:
        raise WireError(names.POD_RESIZE, name, "an init container has ended")
    for vendor in vendors:
        held = vendor.held_by(pod).by_container.get(name, ())
        if not held:
            continue
        if vendor.resize_words is None:
            raise WireError(names.POD_RESIZE, name, f"{vendor.title} can't be resized")
        if any(grant.part is not None for grant in held):
            raise WireError(names.POD_RESIZE, name, "a part of a divided card has a fixed size")
        if not all(grant.memory_mib for grant in held):
            raise WireError(names.POD_RESIZE, name, "it has no memory limit that could change")
        return vendor, held
    raise WireError(names.POD_RESIZE, name, "the container holds no cards")


def _new_amounts(vendor: VendorProtocol, name: str, amounts: Mapping[str, int]) -> NewAmounts:
    memory, cores = vendor.resize_words or ("", "")
    unknown = sorted(amounts.keys() - {memory, cores})
    if unknown:
        raise WireError(names.POD_RESIZE, ", ".join(unknown), f"write {memory} and {cores} only")
    if amounts.get(cores, 0) > WHOLE_CARD:
        raise WireError(names.POD_RESIZE, name, f"{cores} is percent of one card: 100 at most")
    return NewAmounts(memory_mib=amounts.get(memory), cores=amounts.get(cores))


def is_undecided(pod: Pod) -> bool:
    """True for a pod with a request that was neither approved nor refused."""
    text = pod.annotations.get(names.POD_RESIZE)
    if text is None:
        return False
    approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
    if approval is not None and is_about(approval.id, text):
        return False
    state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
    return state is None or state.state is not Outcome.REFUSED or not is_about(state.id, text)


def is_ready(pod: Pod, vendors: Sequence[VendorProtocol]) -> bool:
    """True for a pod whose undecided request can be decided: all its containers are served."""
    if not is_undecided(pod) or not pod.node_name or pod.is_being_deleted:
        return False
    if pod.phase != "Running":
        return False
    return not any(vendor.held_by(pod).is_any_waiting for vendor in vendors)


def is_withdrawn(pod: Pod) -> bool:
    """True for a pod whose refused request was taken back: the same may be asked again."""
    if names.POD_RESIZE in pod.annotations or names.POD_RESIZE_STATE not in pod.annotations:
        return False
    state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
    return state is not None and state.state is Outcome.REFUSED


def with_larger(pod: Pod, wanted: Resizing) -> str | None:
    """The pod's grants as written, raised to what is larger; None where that is unclear."""
    held = wanted.vendor.held_by(pod).by_container
    larger = {name: larger_of(held.get(name, ()), new) for name, new in wanted.grants.items()}
    return with_slots(wanted.vendor, pod, larger)


def with_slots(
    vendor: VendorProtocol, pod: Pod, grants: Mapping[str, ContainerGrants]
) -> str | None:
    """The pod's grants as written, with the slots of these containers replaced.

    All other slots stay to the byte. None where a container's slot can't be told.
    """
    keys = vendor.keys.grants
    text = pod.annotations.get(keys.allocated, "")
    try:
        written = decode_grants(text, keys.allocated, keys.vendor)
    except WireError:
        return None
    positions = slot_positions(pod, counts_of(pod, vendor.counted_in(pod)), written)
    if not grants.keys() <= positions.keys():
        return None
    slots = text.split(";")
    for name, held in grants.items():
        slots[positions[name]] = encode_grants([held]).removesuffix(";")
    return ";".join(slots)


def limits_of(
    pod: Pod,
    grants: PodGrants,
    cards: Mapping[Uuid, DeviceUsage],
    vendors: Sequence[VendorProtocol],
) -> PodGrants:
    """The same grants with at least what the containers' limits ask for: what a quota counts."""
    if len(grants.containers) != len(pod.containers):
        return grants
    held = tuple(
        tuple(_asked(pod, index, grant, cards, vendors) for grant in slot)
        for index, slot in enumerate(grants.containers)
    )
    return replace(grants, containers=held)


def _asked(
    pod: Pod,
    index: int,
    grant: Grant,
    cards: Mapping[Uuid, DeviceUsage],
    vendors: Sequence[VendorProtocol],
) -> Grant:
    vendor = next((item for item in vendors if item.cards is grant.vendor), None)
    card = cards.get(grant.uuid)
    if vendor is None or vendor.resize_words is None or card is None or grant.part is not None:
        return grant
    try:
        ask = vendor.ask_of(pod.containers[index])
    except WireError:
        return grant
    if ask is None:
        return grant
    return replace(
        grant,
        memory_mib=max(grant.memory_mib, ask.memory_mib_on(card.device.memory_mib)),
        cores=max(grant.cores, min(ask.cores, WHOLE_CARD)),
    )


def above_maximum(pod: Pod, wanted: Resizing, limit_ranges: Sequence[Mapping[str, object]]) -> str:
    """Where the pod would grow beyond what LimitRanges of its namespace allow; "" for nowhere."""
    vendor, held = wanted.vendor, wanted.vendor.held_by(pod).by_container
    lasting = [one.name for one in pod.containers if one.kind is not ContainerKind.INIT]
    had = [_of_a_card(held.get(name, ())) for name in lasting]
    wants = [_of_a_card(wanted.grants.get(name, held.get(name, ()))) for name in lasting]
    for at, resource, factor, unit in (
        (0, vendor.memory, vendor.memory_factor, "MiB"),
        (1, vendor.cores, 1, "%"),
    ):
        pairs = [(before[at], after[at]) for before, after in zip(had, wants, strict=True)]
        whole = (sum(before for before, _ in pairs), sum(after for _, after in pairs))
        for kind, changes in (("Container", pairs), ("Pod", [whole])):
            most = maximum_in(limit_ranges, kind, resource)
            grown = max((after for before, after in changes if after > before), default=0)
            if most is not None and grown > most * factor:
                return (
                    f"a LimitRange of namespace {pod.namespace} allows a {kind.lower()} "
                    f"{most * factor} {unit}, it would have {grown} {unit}"
                )
    return ""


def _of_a_card(grants: ContainerGrants) -> tuple[int, int]:
    """MiB and percent of each card, as a container's limits ask for them."""
    return (
        max((grant.memory_mib for grant in grants), default=0),
        max((grant.cores for grant in grants), default=0),
    )


def no_room(objection: Objection) -> str:
    """Why there is no room, as a sentence without its end."""
    card = "" if objection.index is None else f"card {objection.index} "
    why = f"{card}({objection.uuid}) {_MEANINGS.get(objection.reason, objection.reason)}"
    if objection.detail:
        why += f" ({objection.detail})"
    if objection.amounts is not None and objection.reason is not Reason.NOT_EXCLUSIVE:
        why += f": {in_numbers(objection.amounts)}"
    return why


def in_numbers(amounts: Amounts) -> str:
    """`8000 MiB are left for this pod, it would hold 12000 MiB`."""
    unit = "%" if amounts.unit == "percent" else amounts.unit
    return f"{amounts.left} {unit} are left for this pod, it would hold {amounts.asked} {unit}"


def resize_in_words(pod: Pod) -> str:
    """How far the pod's last request is, as a sentence; "" for a pod without one."""
    state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
    if is_undecided(pod):
        return "asked; the extender has not decided yet"
    if state is not None:
        return f"{state.state}: {state.why}" if state.why else str(state.state)
    approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
    return "" if approval is None else "approved; the node has not carried it out yet"
