from __future__ import annotations

import pytest

from hami_node.inspection.top import top_of
from hami_node.inspection.usage import Usage
from hami_node.inspection.views import CardView, ClusterView, HolderView

GIB = 1 << 30
PAGE = f"""\
# HELP hami_node_card_memory_used_bytes Memory of the card.
# TYPE hami_node_card_memory_used_bytes gauge
hami_node_card_memory_used_bytes{{index="0",node="n1",type="A100",uuid="GPU-1"}} {6 * GIB}.0
hami_node_card_core_use_ratio{{index="0",node="n1",type="A100",uuid="GPU-1"}} 0.75
hami_node_card_memory_bytes{{index="0",node="n1",type="A100",uuid="GPU-1"}} 1e12
hami_node_container_memory_used_bytes{{container="a",namespace="ml",pod="p",uuid="GPU-1"}} 1.0e+09
hami_node_container_memory_used_bytes{{container="b",namespace="ml",pod="p",uuid="GPU-1"}} {GIB}
hami_node_container_core_use_ratio{{container="a",namespace="ml",pod="p",uuid="GPU-1"}} 0.3
""".encode()


def usage(page: bytes = PAGE) -> Usage:
    found = Usage()
    found.add_page("n1", page)
    return found


def test_cards_and_containers_are_read() -> None:
    found = usage()
    card = found.cards["n1", "GPU-1"]
    assert (card.memory_mib, card.core_percent) == (6144, 75)
    assert found.slices["ml", "p", "a", "GPU-1"].core_percent == 30


def test_containers_of_a_pod_add_up() -> None:
    pod = usage().pods["ml", "p"]
    assert (pod.memory_mib, pod.core_percent) == (954 + 1024, 30)


def test_daemon_speaks_for_its_own_node_only() -> None:
    lie = PAGE.replace(b'node="n1"', b'node="n2"')
    assert usage(lie).cards.keys() == {("n1", "GPU-1")}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<html>",
        "hami_node_card_memory_used_bytes 7",
        'hami_node_card_memory_used_bytes{uuid="x"} NaN',
        'hami_node_card_memory_used_bytes{uuid="x"} -1',
        'hami_node_card_memory_used_bytes{uuid="x"} 1e300',
        'hami_node_card_memory_used_bytes{uuid="x"} ' + "9" * 100,
        "\x00\xff",
    ],
)
def test_page_of_something_else_says_nothing(line: str) -> None:
    found = usage(line.encode("latin-1"))
    assert (found.cards, found.pods) == ({}, {})


def test_labels_are_unescaped() -> None:
    line = rb'hami_node_card_core_use_ratio{uuid="a\"b\\c\nd"} 1'
    assert usage(line).cards.keys() == {("n1", 'a"b\\c\nd')}


def test_number_of_series_is_bounded() -> None:
    line = b'hami_node_card_core_use_ratio{uuid="%d"} 1\n'
    assert len(usage(b"".join(line % number for number in range(30_000))).cards) == 20_000


def card(uuid: str, granted: int) -> CardView:
    return CardView(
        node="n1",
        index=int(uuid[-1]),
        uuid=uuid,
        model="A100",
        vendor="NVIDIA",
        mode="",
        numa=None,
        is_healthy=True,
        slots=10,
        slots_used=1,
        memory_mib=40960,
        memory_used_mib=granted,
        cores=100,
        cores_used=0,
    )


def test_those_that_use_most_come_first() -> None:
    held = HolderView(
        namespace="ml",
        pod="p",
        container="a",
        node="n1",
        phase="Running",
        is_served=True,
        uuid="GPU-1",
        memory_mib=2048,
        cores=30,
    )
    view = ClusterView(
        nodes=(), cards=(card("GPU-0", 9999), card("GPU-1", 2048)), holders=(held,), problems=()
    )
    top = top_of(view, usage())
    assert [(item.uuid, item.memory_used_mib) for item in top.cards] == [
        ("GPU-1", 6144),
        ("GPU-0", None),
    ]
    (pod,) = top.pods
    assert (pod.memory_granted_mib, pod.memory_used_mib, pod.cards) == (2048, 1978, 1)
