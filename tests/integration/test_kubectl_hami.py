"""`kubectl hami` as a process of its own, against the simulated API server over HTTP."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.saved_cluster import GPU, card_json, card_node_json, pending_json, pod_json
from tests.fakes.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
E2E_BIN: Final = Path.home() / ".cache" / "hami-e2e" / "bin"
KUBECTL: Final = shutil.which("kubectl", path=os.pathsep.join((os.environ["PATH"], str(E2E_BIN))))
LIMIT_S: Final = 60.0
HELD: Final = {
    nvidia_names.POD_ALLOCATED: f"{GPU},NVIDIA,4096,30:;",
    nvidia_names.POD_TO_ALLOCATE: ";",
}
needs_kubectl = pytest.mark.programs


@pytest.fixture
def api() -> Iterator[FaultyApiServer]:
    with FaultyApiServer() as server:
        server.create("nodes", card_node_json("gpu-1", card_json(GPU)))
        server.create("pods", pod_json("held", HELD, node="gpu-1"))
        server.create("pods", pending_json("big", gpu=1, gpumem=50000))
        yield server


@pytest.fixture
def user(tmp_path: Path, api: FaultyApiServer) -> dict[str, str]:
    """The environment of a user who has installed the plugin."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, function in (("kubectl-hami", "run"), ("kubectl_complete-hami", "complete")):
        code = f"#!{sys.executable}\nfrom hami_node.cli.kubectl import {function}\n{function}()\n"
        (programs / name).write_text(code)
        (programs / name).chmod(0o755)
    return {
        "PATH": os.pathsep.join((str(programs), os.defpath)),
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "KUBECONFIG": str(api.write_kubeconfig(tmp_path / "config")),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
    }


def call(
    user: Mapping[str, str], *args: str, program: str = "kubectl-hami", stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    command = shutil.which(program, path=user["PATH"]) or program
    return subprocess.run(
        (command, *args),
        env=user,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@needs_kubectl
def test_kubectl_finds_the_plugin_and_hands_its_flags_on(user: dict[str, str]) -> None:
    kubeconfig = user.pop("KUBECONFIG")
    done = call(user, "hami", "nodes", "--kubeconfig", kubeconfig, program=str(KUBECTL))
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^gpu-1 +1 +1/10 +4096/40960 +30/100 +none$", done.stdout, re.MULTILINE)


@needs_kubectl
def test_kubectl_completes_with_names_of_the_cluster(user: dict[str, str]) -> None:
    args = ("__complete", "hami", "nodes", "")
    eventually(lambda: call(user, *args, program=str(KUBECTL)).stdout == "gpu-1\n:4\n", LIMIT_S)


def test_completion_does_not_wait_for_an_api_server_that_hangs(
    user: dict[str, str], api: FaultyApiServer
) -> None:
    api.fail_next("list", "nodes", "hang")
    done = call(user, "nodes", "", program="kubectl_complete-hami")
    assert (done.returncode, done.stdout, done.stderr) == (0, ":4\n", "")


def test_script_of_completion_is_the_same_program(user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "kubectl_complete-hami").write_text(call(user, "completion").stdout)
    done = call(user, "pods", "-o", "j", program="kubectl_complete-hami")
    assert done.stdout == "json\n:4\n"


def test_why_has_the_schedulers_words_and_the_events(
    user: dict[str, str], api: FaultyApiServer
) -> None:
    said = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}
    api.edit("pods", "big", lambda pod: pod["status"].update(conditions=[said]), "default")
    event = {
        "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "big"},
        "reason": "FailedScheduling",
        "message": "1 nodes CardInsufficientMemory(gpu-1)",
    }
    api.create("events", event)
    lines = call(user, "why", "big").stdout.splitlines()
    assert "kube-scheduler said: 0/1 nodes are available" in lines
    refusal = "1 nodes CardInsufficientMemory(gpu-1)"
    assert any("FailedScheduling" in line and line.endswith(refusal) for line in lines)


def test_api_server_that_is_gone_ends_with_3_and_a_line(
    user: dict[str, str], api: FaultyApiServer
) -> None:
    api.stop()
    done = call(user, "nodes")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"error: can't list nodes: .*Connection refused\n", done.stderr)


@pytest.mark.parametrize("args", [("nodes",), ("-h",)])
def test_closed_pipe_ends_quietly(user: dict[str, str], args: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        (str(shutil.which("kubectl-hami", path=user["PATH"])), *args),
        env=user,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=LIMIT_S,
    )
    os.close(writer)
    assert done.stderr == b""
