"""What served pods hold of two cards, as `LiveUse` counts it."""

from __future__ import annotations

from hami_node.model import Pod
from hami_node.node.holdings.live_use import LiveUse
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Ledger
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import a_ledger
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, pod_body, reservation

VENDOR = nvidia_protocol()
CARDS = (card(0), card(1))
GPU = nvidia_names.RESOURCE_GPU


def live_use(
    cluster: FakeCluster, clock: FakeClock | None = None, ledger: Ledger | None = None
) -> LiveUse:
    return LiveUse(
        watched=cluster,
        vendors=[VENDOR],
        ledger=ledger or a_ledger(),
        clock=clock or FakeClock(),
        cards=lambda: CARDS,
    )


def listed(pod: str, *ids: str, container: str = "main", resource: str = GPU) -> HeldContainer:
    """A container in kubelet's list."""
    return HeldContainer(
        namespace="default", pod=pod, container=container, device_ids={resource: ids} if ids else {}
    )


def used(live: LiveUse, leave_out: str = "") -> list[int]:
    """What the cards are used, MiB, once the daemon has looked at the pods as they are now."""
    live.refresh()
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
