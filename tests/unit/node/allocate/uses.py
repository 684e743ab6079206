"""What served pods hold of two cards, as `LiveUse` counts it."""

from __future__ import annotations

from hami_node.model import Pod
from hami_node.node.allocate.live_use import LiveUse
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, pod_body, reservation

VENDOR = nvidia_protocol()
CARDS = (card(0), card(1))


def live_use(
    cluster: FakeCluster, clock: FakeClock | None = None, served: frozenset[str] = frozenset()
) -> LiveUse:
    return LiveUse(
        watched=cluster,
        vendors=[VENDOR],
        has_served=lambda _, folder_name: folder_name in served,
        clock=clock or FakeClock(),
    )


def used(live: LiveUse, leave_out: str = "") -> list[int]:
    return [card.memory_used_mib for card in live.cards(CARDS, leave_out).values()]


def a_pod(
    name: str = "p",
    memory_mib: int = 1000,
    index: int = 0,
    *,
    is_served: bool = True,
    **fields: str,
) -> Pod:
    text = f"{uuid(index)},NVIDIA,{memory_mib},0:;"
    notes = reservation(text, to_allocate=";" if is_served else None)
    return decode_pod(pod_body(name, [Box(memory_mib=memory_mib)], notes, **fields))
