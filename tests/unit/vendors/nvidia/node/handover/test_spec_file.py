"""One file, which engines read while one or two daemons write it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    CdiSpec,
    DriverOnHost,
    HostNode,
    decode_spec,
    make_spec,
)
from hami_node.vendors.nvidia.node.handover.spec_file import NAME, SpecFile
from tests.reliability import shows


def spec_of(card: str) -> CdiSpec:
    """Long enough for several writes to overlap."""
    nodes = tuple(HostNode(path=f"/dev/{card}{i}", host_path=f"/dev/{card}{i}") for i in range(500))
    spec = make_spec({card: nodes[0]}, DriverOnHost(nodes=nodes))
    assert spec is not None
    return spec


@shows(
    "H10",
    fault="the old daemon and the new one of an upgrade write the CDI specs at the same time",
    happens="engines read the specs of either, whole; neither fails",
)
def test_two_daemons_never_show_half_a_file_nor_fail(tmp_path: Path) -> None:
    errors: list[OSError] = []

    def write(card: str) -> None:
        file = SpecFile(tmp_path)
        try:
            for i in range(60):
                file.write(spec_of(f"{card}{i}"))
        except OSError as e:
            errors.append(e)

    writers = [threading.Thread(target=write, args=(card,)) for card in ("a", "b")]
    for writer in writers:
        writer.start()
    halves = 0
    while any(writer.is_alive() for writer in writers):
        if (tmp_path / NAME).exists():
            halves += decode_spec((tmp_path / NAME).read_bytes()) is None
    for writer in writers:
        writer.join()
    assert (halves, errors) == (0, [])
    assert os.listdir(tmp_path) == [NAME]


def test_what_a_killed_daemon_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".hami-node-0123456789abcdef.tmp"
    left.touch()
    SpecFile(tmp_path).write(spec_of("a"))
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("content", [b"{}", b"\xff", b'{"kind": "other.io/gpu"}'])
def test_file_of_somebody_else_is_replaced_but_never_removed(
    tmp_path: Path, content: bytes
) -> None:
    file = SpecFile(tmp_path)
    (tmp_path / NAME).write_bytes(content)
    assert not file.remove()
    assert file.write(spec_of("a"))
    assert file.remove()
