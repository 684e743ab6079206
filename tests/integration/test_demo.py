"""`hami-node demo` as its user starts it: a process, its words, its exit code, nothing left."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hami_node.demo import demo
from hami_node.demo.stage import EXTENDER, Stage
from hami_node.demo.steps import Shown, Step, steps_of, walk
from hami_node.vendors.registry import VENDORS
from tests.fakes.processes import processes_of
from tests.fakes.waiting import eventually

STEPS = steps_of(Stage(VENDORS))

DEMO = (sys.executable, "-m", "hami_node", "demo")
LIMIT_S = 90.0


def env_with(folder: Path, **more: str) -> Mapping[str, str]:
    return {**os.environ, "TMPDIR": str(folder), **more}


def title_of(act: Callable[[Stage], Iterable[Shown]]) -> str:
    return next(step.title for step in STEPS if step.act is act)


def posted(text: str, call: str) -> dict[str, Any]:
    """The answer to what `--keep` prints as a curl line."""
    found = re.search(rf"curl http://(\S+)/{call} --data-binary @(\S+)$", text, re.MULTILINE)
    assert found is not None, f"no curl line for {call}"
    connection = http.client.HTTPConnection(found[1], timeout=10)
    connection.request("POST", f"/{call}", Path(found[2]).read_bytes())
    response = connection.getresponse()
    answer: dict[str, Any] = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    return answer


def failed_demo(script: str) -> str:
    """What a demo of these programs prints, which fails in the end."""
    shown = io.StringIO()
    command = (sys.executable, "-c", script)
    assert demo.run(Stage(VENDORS, command=command), keep=False, stream=shown) == 1
    return shown.getvalue()


def test_demo_shows_every_step_true_whatever_the_environment_says_and_leaves_nothing(
    short_folder: Path,
) -> None:
    env = env_with(
        short_folder,
        HAMI_NODE_BACKEND="nvml",
        DEVICE_SPLIT_COUNT="3",
        CONFIG_FILE="/nowhere",
        HTTP_PROXY="http://127.0.0.1:1",
        PYTHONIOENCODING="latin-1",
    )
    done = subprocess.run(
        DEMO, env=env, capture_output=True, encoding="latin-1", timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^ok +(\d+)  ", done.stdout, re.MULTILINE) == [
        str(number) for number in range(1, len(STEPS) + 1)
    ]
    assert f"all {len(STEPS)} steps passed" in done.stdout
    assert "Simulated: the cards, kubelet, the API server" in done.stdout
    assert "free 10960 MiB, asked 20000 MiB" in done.stdout
    assert "nearest: 42068 MiB free on GPU-" in " ".join(done.stdout.split())
    assert "\x1b" not in done.stdout, "nobody watches: plain text"
    assert done.stderr == ""
    assert list(short_folder.iterdir()) == []
    assert processes_of(short_folder) == []


def test_demo_with_a_daemon_that_ends_fails_and_shows_its_words() -> None:
    text = failed_demo("raise SystemExit('no such library')")
    assert f"failed: {STEPS[0].title}" in text
    assert "ended with code 1" in text
    assert "no such library" in text
    assert f"not reached: {len(STEPS) - 1} steps" in text


def test_demo_with_an_extender_that_is_killed_names_it_and_leaves_nothing() -> None:
    folders: list[Path] = []

    def kill(stage: Stage) -> Iterable[Shown]:
        folders.append(stage.folder)
        extender = stage.program(EXTENDER).process
        extender.kill()
        extender.wait(LIMIT_S)
        return ("killed",)

    shown = io.StringIO()
    steps = (*STEPS[:4], Step(title="the extender is killed", act=kill), *STEPS[4:5])
    assert demo.run(Stage(VENDORS), keep=False, stream=shown, steps=steps) == 1
    assert f"failed: {title_of(walk)}" in shown.getvalue()
    assert "Connection refused" in shown.getvalue()
    assert "last log lines of the extender" in shown.getvalue()
    assert not folders[0].exists()
    assert processes_of(folders[0]) == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(signal.SIGINT, id="ctrl-c"),
        pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.long),
    ],
)
def test_keep_runs_on_until_told_to_end_and_leaves_nothing(
    short_folder: Path, end: signal.Signals
) -> None:
    output = short_folder / "output"
    work = short_folder / "t"
    work.mkdir()
    with output.open("w") as out:
        kept = subprocess.Popen(
            [*DEMO, "--keep"], env=env_with(work), stdout=out, stderr=subprocess.STDOUT
        )
    try:
        eventually(lambda: "cards.yaml" in output.read_text() or kept.poll(), LIMIT_S)
        text = output.read_text()
        assert "Everything keeps running until Ctrl-C" in text
        address = re.search(r"curl http://(127\.0\.0\.1:\d+)/readyz", text)
        assert address is not None
        connection = http.client.HTTPConnection(address[1], timeout=10)
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == 200
        connection.close()
        found = re.search(r"inspect --kubeconfig (\S+)$", text, re.MULTILINE)
        assert found is not None
        inspected = subprocess.run(
            [sys.executable, "-m", "hami_node", "inspect", "--kubeconfig", found[1], "-o", "json"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
        assert '"pod": "notebook"' in inspected.stdout
        assert posted(text, "webhook")["response"]["allowed"] is True
        assert posted(text, "filter")["NodeNames"] == ["gpu-node"]
        assert posted(text, "bind") == {"Error": ""}
        kept.send_signal(end)
        assert kept.wait(LIMIT_S) == 0, output.read_text()
    finally:
        kept.kill()
        kept.wait(LIMIT_S)
    assert "everything was shut down" in output.read_text()
    assert list(work.iterdir()) == []
    assert processes_of(work) == []
