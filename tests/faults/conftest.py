"""The rigs: the daemon in this process, and as a process of its own on the driver's stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.daemon_rig import DaemonRig, running_daemon
from tests.integration.conftest import node, old_kubelet, rig

__all__ = ["node", "old_kubelet", "rig"]


@pytest.fixture
def process() -> Iterator[DaemonRig]:
    """The daemon's own process with eight cards of the driver's stand-in, registered."""
    with running_daemon() as running:
        yield running
