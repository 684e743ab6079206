"""When the node's annotation about its MIG cards is written, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hami_node.model import Device, Node
from hami_node.vendors.divided import DividedCards, PartState, PartView
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import HandshakeMode
from hami_node.vendors.nvidia.mig.mark import decode_mig
from hami_node.vendors.nvidia.mig.shown import divided_cards
from hami_node.vendors.nvidia.node.mig.mark_keeper import WithMigCards
from hami_node.vendors.nvidia.node.publication import NvidiaPublication
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.publication import CardSources
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import divided, instance

NOW = 1_800_000_000.0
LIVE = PartView(
    card=uuid(0), kind="2g.10gb", start=0, size=2, state=PartState.LIVE, numbers=(3, 0),
    uuid="MIG-3", pod_uid="uid-p", container="main",
)  # fmt: skip


@dataclass
class Kept:
    """A node, and the publication of its cards."""

    cards: tuple[Device, ...] = ()
    own: tuple[PartView, ...] = ()
    handshake: HandshakeMode = HandshakeMode.ALWAYS

    def __post_init__(self) -> None:
        sources = CardSources(cards=lambda: self.cards)
        settings = NvidiaSettings(handshake=self.handshake)
        cards = NvidiaPublication(sources, lambda: settings)
        self.publication = WithMigCards(cards, self._divided)
        self.node = Node(name="n1")

    def _divided(self) -> DividedCards:
        return DividedCards(cards=divided_cards(self.cards, self.own, is_offered=False))

    def changed(self, wanted: Mapping[str, str | None]) -> set[str]:
        """Write what is wanted to the node; returns the keys that changed."""
        old = self.node.annotations
        changed = {key for key, text in wanted.items() if old.get(key) != text}
        new = {key: text for key, text in (dict(old) | dict(wanted)).items() if text is not None}
        self.node = replace(self.node, annotations=new)
        return changed

    def look(self) -> set[str]:
        return self.changed(self.publication.desired(self.node, NOW))

    def beat(self) -> set[str]:
        return self.changed(self.publication.heartbeat(self.node, NOW))

    def states(self) -> list[str]:
        return [
            part.state.value for part in decode_mig(self.node.annotations[names.NODE_MIG]).parts
        ]


def test_pods_that_come_and_go_cost_no_write_before_the_next_heartbeat() -> None:
    kept = Kept(cards=(divided(0),))
    kept.look()
    kept.beat()
    kept.own = (LIVE,)
    assert kept.look() == set()
    assert kept.beat() == {names.NODE_MIG}
    assert kept.states() == ["live"]
    kept.own = ()
    assert kept.look() == set()
    kept.beat()
    assert kept.states() == []
    assert kept.beat() == set()


def test_what_people_have_to_know_is_written_at_once() -> None:
    kept = Kept(cards=(divided(0),), own=(LIVE,))
    kept.look()
    kept.beat()
    kept.own = (replace(LIVE, state=PartState.STALE, why="process 7 is on it"),)
    assert kept.look() == {names.NODE_MIG}
    assert kept.states() == ["stale"]
    kept.cards = (divided(0, instance(9, "1g.5gb", 6)),)
    assert names.NODE_MIG in kept.look()
    assert kept.states() == ["stale", "foreign"]
