from __future__ import annotations

import pytest

from hami_node.model import Node, Uuid
from hami_node.node.report.node_marks import NodeMarks
from hami_node.wire import names

NOW = 1_800_000_000.0
NODE = Node(name="n1")


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("simulated", [True, False])
@pytest.mark.parametrize("limiter", ["", "v2.10.0-0123456789ab"])
def test_identity_marks_follow_the_socket_and_the_backend(
    is_readable: bool, simulated: bool, limiter: str
) -> None:
    said = NodeMarks(is_readable=lambda: is_readable, limiters=lambda: limiter, simulated=simulated)
    assert said.desired(NODE, NOW) == {
        names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES if is_readable else None,
        names.NODE_LIMITER: limiter or None,
        names.NODE_SIMULATED: "true" if simulated else None,
        names.NODE_CLOSED_CARDS: None,
        names.NODE_HAND_OVER: None,
    }
    assert said.heartbeat(NODE, NOW) == {}
    assert said.shutdown(NODE) == {
        names.NODE_IDENTITY: None,
        names.NODE_CLOSED_CARDS: None,
        names.NODE_HAND_OVER: None,
    }


def test_how_containers_get_their_cards_is_marked_as_it_is_now() -> None:
    said = ["envvar UUID"]
    marks = NodeMarks(is_readable=lambda: True, hand_over=lambda: said[-1])
    assert marks.desired(NODE, NOW)[names.NODE_HAND_OVER] == "envvar UUID"
    said.append("refused: why")
    assert marks.desired(NODE, NOW)[names.NODE_HAND_OVER] == "refused: why"


def test_closed_cards_are_published_sorted_with_their_reasons() -> None:
    closed = {Uuid("GPU-b"): "held by b", Uuid("GPU-a"): "held by a"}
    said = NodeMarks(is_readable=lambda: True, closed=lambda: closed)
    text = said.desired(NODE, NOW)[names.NODE_CLOSED_CARDS]
    assert text == '{"GPU-a":"held by a","GPU-b":"held by b"}'
