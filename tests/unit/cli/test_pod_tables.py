from __future__ import annotations

import io

from hami_node.cli.show.pod_tables import MAX_NODES, show_pod
from hami_node.inspection.pod import PodView
from hami_node.wire import names
from tests.fakes.saved_cluster import (
    GPU,
    card_json,
    card_node_json,
    node_json,
    pending_json,
    pod_json,
)
from tests.unit.inspection.views import explained, held

NODE = card_node_json("gpu-node-1", card_json(GPU))
BIG = pending_json("big", gpu=1, gpumem=50000)


def shown(view: PodView, width: int) -> list[str]:
    stream = io.StringIO()
    show_pod(view, stream, width)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    return [" ".join(line.split()) for line in lines]


def test_waiting_pod_is_readable_at_100_columns() -> None:
    lines = shown(explained("big", NODE, node_json("cpu", {}), BIG), 100)
    assert lines[0] == "pod default/big: Pending, waiting; asks 1 x 50000 MiB; since 1 h 0 min"
    assert "gpu-node-1 0 10 40960 100 does not suit: 1/1 CardInsufficientMemory" in lines
    assert "nodes without cards: 1" in lines
    assert "- request at most 40960 of nvidia.com/gpumem: that fits on gpu-node-1 now" in lines
    assert lines[-1] == "(as of now, computed from the objects of nodes and pods)"


def test_roomy_terminal_names_the_card() -> None:
    lines = shown(explained("big", NODE, BIG), 200)
    assert any(f"40960 100 NVIDIA-NVIDIA A100 {GPU} does not suit" in line for line in lines)


def test_bound_pod_shows_its_slice_and_no_verdicts() -> None:
    told = {names.POD_RESIZE_STATE: '{"id":"a-1","state":"waiting","why":"for a program"}'}
    pod = pod_json("p", held(GPU, 4096, 30) | told, node="gpu-node-1")
    lines = shown(explained("p", NODE, pod), 120)
    assert lines[0] == "pod default/p: Running, bound; node gpu-node-1; asks 1 x 100 %"
    assert f"default p main gpu-node-1 0 {GPU[:12]}… 4096 30 Running" in lines
    assert not any("verdict" in line for line in lines)
    assert "resize: waiting: for a program" in lines


def test_many_nodes_are_cut_and_counted() -> None:
    nodes = [card_node_json(f"n{i:03}", card_json(f"GPU-{i}")) for i in range(MAX_NODES + 7)]
    lines = shown(explained("big", *nodes, BIG), 100)
    assert sum("does not suit" in line for line in lines) == MAX_NODES
    assert "7 more nodes with cards (-o json has all)" in lines


def test_words_of_others_are_shown_without_terminal_commands() -> None:
    bad = pending_json("p", gpu="\x1b[31m1")
    assert not any("\x1b" in line for line in shown(explained("p", NODE, bad), 100))
