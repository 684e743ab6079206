"""The scheduling rules of Neuron devices: numbered cores, and devices that are neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from hami_node.engine.card_rules import CardRules, Least, Placement
from hami_node.engine.filters import (
    FitContext,
    Rejection,
    first_failing,
    has_uuid,
    is_healthy,
    is_idle_if_mutex,
    is_not_cordoned,
)
from hami_node.engine.objection import Amounts, Doubt, Objection, objection_to
from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.model import Ask, Device, Grant
from hami_node.vendors.neuron import placement


class NeuronDoubt(StrEnum):
    """Why a reservation of Neuron cores is refused."""

    CORES_TAKEN = "neuron-cores-taken"


CHECK_FILTERS: Final = (is_healthy, is_not_cordoned, has_uuid, is_idle_if_mutex)
"""The filters that a device with reserved cores must pass."""


class NeuronCards(CardRules):
    """Rules for devices with numbered cores; a container gets a run of neighbouring devices."""

    cores_are_mask = True
    are_reasons_by_card = False

    def cards_wanted(self, ask: Ask, devices: Iterable[Device]) -> int:
        """The requested cores may fit on fewer devices than the ask names."""
        return placement.wanted(ask, placement.cores_each(devices))[0]

    def why_never(self, ask: Ask, devices: Sequence[Device]) -> str:
        """A number of devices that the node's family does not allow."""
        return placement.why_never(ask, devices)

    def choose(self, cards: Sequence[DeviceUsage], ctx: FitContext) -> Placement | Rejection:
        """Cores of one device, or a run of unused devices."""
        return placement.fit_neuron(cards, ctx)

    def least(self, ask: Ask, device: Device) -> Least:
        """One device with a free core: how many devices it takes depends on the node."""
        del ask, device
        return Least(count=1, memory_mib=0, cores=1)

    def beyond_ask(self, card: DeviceUsage, grant: Grant, ask: Ask) -> Objection | None:
        """Cores are requested over all devices, see `all_beyond_ask`."""
        del card, grant, ask
        return None

    def all_beyond_ask(
        self, devices: Sequence[Device], grants: Sequence[Grant], ask: Ask
    ) -> Objection | None:
        """A whole device includes all of its cores, however many."""
        _, cores = placement.wanted(ask, placement.cores_each(devices))
        given = sum(grant.cores.bit_count() for grant in grants)
        if cores is None or given <= cores:
            return None
        amounts = Amounts(left=cores, asked=given, unit="cores", is_allowance=True)
        return Objection(reason=Doubt.CORES_ABOVE_ASK, amounts=amounts)

    def against(
        self, before: DeviceUsage, card: DeviceUsage, grant: Grant, charge: Charge, ctx: FitContext
    ) -> Objection | None:
        """Exactly the cores of the grant must be free."""
        del before, charge
        reason = first_failing(card, ctx, CHECK_FILTERS)
        if reason is not None:
            return objection_to(card, reason, detail=card.device.unhealthy_reason)
        if grant.cores & ~card.cores_free or not grant.cores:
            amounts = Amounts(left=card.cores_free, asked=grant.cores, unit="mask")
            return objection_to(card, NeuronDoubt.CORES_TAKEN, amounts)
        return None


NEURON: Final = NeuronCards("AWSNeuron")
"""The vendor of every Neuron device."""
