"""The rigs of the integration tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.rig import Rig


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
