"""MIG through the real pynvml: the stand-in's hardware, and a backend that has scanned it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.clock import Deadline
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.layout import MigCard, MigDevice, mig_of
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend
from hami_node.vendors.nvidia.nvml.mig.driver import NvmlMigDriver
from tests.fakes.clock import RealClock
from tests.nvml_stub.control import UUIDS, Stub, card
from tests.nvml_stub.mig import MigHardware
from tests.unit.vendors.nvidia.nvml.conftest import Open, settings, start, stub

__all__ = ["settings", "start", "stub"]

A100, H100 = Uuid(UUIDS[0]), Uuid(UUIDS[1])
AMPLE_S = 30.0
CARDS = (
    card(0, mig="enabled"),
    card(1, mig="enabled", name='"NVIDIA H100 80GB HBM3"', memory_mib=81559),
    card(2, mig="unsupported", name='"NVIDIA A10"'),
)
"""An A100, an H100, and a card without MIG."""


def within(seconds: float = AMPLE_S) -> Deadline:
    return Deadline.after(seconds, RealClock().monotonic)


def numbered(gpu_instance_id: int, compute_instance_id: int = 0) -> MigDevice:
    """A compute instance whose MIG device nobody knows."""
    return MigDevice(
        uuid="", gpu_instance_id=gpu_instance_id, compute_instance_id=compute_instance_id
    )


class Rig:
    """A backend, what drives it, and the hardware as an onlooker sees it."""

    def __init__(self, backend: NvmlBackend, stub: Stub, hardware: MigHardware) -> None:
        self.backend, self.stub, self.hardware = backend, stub, hardware
        self.driver: NvmlMigDriver = backend.mig

    def scan(self, uuid: Uuid = A100) -> MigCard:
        """What the next list of cards says of one of them."""
        found = next(found for found in self.backend.scan() if found.uuid == uuid)
        assert found.healthy, found.unhealthy_reason
        mig = mig_of(found)
        assert mig is not None
        return mig

    def look(self, uuid: Uuid = A100) -> MigCard:
        return self.driver.look(uuid, within())

    def show(self, *lines: str) -> None:
        """The cards, and these lines."""
        self.stub.write(*CARDS, *lines)


@pytest.fixture
def hardware(stub: Stub) -> Iterator[MigHardware]:
    """Nothing made, and nothing left."""
    found = stub.mig
    found.reset()
    stub.write(*CARDS)
    yield found
    found.reset()


@pytest.fixture
def rig(start: Open, stub: Stub, hardware: MigHardware) -> Rig:
    """Scanned once."""
    made = Rig(start(), stub, hardware)
    made.backend.scan()
    return made
