"""(i) A card fails and recovers: kubelet, the annotation and the metric follow both ways."""

from __future__ import annotations

import time

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.e2e import cards as node_cards
from tests.e2e.cards import Cards, hanging, lost
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually

_BAD, _GOOD = 3, 4
_BAD_UUID, _GOOD_UUID = node_cards.uuid_of(_BAD), node_cards.uuid_of(_GOOD)


def _sick(daemon: Daemon) -> set[str]:
    """The cards that the annotation calls unhealthy."""
    devices = decode_register(daemon.annotations()[nvidia_names.NODE_REGISTER])
    assert len(devices) == node_cards.COUNT
    return {d.uuid for d in devices if not d.healthy}


def _wait_sick(daemon: Daemon, wanted: set[str]) -> float:
    """Until kubelet and the annotation agree; the seconds that took."""
    began = time.monotonic()
    expected = set(node_cards.UUIDS) - wanted
    eventually(
        f"kubelet has all but {wanted}",
        lambda: set(healthy_slices()) == expected,
        every_s=0.05,
    )
    eventually(f"the annotation says {wanted}", lambda: _sick(daemon) == wanted, every_s=0.05)
    return time.monotonic() - began


def test_lost_card_goes_and_comes_back(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, cards: Cards
) -> None:
    for name, uuid in (("on-bad", _BAD_UUID), ("on-good", _GOOD_UUID)):
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=2000))
        scheduler.place(pod, {"c0": (Slice(uuid=uuid, memory_mib=2000),)})
    pods.wait_running("on-bad", "on-good")
    running, restarts = pods.incarnations(), daemon.restarts()
    cards.show(lost(_BAD))
    print(f"fault to kubelet and annotation: {_wait_sick(daemon, {_BAD_UUID}):.2f} s")
    daemon.wait_offered(70)
    cards.heal()
    print(f"recovery to kubelet and annotation: {_wait_sick(daemon, set()):.2f} s")
    daemon.wait_offered()
    assert pods.incarnations() == running
    assert daemon.restarts() == restarts


def test_reservation_on_a_failed_card_is_refused_then_served(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, cards: Cards
) -> None:
    cards.show(lost(_BAD))
    _wait_sick(daemon, {_BAD_UUID})
    for name, uuid in (("refused", _BAD_UUID), ("served", _GOOD_UUID)):
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=2000))
        scheduler.place(pod, {"c0": (Slice(uuid=uuid, memory_mib=2000),)})
    assert _BAD_UUID in pods.wait_phase("refused", "Failed")["message"]
    pods.wait_running("served")
    cards.heal()
    _wait_sick(daemon, set())
    pod = pods.create("again", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=_BAD_UUID, memory_mib=2000),)})
    pods.wait_running("again")


def test_hanging_card_does_not_stop_the_others(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, cards: Cards
) -> None:
    cards.show(hanging(_BAD, seconds=800))
    time.sleep(3)  # by then a call about it is under way
    pod = pods.create("meanwhile", RealContainer(name="c0", cards=1, memory_mib=2000))
    scheduler.place(pod, {"c0": (Slice(uuid=_GOOD_UUID, memory_mib=2000),)})
    pods.wait_running("meanwhile")
    assert healthy_slices()[_GOOD_UUID] == node_cards.SPLIT
    cards.heal()
    _wait_sick(daemon, set())
