"""What is published of a node that offers the MIG instances of others, beside shared cards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hami_node.model import Device, Node
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.static import in_mig_mode
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.node.publication import NvidiaPublication, StandalonePublication
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.publication import CardSources


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
