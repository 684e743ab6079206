"""Metrics tell what is held now, by whom, on which card, in the annotation's words."""

from __future__ import annotations

from functools import partial

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

MIB = 1024 * 1024


def held(rig: Rig, pod: str, container: str) -> float | None:
    return rig.metric("allocation_memory_bytes", pod=pod, container=container)


@shows(
    "P15",
    fault="pods with init containers come and go, and the daemon restarts in between",
    happens="their series appear with the right container, outlive the restart, and go with them",
)
def test_series_come_and_go_with_the_containers(rig: Rig) -> None:
    boxes = [
        Box(name="init", cards=0, kind=ContainerKind.INIT),
        Box(name="idle", cards=0),
        Box(name="work", memory_mib=3000),
    ]
    rig.place("p", boxes, {"work": [Part(uuid=uuid(2), memory_mib=3000)]})
    assert rig.admit("p").is_admitted
    eventually(lambda: held(rig, "p", "work") == 3000 * MIB, LIMIT_S)
    assert held(rig, "p", "idle") is None
    rig.restart()
    eventually(lambda: held(rig, "p", "work") == 3000 * MIB, LIMIT_S)
    rig.end("p")
    eventually(lambda: held(rig, "p", "work") is None, LIMIT_S)
    assert rig.metric("card_memory_granted_bytes", uuid=uuid(2)) == 0


@shows(
    "P15",
    fault="the daemon is stopped for good",
    happens="the node says so itself: its cards are published as unhealthy",
)
def test_stopped_daemon_leaves_no_healthy_cards_behind(rig: Rig) -> None:
    rig.serve_one("p")
    assert rig.stop() == 0
    assert [card.healthy for card in decode_register(rig.register_text)] == [False] * 4
    assert names.NODE_IDENTITY not in rig.notes
    assert not list(rig.plugins.glob("hami-*.sock"))


@shows(
    "P15",
    fault="a card's type, number and node are read from the metrics and from the annotation",
    happens="they are the same words, so that both can be joined",
)
@pytest.mark.parametrize("form", ["json", "csv9"])
def test_metrics_and_annotation_join(node: Rig, form: str) -> None:
    node.start(register_format=form)
    for card in decode_register(node.register_text):
        labels = {"uuid": str(card.uuid), "index": str(card.index), "type": card.model}
        eventually(partial(node.metric, "card_info", **labels), LIMIT_S)
