"""`hami-node view` as a user starts it: a process of its own."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import node_object
from tests.fakes.waiting import eventually

COMMANDS: Final = {
    "hami-node view": ("-m", "hami_node", "view"),
    "kubectl hami view": ("-c", "from hami_node.cli.kubectl import main; main()", "view"),
}


@pytest.fixture
def api() -> Iterator[FaultyApiServer]:
    server = FaultyApiServer()
    server.create("nodes", node_object(0))
    with server:
        yield server


def started(*args: str, kubeconfig: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.Popen(
        (sys.executable, *args),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*args: str, kubeconfig: Path) -> tuple[int, str]:
    process = started(*COMMANDS["hami-node view"], *args, kubeconfig=kubeconfig)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_command_prints_where_the_page_is_and_ends_in_order(
    api: FaultyApiServer, tmp_path: Path, command: str, end: signal.Signals
) -> None:
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    process = started(*COMMANDS[command], "--bind", "127.0.0.1:0", kubeconfig=kubeconfig)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("the page is at http://127.0.0.1:")
    port = int(line.split(":")[2].partition("/")[0])

    def read() -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/api/nodes")
        found = connection.getresponse().read()
        connection.close()
        return found

    eventually(lambda: b"gpu-00000" in read(), 20.0)
    process.send_signal(end)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_address_of_others_is_refused_before_anything_else(tmp_path: Path) -> None:
    code, errors = ended("--bind", ":0", kubeconfig=tmp_path / "missing")
    assert code == 1
    assert errors.startswith("error: flags: --bind: ':0' is wrong: others can reach this address")
    assert "--allowed-host NAME" in errors


def test_missing_rights_are_named(api: FaultyApiServer, tmp_path: Path) -> None:
    api.fail_next("list", "pods", 403)
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    code, errors = ended("--bind", "127.0.0.1:0", kubeconfig=kubeconfig)
    assert code == 3
    assert "the page needs to list and watch pods of the whole cluster" in errors


def test_address_in_use_is_an_error_in_a_line(api: FaultyApiServer, tmp_path: Path) -> None:
    kubeconfig = api.write_kubeconfig(tmp_path / "kubeconfig")
    taken = api.url.rpartition(":")[2]
    code, errors = ended("--bind", f"127.0.0.1:{taken}", kubeconfig=kubeconfig)
    assert code == 1
    assert "stop the program that holds it" in errors
