"""Neuron devices in the check of Allocate: the very cores of a grant must be free."""

from __future__ import annotations

import pytest

from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import Reason
from hami_node.engine.objection import Doubt, Objection
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, PodWishes
from hami_node.vendors.neuron.cards import NEURON, NeuronDoubt
from tests.unit.engine.cards import grant, neuron_card


def _check(target: DeviceUsage, mask: int, cores: int) -> Objection | None:
    wanted = Ask(vendor=NEURON, count=1, cores=cores)
    given = grant("n-0", 0, mask, vendor=NEURON)
    return check_reservation({target.device.uuid: target}, (given,), wanted, PodWishes(), V2_8)


@pytest.mark.parametrize(
    ("used", "mask", "cores", "reason"),
    [
        (0, 0b11, 2, None),
        (0b01, 0b10, 1, None),
        (0b01, 0b01, 1, NeuronDoubt.CORES_TAKEN),
        (0, 0b100, 1, NeuronDoubt.CORES_TAKEN),
        (0, 0, 1, NeuronDoubt.CORES_TAKEN),
        (0, 0b11, 1, Doubt.CORES_ABOVE_ASK),
    ],
)
def test_neuron_cores(used: int, mask: int, cores: int, reason: Doubt | NeuronDoubt | None) -> None:
    objection = _check(neuron_card(used), mask, cores)
    assert (objection.reason if objection else None) is reason


def test_neuron_device_that_is_unhealthy_is_refused() -> None:
    objection = _check(neuron_card(healthy=False), 1, 1)
    assert objection is not None
    assert objection.reason is Reason.NOT_HEALTHY
