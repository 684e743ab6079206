"""What a node with instances of others tells schedulers, and what it tells people."""

from __future__ import annotations

from dataclasses import replace

from hami_node.engine.usage import DeviceUsage
from hami_node.model import Device, Node
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.codec import decode_register, decode_shares, encode_json
from hami_node.vendors.nvidia.mig.static import with_instances
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.publication import CardSources, Publication
from hami_node.wire.handshake import encode_reported
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided, instance

NOW = 1_800_000_000.0
PHYSICAL = divided(0, instance(9, "1g.5gb", 2), instance(1, "3g.20gb", 4))
DIVIDED, SHARED = with_instances(PHYSICAL), card(1)


def publication(
    *cards: Device, strategy: MigStrategy = MigStrategy.MIXED, error: str = ""
) -> Publication:
    sources = CardSources(
        cards=lambda: cards,
        backend_error=lambda: error,
        used=lambda: {uuid(0): DeviceUsage(device=DIVIDED, slots_used=1, memory_used_mib=4864)},
    )
    settings = NvidiaSettings(mig_strategy=strategy)
    return NVIDIA_SPEC.publication(sources, lambda: settings)


def texts(found: Publication, node: Node | None = None) -> dict[str, str | None]:
    """All that is written, one after the other."""
    node = node or Node(name="n1")
    return {**found.desired(node, NOW), **found.heartbeat(node, NOW)}


def test_mixed_registers_shared_cards_and_shows_the_divided_ones() -> None:
    wanted = texts(publication(DIVIDED, SHARED))
    assert [it.uuid for it in decode_register(wanted[names.NODE_REGISTER] or "")] == [uuid(1)]
    (shown,) = decode_shares(wanted[names.NODE_STANDALONE] or "")
    assert (shown.device.uuid, shown.device.slots, shown.slots_used) == (uuid(0), 2, 1)
    assert wanted[names.NODE_MIG] is None, "what an earlier version wrote"
    assert names.NODE_HANDSHAKE in wanted


def test_node_without_a_card_for_schedulers_says_nothing_to_them() -> None:
    old = {
        names.NODE_REGISTER: encode_json([SHARED]),
        names.NODE_HANDSHAKE: encode_reported(NOW - 60),
    }
    for found in (
        publication(DIVIDED),
        publication(DIVIDED, strategy=MigStrategy.SINGLE),
        publication(DIVIDED, SHARED, strategy=MigStrategy.SINGLE),
    ):
        wanted = texts(found, Node(name="n1", annotations=old))
        assert wanted[names.NODE_REGISTER] is None
        assert wanted[names.NODE_HANDSHAKE] is None
        assert wanted[names.NODE_STANDALONE]
        assert wanted[names.NODE_MIG] is None


def test_driver_that_is_down_leaves_what_stands_as_unhealthy() -> None:
    before = texts(publication(DIVIDED, SHARED))
    standing = {key: text for key, text in before.items() if text}
    node = Node(name="n1", annotations=standing)
    wanted = publication(error="down").desired(node, NOW)
    assert [it.healthy for it in decode_register(wanted[names.NODE_REGISTER] or "")] == [False]
    (shown,) = decode_shares(wanted[names.NODE_STANDALONE] or "")
    assert not shown.device.healthy


def test_end_of_the_daemon_makes_both_unhealthy() -> None:
    found = publication(DIVIDED, SHARED)
    standing = {key: text for key, text in texts(found).items() if text}
    wanted = found.shutdown(Node(name="n1", annotations=standing))
    assert [it.healthy for it in decode_register(wanted[names.NODE_REGISTER] or "")] == [False]
    (shown,) = decode_shares(wanted[names.NODE_STANDALONE] or "")
    assert not shown.device.healthy


def test_sick_card_is_shown_as_it_is() -> None:
    sick = replace(DIVIDED, healthy=False, unhealthy_reason="XID 79")
    (shown,) = decode_shares(texts(publication(sick))[names.NODE_STANDALONE] or "")
    assert (shown.device.healthy, shown.device.slots) == (False, 2)
