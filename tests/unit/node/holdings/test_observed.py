"""What kubelet lists of cards that others serve by right, kept in the record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.model import Pod
from hami_node.node.holdings.observed import ObservedHoldings
from hami_node.ports import HeldContainer
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import a_ledger, an_entry

CHIP, CHIP_CORE = "acme.example/chip", "acme.example/chipcore"
POD = Pod(uid="uid-p", namespace="default", name="p", phase="Running")


def listed(**ids: tuple[str, ...]) -> HeldContainer:
    names = {"chip": CHIP, "core": CHIP_CORE, "gpu": "nvidia.com/gpu"}
    held = {names[key]: value for key, value in ids.items()}
    return HeldContainer(namespace="default", pod="p", container="main", device_ids=held)


class Bench:
    def __init__(self, *pods: Pod) -> None:
        self.pods, self.ledger = list(pods), a_ledger()
        self.observed = ObservedHoldings(
            (CHIP, CHIP_CORE), ledger=self.ledger, pods=lambda: self.pods, clock=FakeClock()
        )

    def held(self) -> dict[str, list[dict[str, tuple[str, ...]]]]:
        items = self.observed.held().items()
        return {uid: [dict(item.device_ids) for item in found] for uid, found in items}


def test_both_resources_of_a_container_are_kept_and_nothing_else() -> None:
    bench = Bench(POD)
    bench.observed.look([listed(chip=("1", "0"), core=("7",), gpu=("GPU-1",))])
    (held,) = bench.held().values()
    assert sorted(held, key=str) == [{CHIP: ("0", "1")}, {CHIP_CORE: ("7",)}]
    assert {entry.grants for entry in bench.ledger.entries()} == {()}


def test_it_outlives_a_list_that_shows_nothing() -> None:
    bench = Bench(POD)
    bench.observed.look([listed(chip=("1",))])
    bench.observed.look([])
    bench.observed.look([listed()])
    assert bench.held() == {"uid-p": [{CHIP: ("1",)}]}


@pytest.mark.parametrize("pods", [(), (replace(POD, phase="Failed"),)], ids=["unseen", "ended"])
def test_pod_that_is_not_known_to_run_waits_for_the_next_list(pods: tuple[Pod, ...]) -> None:
    bench = Bench(*pods)
    bench.observed.look([listed(chip=("1",))])
    assert bench.held() == {}
    bench.pods = [POD]
    bench.observed.look([listed(chip=("1",))])
    assert bench.held() == {"uid-p": [{CHIP: ("1",)}]}


def test_ids_of_an_earlier_pod_of_the_name_are_not_the_later_ones() -> None:
    bench = Bench(POD)
    bench.observed.look([listed(chip=("1",))])
    bench.pods = [replace(POD, uid="uid-later")]
    bench.observed.look([listed(chip=("1",))])
    assert bench.held() == {"uid-p": [{CHIP: ("1",)}]}
    bench.observed.look([listed(chip=("2",))])
    assert bench.held()["uid-later"] == [{CHIP: ("2",)}]


def test_grants_of_our_own_are_not_among_them() -> None:
    bench = Bench(POD)
    bench.ledger.adopt([an_entry("p")])
    assert bench.held() == {}
