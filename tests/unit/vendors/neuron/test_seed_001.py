"""The worked examples of seed 001: conversion of cores, and both strategies of placement."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import COMPATS, Compat
from hami_node.engine.filters import Rejection, context
from hami_node.engine.fit import fit
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.model import NO_CARD_WISHES, Container, Node
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.protocol import neuron_protocol

DEVICES, CORES = names.RESOURCE_NEURON, names.RESOURCE_NEURON_CORE
GENERATIONS = pytest.mark.parametrize("compat", COMPATS.values(), ids=COMPATS)


def runs_of(
    instance_type: str, devices: int, count: int, compat: Compat, busy: frozenset[int] = frozenset()
) -> list[list[int]]:
    """The devices that pods of `count` devices get one after another, until none fits."""
    node = Node(
        name="n1",
        labels={names.INSTANCE_TYPE: instance_type},
        allocatable={DEVICES: str(devices), CORES: str(2 * devices)},
    )
    protocol = neuron_protocol(compat=compat.name)
    ask = protocol.ask_of(Container(name="c", limits={DEVICES: str(count)}))
    assert ask is not None
    offered, taken = protocol.offered_by(node), set(busy)
    runs: list[list[int]] = []
    while True:
        cards = [
            DeviceUsage(
                device=device,
                slots_used=2 * (device.index in taken),
                cores_used=3 * (device.index in taken),
            )
            for device in offered
        ]
        answer = fit(cards, context(ask, NO_CARD_WISHES, compat))
        if isinstance(answer, Rejection):
            return runs
        runs.append([item.device.index for item in answer.taken])
        taken |= set(runs[-1])


@GENERATIONS
def test_seed_001_strategy_1_two_devices_of_inferentia_are_neighbours(compat: Compat) -> None:
    runs = runs_of("inf2.48xlarge", 12, 2, compat)
    assert runs == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]
    others = frozenset({1, 3, 5, 7, 9, 11})
    assert runs_of("inf2.48xlarge", 12, 2, compat, others) == [], "[0, 2] is never given"


@GENERATIONS
@pytest.mark.parametrize("count", range(1, 13))
def test_seed_001_strategy_1_inferentia_has_no_limit_on_the_number(
    count: int, compat: Compat
) -> None:
    runs = runs_of("inf2.48xlarge", 12, count, compat)
    assert len(runs) == 12 // count
    assert all(len(run) == count for run in runs)


@GENERATIONS
def test_seed_001_strategy_2_four_devices_of_trainium_are_one_of_four_groups(
    compat: Compat,
) -> None:
    runs = runs_of("trn1.32xlarge", 16, 4, compat)
    assert runs == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]


@GENERATIONS
def test_seed_001_strategy_2_eight_devices_of_trainium_are_one_of_two_groups(
    compat: Compat,
) -> None:
    runs = runs_of("trn1.32xlarge", 16, 8, compat)
    assert runs == [list(range(8)), list(range(8, 16))]


@GENERATIONS
@pytest.mark.parametrize("count", [2, 7])
def test_seed_001_strategy_2_other_numbers_are_refused(count: int, compat: Compat) -> None:
    assert runs_of("trn1.32xlarge", 16, count, compat) == []


@pytest.mark.parametrize(
    ("cores", "converted"),
    [(1, (1, 1)), (2, (1, 2)), (4, (2, 2)), (8, (4, 2)), (3, (1, 2)), (5, (2, 2))],
)
def test_seed_001_feature_3_cores_become_devices_of_two_cores(
    cores: int, converted: tuple[int, int]
) -> None:
    container = Container(name="c", limits={CORES: str(cores)})
    ask = neuron_protocol(compat="2.8").ask_of(container)
    assert ask is not None
    assert (ask.count, ask.cores) == converted
    if cores in (3, 5):
        with pytest.raises(WireError, match="multiple of 2"):
            neuron_protocol(compat="2.10").ask_of(container)
    else:
        assert neuron_protocol(compat="2.10").ask_of(container) == ask
