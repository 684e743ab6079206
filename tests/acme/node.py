"""ACME on a node: where the cards come from, and what a container gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from hami_node.errors import DriverUnavailable
from hami_node.model import Device, Node, PairScores, Uuid
from hami_node.ports import HostUse, PartError
from hami_node.vendors.on_node.answer import ContainerResponse, HandOverState, NodeSituation, Slice
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.vendors.on_node.publication import CardSources
from hami_node.wire.handshake import encode_reported_rfc3339
from hami_node.wire.register import in_order
from tests.acme import names
from tests.acme.codec import decode_cards, encode_cards
from tests.acme.settings import AcmeSettings


class AcmeBackend:
    """The port `Backend` on a file in the form of the register annotation."""

    name = "acme"
    is_simulated = True

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._closed = threading.Event()

    def scan(self) -> tuple[Device, ...]:
        if self._path is None:
            raise DriverUnavailable("acme-cards-file is not set")
        return decode_cards(self._path.read_text())

    def host_use(self, with_processes: Collection[Uuid] = ()) -> Mapping[Uuid, HostUse]:
        del with_processes
        return {}

    def error_counts(self) -> Mapping[tuple[Uuid, int], int]:
        return {}

    def part_errors(self) -> tuple[PartError, ...]:
        return ()

    def clear_errors(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        del uuids
        return ()

    def pair_scores(self) -> PairScores:
        return {}

    def wait_for_event(self, timeout_s: float) -> bool:
        return self._closed.wait(min(timeout_s, 0.05)) or True

    def last_pass_age_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._closed.set()


def offered(cards: tuple[Device, ...], settings: AcmeSettings) -> tuple[Device, ...]:
    """Each card in so many slots."""
    return tuple(in_order([replace(card, slots=settings.acme_slots) for card in cards]))


class AcmeResponder:
    """A container is shown its cards by environment."""

    def __init__(self, settings: Callable[[], AcmeSettings]) -> None:
        self._settings = settings

    def respond(self, part: Slice) -> ContainerResponse:
        grants = sorted(part.grants, key=lambda grant: part.cards[grant.uuid].index)
        return ContainerResponse(
            envs=(
                (names.ENV_CARDS, ",".join(grant.uuid for grant in grants)),
                (names.ENV_MEMORY, str(sum(grant.memory_mib for grant in grants))),
            )
        )

    def warning(self, part: Slice) -> str:
        del part
        return ""

    def limiter(self) -> LimiterState:
        return LimiterState()

    def keep(self, situation: NodeSituation) -> None:
        del situation

    def hand_over(self) -> HandOverState:
        return HandOverState()

    def close(self) -> None:
        pass


class AcmePublication:
    """The cards as JSON, and a handshake."""

    def __init__(self, sources: CardSources) -> None:
        self._sources = sources

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        del node, now
        cards = self._sources.cards()
        return {names.NODE_REGISTER: encode_cards(cards) if cards else None}

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        del node
        return {names.NODE_HANDSHAKE: encode_reported_rfc3339(now)}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        del node
        cards = [replace(card, healthy=False) for card in self._sources.cards()]
        return {names.NODE_REGISTER: encode_cards(cards)}
