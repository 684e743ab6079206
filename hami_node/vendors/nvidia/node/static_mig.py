"""MIG instances that others have made: their resources, what is published, how they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from hami_node.clock import Deadline
from hami_node.errors import AllocationError
from hami_node.model import Device, Grant, Node, Uuid
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.layout import MigDevice, closed, mig_of
from hami_node.vendors.nvidia.mig.static import (
    in_mig_mode,
    instances_on,
    profiles_on,
    resource_of,
    unequal,
    with_instances,
)
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.node.publication import NvidiaPublication, StandalonePublication
from hami_node.vendors.nvidia.node.sharing import is_managed
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartsKept, PartsSituation, PartsState
from hami_node.vendors.on_node.publication import CardSources
from hami_node.vendors.spec import PluginOptions, ServedResource

Cards = tuple[Device, ...]
Offered = Callable[[Cards, NvidiaSettings], Cards]


def instance_resources(
    settings: NvidiaSettings, cards: Cards, placed: ServedResource[NvidiaSettings]
) -> tuple[ServedResource[NvidiaSettings], ...]:
    """The resource of whole cards or of equal instances, and one for each profile where mixed.

    Args:
        settings: with a strategy for instances.
        cards: the physical cards.
        placed: the resource that a scheduler places.
    """
    if settings.mig_strategy is MigStrategy.SINGLE:
        if not cards:
            return ()  # whole cards or instances? that takes a card to tell
        return (_of_instances(settings.resource_count, _equal),)
    shown = _shown(cards, settings)
    return (
        replace(placed, offered=partial(_undivided, placed.offered)),
        *(
            _of_instances(resource_of(profile), partial(_of_profile, profile))
            for profile in profiles_on(shown)
        ),
    )


def _of_instances(name: str, offered: Offered) -> ServedResource[NvidiaSettings]:
    return ServedResource(
        name=name,
        offered=offered,
        options=_options,
        count_setting="mig-strategy",
        has_own_ids=True,
    )


def _options(settings: NvidiaSettings) -> PluginOptions:
    """NUMA nodes are always shown: an ID is the instance itself."""
    return PluginOptions(prefers=settings.preferred_allocation, shows_numa=True)


def _equal(cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy single: all instances of all cards."""
    shown = _shown(cards, settings)
    why = unequal(shown)
    return tuple(closed(with_instances(card), why) for card in shown)


def _of_profile(profile: str, cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy mixed: the instances of one profile."""
    offered = (with_instances(card, profile) for card in _shown(cards, settings))
    return tuple(card for card in offered if card.ids)


def _undivided(offered: Offered, cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy mixed: cards outside MIG mode, and for people those that have no instance."""
    empty = (
        with_instances(card)
        for card in _shown(cards, settings)
        if in_mig_mode(card) and not instances_on(card)
    )
    others = offered(tuple(card for card in cards if not in_mig_mode(card)), settings)
    return tuple(sorted((*others, *empty), key=_order))


def _shown(cards: Cards, settings: NvidiaSettings) -> Cards:
    """All but those that are to be left alone, by number."""
    return tuple(sorted((card for card in cards if is_managed(card, settings)), key=_order))


def _order(card: Device) -> tuple[int, str]:
    return card.index, card.uuid


# -- what is published of a node that offers the MIG instances of others, beside shared cards ------
class InstancesPublication:
    """Cards outside MIG mode are registered for schedulers, the others are shown to people.

    With strategy single no card is for schedulers.
    """

    def __init__(self, sources: CardSources, settings: Callable[[], NvidiaSettings]) -> None:
        """Publish what `sources` return."""

        def shared() -> tuple[Device, ...]:
            if settings().mig_strategy is MigStrategy.SINGLE:
                return ()
            return tuple(card for card in sources.cards() if not in_mig_mode(card))

        def divided() -> tuple[Device, ...]:
            of_schedulers = {card.uuid for card in shared()}
            return tuple(card for card in sources.cards() if card.uuid not in of_schedulers)

        self._shared = NvidiaPublication(replace(sources, cards=shared), settings)
        self._divided = StandalonePublication(replace(sources, cards=divided))

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Both; without a card for schedulers there is nothing of ours that they read."""
        shared, divided = self._shared.desired(node, now), self._divided.desired(node, now)
        if shared[names.NODE_REGISTER] is None:
            return divided
        return {**shared, names.NODE_STANDALONE: divided[names.NODE_STANDALONE]}

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Both."""
        return {**self._shared.heartbeat(node, now), **self._divided.heartbeat(node, now)}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """All cards unhealthy: they are not served until the next daemon runs."""
        return {**self._shared.shutdown(node), **self._divided.shutdown(node)}


# -- MIG instances that others have made: handed out as they are, never made or destroyed ----------
class OfferedInstances:
    """The port `CardParts` without a driver: there is nothing to do but to look."""

    def __init__(self) -> None:
        """It is not known yet who holds what."""
        self._held: tuple[PartView, ...] = ()

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """The instances that the grants name, as the last scan has seen them.

        Raises:
            AllocationError: one is not there any more.
        """
        del deadline
        return tuple(_made(grant, granted) for grant in granted.grants)

    def keep(self, situation: PartsSituation) -> PartsKept:
        """Nothing but to note who holds what: whoever made the instances removes them."""
        if situation.holders is not None:
            self._held = tuple(held for each in situation.holders for held in _held_by(each))
        return PartsKept()

    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        """Nothing is on record of them."""
        return cards

    def in_use(self) -> Mapping[Uuid, str]:
        """None."""
        return {}

    def state(self) -> PartsState:
        """What containers on record hold; the driver knows where it is."""
        return PartsState(own=self._held)


def _held_by(holder: PartHolder) -> Iterator[PartView]:
    for position, grant in enumerate(holder.grants):
        device = grant.part
        if isinstance(device, MigDevice):
            yield PartView(
                card=grant.uuid,
                kind="",
                start=0,
                size=0,
                state=PartState.LIVE,
                numbers=(device.gpu_instance_id, device.compute_instance_id),
                uuid=device.uuid,
                pod_uid=holder.pod_uid,
                container=holder.container,
                position=position,
            )


def _made(grant: Grant, granted: Slice) -> MadePart | None:
    if grant.part is None:
        return None
    card = granted.cards.get(grant.uuid)
    mig = mig_of(card) if card is not None else None
    found = mig.instances if mig is not None else ()
    if not isinstance(grant.part, MigDevice) or grant.part not in [it.device for it in found]:
        named = grant.part.uuid if isinstance(grant.part, MigDevice) else grant.part
        raise AllocationError(
            f"{named} of card {grant.uuid} is no MIG instance of this node now: whoever manages "
            "them has removed or recreated it; delete and recreate the pod"
        )
    device = grant.part
    return MadePart(uuid=device.uuid, numbers=(device.gpu_instance_id, device.compute_instance_id))
