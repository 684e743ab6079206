"""AWS Neuron: which devices and cores serve an ask, by the shape of the instance type.

The rules are AWS's own (scheduler extension): several devices are a run of neighbours, in numbers
without a gap; Trainium takes 1, 4, 8 or 16 devices from a start that is a multiple of their number.
The cores of one device are a bit mask; a container gets a run of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from hami_node.engine.card_rules import Placement
from hami_node.engine.filters import (
    Filter,
    FitContext,
    Reason,
    Rejection,
    first_failing,
    has_slot,
    has_uuid,
    is_healthy,
    is_idle_if_mutex,
    is_not_cordoned,
)
from hami_node.engine.usage import DeviceUsage, Taken
from hami_node.model import Ask, Device
from hami_node.vendors.neuron import names

TRAINIUM_COUNTS: Final = (1, 4, 8, 16)
"""Devices that one Trainium container may have: one, a row, two rows, the whole 4 x 4 torus.

Trainium 3 is wired all to all and AWS names no counts for it; the same ones are kept.
"""

TRAINIUM_CORES: Final = (2, 4, 8)
"""Numbers of logical cores that a device of a Trainium instance may have."""

INSTANCE_TYPE: Final = re.compile(r"(?:ml\.)?(inf|trn)\d", re.IGNORECASE)
"""SageMaker writes `ml.` before the type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronDetail:
    """`Device.detail`: the EC2 instance type of the device's node; "" when it is not known."""

    instance_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronAsk:
    """`Ask.detail`: whole devices are requested, with all cores of each, however many."""


WHOLE_DEVICES: Final = NeuronAsk()
"""The detail of an ask for devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeuronGeneration:
    """What differs between the generations only for Neuron.

    Attributes:
        is_odd_rejected: core requests that are neither 1 nor a multiple of a device's are refused;
            else they are rounded down to whole devices, and 0 is read as 1.
        numa_counts_devices: the total beside NumaNotFit is the number of devices; else it is 1.
    """

    is_odd_rejected: bool
    numa_counts_devices: bool


GENERATIONS: Final = {
    "2.8": NeuronGeneration(is_odd_rejected=False, numa_counts_devices=False),
    "2.10": NeuronGeneration(is_odd_rejected=True, numa_counts_devices=True),
}
"""By the value of the setting `compat`."""


class Family(StrEnum):
    """How the devices of an instance type are wired."""

    INFERENTIA = "inf"
    TRAINIUM = "trn"


class NeuronUnit(StrEnum):
    """What the numbers in a pod's list of Neuron ids are."""

    DEVICE = "device"
    CORE = "core"


def family_of(instance_type: str) -> Family | None:
    """The family of an EC2 instance type; None when it is missing or of another kind."""
    match = INSTANCE_TYPE.match(instance_type)
    return Family(match[1].lower()) if match else None


def instance_type_of(device: Device) -> str:
    """The EC2 instance type of a device's node; "" when it is not known."""
    return device.detail.instance_type if isinstance(device.detail, NeuronDetail) else ""


def is_valid_set(indexes: Sequence[int], family: Family | None) -> bool:
    """True when these devices, ascending, may work together: a single device, or an allowed run."""
    if len(indexes) == 1:
        return True
    if not indexes or family is None:
        return False
    if any(after != before + 1 for before, after in pairwise(indexes)):
        return False
    if family is Family.TRAINIUM:
        return len(indexes) in TRAINIUM_COUNTS and indexes[0] % len(indexes) == 0
    return True


def count_problem(devices: int, family: Family | None) -> str:
    """Why a container can't have so many devices of this family, for people; "" when it can.

    Source: document 001, the 2D torus; AWS's scheduler extension.
    """
    if devices == 1 or family is Family.INFERENTIA:
        return ""
    if family is None:
        return (
            f"more than one device requires a node whose label {names.INSTANCE_TYPE} names "
            f"Inferentia (inf...) or Trainium (trn...), and {devices} are requested"
        )
    if devices in TRAINIUM_COUNTS:
        return ""
    counts = in_words(TRAINIUM_COUNTS)
    return f"Trainium allows {counts} devices per container, and {devices} are requested"


def in_words(numbers: Sequence[int]) -> str:
    """`1, 4, 8 or 16`; every number once."""
    *some, last = dict.fromkeys(map(str, numbers))
    return f"{', '.join(some)} or {last}" if some else last


def why_never(ask: Ask, devices: Sequence[Device]) -> str:
    """Why these devices of a node can't serve the ask by its number alone; "" when they may."""
    if not devices:
        return ""
    each = cores_each(devices)
    count, cores = wanted(ask, each)
    problem = count_problem(count, _common_family(devices))
    return (
        f"{problem} ({cores} cores, {each} on each)" if problem and cores is not None else problem
    )


def fit_neuron(cards: Sequence[DeviceUsage], ctx: FitContext) -> Placement | Rejection:
    """Take cores of one device, or a run of unused devices.

    Args:
        cards: the node's Neuron devices, in visit order, which matters for one device.
        ctx: the ask and the pod's wishes.

    Cores that one device can give come from the first device that has them; more cores than that
    come from unused devices, the last of which may be left with some. Taken devices are ascending.
    A device of unknown family is only granted alone.
    Source: document 001; HAMi 2.10 awsneuron/device.go:443-538, with real masks and every filter.
    """
    if not cards:
        return Rejection(whole=Reason.TOO_FEW_CARDS)
    devices, cores = wanted(ctx.ask, cores_each(card.device for card in cards))
    if devices == 1:
        return _fit_one(cards, cores, ctx)
    return _fit_run(cards, devices, cores, ctx)


def cores_each(devices: Iterable[Device]) -> int:
    """Logical cores of one device of a node; 0 without devices.

    All have the same number. A device has a slot for each core, also for those that can't be given
    and are missing in its mask, maybe on every device.
    """
    return max((max(device.slots, device.cores.bit_count()) for device in devices), default=0)


def wanted(ask: Ask, cores_per_device: int) -> tuple[int, int | None]:
    """Devices and cores (over all of them) that an ask means on a node; None = every core.

    A number of cores is split evenly over devices before the node is known, two cores to each;
    on devices with more cores it needs fewer of them.
    """
    if ask.detail == WHOLE_DEVICES:
        return ask.count, None
    total = ask.count * ask.cores
    if ask.count == 1 or total <= cores_per_device:
        return 1, total
    return -(-total // max(1, cores_per_device)), total


BASIC_FILTERS: Final[tuple[Filter, ...]] = (is_healthy, is_not_cordoned)


def _failing(card: DeviceUsage, ctx: FitContext) -> StrEnum | None:
    """The rules that hold both for one device and for several."""
    reason = first_failing(card, ctx, BASIC_FILTERS)
    if reason is None and card.device.vendor is not ctx.ask.vendor:
        return Reason.TYPE_MISMATCH
    return reason or has_uuid(card, ctx)


def _fit_one(
    cards: Sequence[DeviceUsage], cores: int | None, ctx: FitContext
) -> Placement | Rejection:
    """The first device with enough adjacent free cores."""
    counts: Counter[StrEnum] = Counter()
    asked = cores_each(card.device for card in cards) if cores is None else cores
    for card in cards:
        reason = _failing(card, ctx) or has_slot(card, ctx) or is_idle_if_mutex(card, ctx)
        mask = core_run(card.cores_free, asked)
        if reason is None and mask:
            return Placement(taken=(Taken(device=card.device, memory_mib=0, cores=mask),))
        counts[reason or Reason.TOO_FEW_CORES] += 1
    return Rejection.of(counts, len(cards))


def _fit_run(
    cards: Sequence[DeviceUsage], devices: int, cores: int | None, ctx: FitContext
) -> Placement | Rejection:
    """The lowest run of unused devices that the family allows.

    A device that lost a core is not a whole device: it only serves requests for cores.
    """
    is_each = GENERATIONS[ctx.compat.name].numa_counts_devices
    counts: Counter[StrEnum] = Counter({Reason.OTHER_NUMA: 1})
    total = len(cards) if is_each else 1
    never = why_never(ctx.ask, [card.device for card in cards])
    if never:
        return Rejection.of(counts, total, never)
    family = _common_family(card.device for card in cards)
    least = cores_each(card.device for card in cards) if cores is None else 1
    free = [
        card
        for card in sorted(cards, key=lambda card: card.device.index)
        if _failing(card, ctx) is None
        and not card.slots_used
        and not card.cores_used
        and card.device.cores.bit_count() >= least
    ]
    for start in range(len(free) - devices + 1):
        run = [card.device for card in free[start : start + devices]]
        if is_valid_set([device.index for device in run], family):
            taken = _charge(run, cores)
            if taken is not None:
                return Placement(taken=taken)
    return Rejection.of(counts, total)


def _common_family(devices: Iterable[Device]) -> Family | None:
    families = {family_of(instance_type_of(device)) for device in devices}
    return families.pop() if len(families) == 1 else None


def _charge(run: Sequence[Device], cores: int | None) -> tuple[Taken, ...] | None:
    """Take every core of the run, or its first `cores`; None if too few, or a device gets none."""
    left = sum(device.cores.bit_count() for device in run) if cores is None else cores
    taken = []
    for device in run:
        mask = core_run(device.cores, min(left, device.cores.bit_count()))
        left -= mask.bit_count()
        taken.append(Taken(device=device, memory_mib=0, cores=mask))
    return tuple(taken) if left == 0 and all(item.cores for item in taken) else None


def core_run(free_mask: int, count: int) -> int:
    """Mask of `count` adjacent free cores; 0 when there are none, or none are requested.

    Out of the shortest stretch of free cores that is long enough, its lowest: long stretches stay
    whole for larger requests. AWS's runtime accepts no cores with gaps.
    """
    if count < 1:
        return 0
    fitting, start = [], 0
    for bit in range(free_mask.bit_length() + 1):
        if not free_mask >> bit & 1:
            if bit - start >= count:
                fitting.append((bit - start, start))
            start = bit + 1
    return ((1 << count) - 1) << min(fitting)[1] if fitting else 0
