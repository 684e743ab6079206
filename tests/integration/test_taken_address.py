"""A daemon whose address is taken."""

from __future__ import annotations

import socket

import pytest

from hami_node.errors import ConfigError
from tests.integration.rig import Rig
from tests.reliability import shows


@shows(
    "N14",
    fault="another process has the address of the daemon's pages",
    happens="the daemon ends before it registers: kubelet never counts on it",
)
def test_taken_address_is_found_before_the_registration(node: Rig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"metrics-address.*choose another address"):
            node.start(metrics_address=address)
    assert node.kubelet.registrations == []
    assert list(node.plugins.glob("hami-*.sock")) == []
