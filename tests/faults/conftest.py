"""The rigs: the daemon in this process, and as a process of its own on the driver's stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.daemon_rig import DaemonRig, running_daemon
from tests.integration.conftest import node, old_kubelet, rig
from tests.nvml_stub.build import NoCompiler, build

__all__ = ["node", "old_kubelet", "rig"]


@pytest.fixture
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonRig]:
    """The daemon's own process with eight cards of the driver's stand-in, registered."""
    try:
        build(tmp_path_factory.getbasetemp() / "nvml-probe")
    except NoCompiler as error:
        pytest.skip(str(error))
    with running_daemon() as running:
        yield running
