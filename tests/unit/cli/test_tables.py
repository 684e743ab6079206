from __future__ import annotations

import io
from dataclasses import replace

import pytest

from hami_node.cli.show.tables import show_cluster, span
from hami_node.inspection.cluster import inspect
from hami_node.inspection.picture import Listed, picture_of
from hami_node.inspection.saved import read_saved
from hami_node.inspection.views import ClusterView, NodeView
from hami_node.inspection.waiting import totals_of, waiting_in
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.saved_cluster import (
    GPU,
    NOW_S,
    card_json,
    card_node_json,
    node_json,
    pending_json,
    pod_json,
    saved,
)
from tests.unit.inspection.views import BASIS


def view(granted_mib: int = 4096, healthy: str = "true") -> ClusterView:
    csv = f"{GPU},10,40960,100,NVIDIA-NVIDIA A100,1,{healthy},0,hami-core:"
    held = {
        nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,{granted_mib},30:;",
        nvidia_names.POD_TO_ALLOCATE: ";",
    }
    found = read_saved(
        saved(node_json("n1", {nvidia_names.NODE_REGISTER: csv}), pod_json("p", held)), "f"
    )
    return inspect(found.nodes, found.pods, BASIS.vendors, NOW_S)


def shown(what: ClusterView, width: int | None = None) -> str:
    stream = io.StringIO()
    show_cluster(what, stream, width)
    return " ".join(stream.getvalue().split())


def test_narrow_terminal_gets_short_uuids_and_no_bars() -> None:
    text = shown(view(), width=110)
    assert GPU not in text
    assert f"{GPU[:12]}…" in text
    assert "░" not in text


def test_unhealthy_and_over_committed_cards_stand_out() -> None:
    text = shown(view(granted_mib=50000, healthy="false"))
    assert "UNHEALTHY" in text
    assert "██████████ 50000/40960" in text
    assert "over-committed" in text


def test_empty_cluster_says_so() -> None:
    nothing = ClusterView(nodes=(), cards=(), holders=(), problems=())
    assert shown(nothing) == "no node has published cards"


def whole(width: int) -> str:
    node = card_node_json("gpu-node-1", card_json(GPU))
    held = {
        nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,4096,30:;",
        nvidia_names.POD_TO_ALLOCATE: ";",
    }
    items = (node, pod_json("p", held, node="gpu-node-1"), pending_json("big", gpu=1))
    found = read_saved(saved(*items), "f")
    picture = picture_of(Listed(nodes=found.nodes, pods=found.pods), BASIS, NOW_S)
    stream = io.StringIO()
    cluster = replace(
        inspect(found.nodes, found.pods, BASIS.vendors, NOW_S),
        waiting=waiting_in(picture, found.pods, NOW_S, "hami-scheduler"),
        totals=totals_of(picture),
    )
    show_cluster(cluster, stream, width)
    return stream.getvalue()


def test_who_waits_and_the_total_are_shown_within_100_columns() -> None:
    text = whole(100)
    assert max(map(len, text.splitlines())) <= 100
    flat = " ".join(text.split())
    assert "default/big 1 x 100 % 1 h 0 min no available node, 1 nodes do not meet" in flat
    assert (
        "total: 1 cards of 1 nodes are offered, 9 of 10 slots free, 36864 of 40960 MiB free, "
        "largest slice 36864 MiB (card 0 of gpu-node-1)"
    ) in flat


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
