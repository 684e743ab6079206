from __future__ import annotations

import io

from hami_node.inspect_tables import show_cluster, show_settings
from hami_node.inspection.cluster import ClusterView, inspect
from hami_node.inspection.saved import read_saved
from hami_node.wire import names
from tests.fakes.saved_cluster import GPU, NOW_S, node_json, pod_json, saved


def view(granted_mib: int = 4096, healthy: str = "true") -> ClusterView:
    csv = f"{GPU},10,40960,100,NVIDIA-NVIDIA A100,1,{healthy},0,hami-core:"
    held = {names.POD_ALLOCATED: f"{GPU},NVIDIA,{granted_mib},30:;", names.POD_TO_ALLOCATE: ";"}
    found = read_saved(saved(node_json("n1", {names.NODE_REGISTER: csv}), pod_json("p", held)), "f")
    return inspect(found.nodes, found.pods, names.RESOURCE_GPU, NOW_S)


def shown(what: ClusterView, width: int | None = None) -> str:
    stream = io.StringIO()
    show_cluster(what, stream, width)
    return " ".join(stream.getvalue().split())


def test_nothing_is_cut_in_a_pipe() -> None:
    assert f"{GPU} ok 1/10 █░░░░░░░░░ 4096/40960" in shown(view())


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


def test_settings_show_their_source() -> None:
    stream = io.StringIO()
    show_settings(
        {"split-count": 5, "filter-uuids": [], "xids-ignored": [1, 2], "kubeconfig": None},
        {"split-count": "flag"},
        stream,
    )
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["split-count", "5", "flag"] in rows
    assert ["xids-ignored", "1,", "2", "default"] in rows
    assert ["kubeconfig", "-", "default"] in rows
