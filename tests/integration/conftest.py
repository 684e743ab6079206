"""The rigs of the integration tests."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from tests.integration.instance_rig import InstanceRig
from tests.integration.mig_rig import MigRig
from tests.integration.rig import Rig
from tests.nvml_stub.control import Stub


@pytest.fixture
def node() -> Iterator[Rig]:
    """A node whose daemon is not started yet."""
    rig = Rig()
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def rig(node: Rig) -> Rig:
    """A node whose daemon runs."""
    node.start()
    return node


@pytest.fixture
def old_kubelet() -> Iterator[Rig]:
    """A running node whose kubelet lists ended pods too, as before 1.34."""
    rig = Rig(lists_ended_pods=True)
    try:
        rig.start()
        yield rig
    finally:
        rig.close()


@pytest.fixture(scope="module")
def driver(stub_library: Stub) -> Stub:
    """The stand-in for the driver's library, loaded: the daemon then finds it by its name."""
    ctypes.CDLL(str(stub_library.library))
    return stub_library


@pytest.fixture
def instances_of_others(driver: Stub) -> Iterator[InstanceRig]:
    """Card 0 in MIG mode, without instances; the daemon is not started yet."""
    rig = InstanceRig(driver)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def bare_mig(driver: Stub) -> Iterator[MigRig]:
    """A node in MIG mode whose daemon does not run yet."""
    rig = MigRig(driver)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def mig(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode whose daemon runs."""
    bare_mig.launch()
    return bare_mig
