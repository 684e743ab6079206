from __future__ import annotations

import io

import pytest

from hami_node.cli.show.tables import show_cluster, span
from hami_node.inspection.views import ClusterView, NodeView


def shown(what: ClusterView, width: int | None = None) -> str:
    stream = io.StringIO()
    show_cluster(what, stream, width)
    return " ".join(stream.getvalue().split())


def test_empty_cluster_says_so() -> None:
    nothing = ClusterView(nodes=(), cards=(), holders=(), problems=())
    assert shown(nothing) == "no node has published cards"


def test_each_way_of_handing_over_cards_is_shown_once_with_its_nodes() -> None:
    ways = ["envvar UUID"] * 7 + ["refused: containerd://1.6.8 knows no CDI: use 2.0 or later"]
    nodes = tuple(node_view(f"n{i}", way) for i, way in enumerate(ways))
    text = shown(ClusterView(nodes=nodes, cards=(), holders=(), problems=()))
    assert "envvar UUID n0, n1, n2, n3, n4 and 2 more" in text
    assert "refused: containerd://1.6.8 knows no CDI: use 2.0 or later n7" in text


def node_view(name: str, hand_over: str) -> NodeView:
    return NodeView(
        name=name,
        is_ready=True,
        cards=1,
        is_simulated=False,
        handshake="Reported",
        handshake_age_s=1,
        lock="",
        allocatable="10",
        identity="pod-resources",
        hand_over=hand_over,
    )


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_span_has_two_units_at_most(seconds: int, shown: str) -> None:
    assert span(seconds) == shown
