"""driver-ready is read as values, never as a program, whatever it holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.vendors.nvidia.driver import Validations
from tests.reliability import shows

OPERATOR = """IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT=/run/nvidia/driver
DRIVER_ROOT_CTR_PATH=/driver-root
NVIDIA_DEV_ROOT=/
DEV_ROOT_CTR_PATH=/host
"""


def facts(folder: Path, text: str | bytes) -> dict[str, str]:
    data = text if isinstance(text, bytes) else text.encode()
    folder.joinpath("driver-ready").write_bytes(data)
    return dict(Validations(folder).driver_facts())


@pytest.mark.parametrize(
    "line", ["NVIDIA_DRIVER_ROOT=/a", "export NVIDIA_DRIVER_ROOT='/a'", ' NVIDIA_DRIVER_ROOT="/a"']
)
def test_quotes_and_export_are_understood(tmp_path: Path, line: str) -> None:
    assert facts(tmp_path, f"# comment\n\n{line}\nOTHER=1\n") == {"NVIDIA_DRIVER_ROOT": "/a"}


@shows(
    "D1",
    fault="driver-ready of the GPU Operator holds lines that a shell would run",
    happens="these lines are left out and logged; the others count; nothing is run",
)
@pytest.mark.parametrize(
    "line",
    [
        "NVIDIA_DRIVER_ROOT=$(touch /tmp/x)",
        "NVIDIA_DRIVER_ROOT=/a; rm -rf /",
        "NVIDIA_DRIVER_ROOT=`id`",
        'NVIDIA_DRIVER_ROOT="/a',
        "NVIDIA_DRIVER_ROOT=/a b",
        "nvidia_driver_root=/a",
        "rm -rf /",
        f"NVIDIA_DRIVER_ROOT=/{'a' * 600}",
    ],
)
def test_line_to_be_interpreted_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    assert facts(tmp_path, f"IS_HOST_DRIVER=true\n{line}\n") == {"IS_HOST_DRIVER": "true"}
    assert [record.message for record in caplog.records] == ["driver_ready_not_understood"]


def test_pipe_or_link_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "driver-ready")
    assert Validations(tmp_path).driver_facts() == {}
    tmp_path.joinpath("driver-ready").unlink()
    tmp_path.joinpath("real").write_text(OPERATOR)
    tmp_path.joinpath("driver-ready").symlink_to(tmp_path / "real")
    assert Validations(tmp_path).driver_facts() == {}


@given(st.binary(max_size=300))
def test_any_bytes_give_known_names_and_plain_values(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    found = facts(tmp_path_factory.mktemp("v"), b"NVIDIA_DRIVER_ROOT=" + data)
    assert set(found) <= {"NVIDIA_DRIVER_ROOT"}
    assert not set("".join(found.values())) & set(" $`;&|<>()\n\\")


@shows(
    "D15",
    fault="the GPU Operator's validator ends or is upgraded, and its marks vanish while pods run",
    happens="the driver is looked for where it was said to be last; pods are admitted as before",
)
@pytest.mark.parametrize(
    "left",
    [
        None,
        "",
        "IS_HOST_DRIVER=fal",
        "NVIDIA_DRIVER_ROOT=$(x)",
        OPERATOR.partition("DRIVER_ROOT_CTR")[0],
        OPERATOR.replace("=/run", "=run"),
        b"\xff",
    ],
)
def test_what_was_said_last_counts_while_the_file_is_gone_or_half_written(
    tmp_path: Path, left: str | bytes | None
) -> None:
    marks, file = Validations(tmp_path), tmp_path / "driver-ready"
    assert marks.awaits_driver
    file.write_text(OPERATOR)
    known = marks.driver_facts()
    file.unlink()
    if left is not None:
        file.write_bytes(left if isinstance(left, bytes) else left.encode())
    assert marks.driver_facts() == known
    assert not marks.awaits_driver
    file.write_text(OPERATOR.replace("/run/nvidia/driver", "/"))
    assert marks.driver_facts()["NVIDIA_DRIVER_ROOT"] == "/"


def test_mark_without_a_word_counts_as_ready_too(tmp_path: Path) -> None:
    marks, file = Validations(tmp_path), tmp_path / "driver-ready"
    file.touch()
    assert not marks.awaits_driver
    file.unlink()
    assert (marks.driver_facts(), marks.awaits_driver) == ({}, False)
    assert not Validations(tmp_path / "none").awaits_driver
