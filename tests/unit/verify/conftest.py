"""A cluster with everything installed, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.simulate.apiserver import ApiServer
from tests.fakes.installed import Installed


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Installed]:
    with ApiServer() as server:
        yield Installed(server, server.write_kubeconfig(tmp_path / "kubeconfig"))
