"""The demo's parts: what it believes, what it shows, and what it leaves behind."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hami_node.clock import SystemClock
from hami_node.demo import demo, pods
from hami_node.demo.cards import CardLine, HeldSlice
from hami_node.demo.cast import cast_of
from hami_node.demo.pods import Want, sentence
from hami_node.demo.program import Program, program_env
from hami_node.demo.scheduling import limits_row
from hami_node.demo.stage import (
    EXTENDER,
    GPU_NODE,
    LONGEST_TMP,
    Stage,
    temporary_folder,
)
from hami_node.demo.tour import Rows, Seen, Step, Tour
from hami_node.demo.view import Marks, View
from hami_node.errors import ConfigError, HamiError, WireError
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.model import Device, Uuid
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.demo import StepFailed
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.registry import VENDORS

CAST = cast_of(VENDORS)

CARD = Device(uuid=Uuid("GPU-1"), index=0, vendor=NVIDIA, model="NVIDIA L40S", memory_mib=46068)
WANT = Want(name="main", memory_mib=3000, cores=30)
ENVS = {
    f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "3000m",
    nvidia_names.ENV_CORE_LIMIT: "30",
    nvidia_names.ENV_VISIBLE_DEVICES: "GPU-1",
}
FOREVER = (
    sys.executable,
    "-c",
    "import time; print('level=info event=up', flush=True); time.sleep(60)",
)
DEAF = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('level=info event=up', flush=True); time.sleep(60)",
)
SERVES_NOBODY = (
    sys.executable,
    "-c",
    "import time; print('level=info event=extender_served port=1', flush=True); time.sleep(60)",
)
"""Port 1 is nobody's."""
ENDS = (sys.executable, "-c", "print('good bye'); raise SystemExit(3)")


def admission_of(envs: dict[str, str], ids: tuple[str, ...] = ("GPU-1-0",)) -> Admission:
    response = api.ContainerAllocateResponse(envs=envs)
    return Admission(responses={"main": response}, device_ids={"main": ids})


def seen(tour: Tour) -> Seen:
    del tour
    return Seen(lines=("seen",))


def not_so(tour: Tour) -> Seen:
    del tour
    raise StepFailed("it was not so")


def unreadable(tour: Tour) -> Seen:
    del tour
    raise WireError("key", "text")


def missing(tour: Tour) -> Seen:
    del tour
    raise KeyError("adj")


def shown_by(*steps: Step) -> tuple[int, str]:
    stream = io.StringIO()
    return demo.run(CAST, keep=False, stream=stream, steps=steps), stream.getvalue()


# -- who plays ------------------------------------------------------------------------------------
def test_cast_without_cards_to_share_says_so() -> None:
    with pytest.raises(HamiError, match="no vendor brings cards"):
        cast_of(replace(vendor, demo=None) for vendor in VENDORS)


def test_vendor_without_a_part_is_left_out_but_its_settings() -> None:
    nvidia, other = VENDORS
    cast = cast_of((nvidia, replace(other, demo=None)))
    assert (cast.shared, cast.foreign, cast.blocks) == (CAST.shared, (), CAST.blocks)


# -- what a step believes --------------------------------------------------------------------------
def test_limits_of_a_container_that_got_its_own_are_shown() -> None:
    row = limits_row(CAST.shared, "pod", WANT, admission_of(ENVS), CARD)
    assert row == ("pod / main", "3000 MiB, 30 %", "3000m", "30", "0")


@pytest.mark.parametrize(
    ("admission", "why"),
    [
        (admission_of(ENVS | {f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "3001m"}), "got 3001m, 30"),
        (admission_of(ENVS | {nvidia_names.ENV_CORE_LIMIT: "0"}), "got 3000m, 0"),
        (admission_of({nvidia_names.ENV_VISIBLE_DEVICES: "GPU-1"}), "got None, None"),
        (admission_of(ENVS | {nvidia_names.ENV_VISIBLE_DEVICES: "GPU-2"}), "sees GPU-2"),
        (
            admission_of(ENVS | {nvidia_names.ENV_VISIBLE_DEVICES: "GPU-1,GPU-2"}),
            "sees GPU-1,GPU-2",
        ),
        (admission_of(ENVS, ids=("GPU-2-0",)), "on another card"),
    ],
    ids=["memory", "cores", "no limits", "other card", "one card more", "other id"],
)
def test_limits_that_are_not_the_containers_own_are_false(admission: Admission, why: str) -> None:
    with pytest.raises(StepFailed, match=why):
        limits_row(CAST.shared, "pod", WANT, admission, CARD)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("Allocate failed due to rpc error: code = X desc = no room", "no room"),
        ("no plugin is registered", "no plugin is registered"),
    ],
    ids=["ours", "kubelet's"],
)
def test_sentence_is_what_the_plugin_said(refusal: str, words: str) -> None:
    assert sentence(Admission(responses={}, device_ids={}, refusal=refusal)) == words


# -- the run ---------------------------------------------------------------------------------------
def test_run_with_true_steps_ends_with_0() -> None:
    code, text = shown_by(Step(title="one", act=seen), Step(title="two", act=seen))
    assert code == 0
    assert "all 2 steps passed" in text


@pytest.mark.parametrize(
    ("act", "why"),
    [(not_so, "it was not so"), (unreadable, "WireError: key"), (missing, "KeyError: 'adj'")],
    ids=["checked", "undecodable", "missing"],
)
def test_run_with_a_false_step_goes_on_and_ends_with_1(
    act: Callable[[Tour], Seen], why: str
) -> None:
    code, text = shown_by(Step(title="one", act=act), Step(title="two", act=seen))
    assert code == 1
    assert why in text
    assert "1 of 2 steps passed" in text
    assert "failed: one" in text
    assert "failed: two" not in text


def test_run_without_a_needed_step_leaves_the_rest_out() -> None:
    code, text = shown_by(
        Step(title="one", act=not_so, is_needed=True), Step(title="two", act=seen)
    )
    assert code == 1
    assert "two  (not reached)" in text
    assert "not reached: 1 steps" in text


def test_run_shows_the_log_of_the_daemon_to_blame() -> None:
    def blame(tour: Tour) -> Seen:
        tour.stage.start_daemon(tour.stage.nodes["neuron-node"])
        tour.stage.program("neuron-node").process.wait(30)
        raise StepFailed("no report")

    stream = io.StringIO()
    step = Step(title="neuron", act=blame, programs=("neuron-node", "extender"))
    assert demo.run(CAST, keep=False, command=ENDS, stream=stream, steps=(step,)) == 1
    assert "last log lines of the daemon of neuron-node" in stream.getvalue()
    assert "last log lines of the extender" not in stream.getvalue(), "it was not started"
    assert "good bye" in stream.getvalue()


# -- the stage -------------------------------------------------------------------------------------
def test_stage_ends_its_programs_and_removes_its_folder() -> None:
    with Stage(SystemClock(), {}, CAST, FOREVER) as stage:
        folder = stage.folder
        stage.start_daemon(stage.gpu)
        stage.start_extender()
        programs = [stage.daemon, stage.program(EXTENDER)]
        for name, program in zip((GPU_NODE, EXTENDER), programs, strict=True):
            assert stage.until(name, "it logs", partial(program.logged, "up"))
            assert program.exit_code is None
        assert (folder / "kubeconfig").stat().st_mode & 0o777 == 0o600
    assert [program.exit_code for program in programs] == [-signal.SIGTERM, -signal.SIGTERM]
    assert not folder.exists()


def test_stage_kills_a_program_that_does_not_sign_off() -> None:
    with Stage(SystemClock(), {}, CAST, DEAF) as stage:
        stage.start_extender()
        extender = stage.program(EXTENDER)
        assert stage.until(EXTENDER, "it logs", lambda: extender.logged("up"))
    assert extender.exit_code == -signal.SIGKILL


def test_until_with_a_daemon_that_ended_says_so() -> None:
    with Stage(SystemClock(), {}, CAST, ENDS) as stage:
        stage.start_daemon(stage.gpu)
        with pytest.raises(StepFailed, match=r"expected: a sign; but .* ended with code 3"):
            stage.until(GPU_NODE, "a sign", lambda: None)


def test_until_without_the_sign_gives_up() -> None:
    with Stage(SystemClock(), {}, CAST, FOREVER, limit_s=0.05) as stage:
        stage.start_daemon(stage.gpu)
        with pytest.raises(StepFailed, match=r"expected: a sign; not met within 0\.05 s"):
            stage.until(GPU_NODE, "a sign", lambda: False)


@pytest.mark.parametrize("name", [GPU_NODE, EXTENDER])
def test_until_without_the_program_says_so(name: str) -> None:
    with (
        Stage(SystemClock(), {}, CAST) as stage,
        pytest.raises(StepFailed, match="was not started"),
    ):
        stage.until(name, "a sign", lambda: None)


def test_extender_that_does_not_listen_yet_says_so() -> None:
    with Stage(SystemClock(), {}, CAST, FOREVER) as stage:
        stage.start_extender()
        with pytest.raises(StepFailed, match="does not listen yet"):
            _ = stage.extender


def test_place_with_an_extender_that_was_killed_says_so() -> None:
    body = pods.body_of("p", (), {})
    with Stage(SystemClock(), {}, CAST, SERVES_NOBODY) as stage:
        stage.start_extender()
        stage.until(EXTENDER, "it tells its port", lambda: _has_port(stage))
        stage.api.create("pods", body)
        stage.program(EXTENDER).process.kill()
        with pytest.raises(StepFailed, match=r"the extender ended with code -9: POST .*refused"):
            pods.place(stage, "p")


def _has_port(stage: Stage) -> bool:
    return stage.program(EXTENDER).port_of("extender_served") is not None


def test_temporary_folder_that_cannot_be_made_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        temporary_folder("/proc/nowhere")


def test_temporary_folder_below_a_long_path_keeps_sockets_short(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_TMP)
    folder = temporary_folder(str(long))
    folder.rmdir()
    assert len(str(folder)) < LONGEST_TMP
    assert not long.exists()


def test_program_env_keeps_only_what_does_not_set_the_program() -> None:
    base = {
        "PATH": "/bin",
        "HAMI_NODE_BACKEND": "nvml",
        "DEVICE_SPLIT_COUNT": "3",
        "KUBECONFIG": "/real/cluster",
        "CONFIG_FILE": "/etc/x",
        "https_proxy": "http://proxy",
        "PYTHONPATH": "/more",
    }
    env = program_env(base, CAST.blocks)
    assert set(env) == {"PATH", "PYTHONPATH", "PYTHONUNBUFFERED"}
    assert env["PYTHONPATH"].endswith(":/more")


def test_logged_finds_the_whole_event_name(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("level=info event=metrics_served port=1\nlevel=info event=metrics\n")
    with Stage(SystemClock(), {}, CAST, ENDS) as stage:
        stage.start_daemon(stage.gpu)
        daemon = replace(stage.daemon, log_file=log)
    assert isinstance(daemon, Program)
    assert daemon.logged("metrics") == "level=info event=metrics"
    assert daemon.metrics_port() == 1
    assert daemon.logged("metric") is None


# -- the view --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("encoding", "good"),
    [("utf-8", "✓"), ("ascii", "ok"), ("latin-1", "ok"), ("no-such", "ok")],
)
def test_marks_can_be_written_in_the_encoding(encoding: str, good: str) -> None:
    assert Marks.for_encoding(encoding).good == good


def test_view_in_a_file_is_plain_text_without_trailing_space() -> None:
    raw = io.BytesIO()
    view = View(io.TextIOWrapper(raw, encoding="utf-8", write_through=True))
    rows = Rows(columns=("name", "MiB#"), rows=(("a [bold]b", "7"), ("long name", "1000")))
    with view.running(1, 2, "title"):
        assert raw.getvalue() == b""
    view.step_passed(1, "title", Seen(lines=("a line",), quote="said " * 40, rows=rows), 0.5)
    text = raw.getvalue().decode()
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert "✓  1  title  (0.50 s)\n      a line\n" in text
    assert "a [bold]b     7\n" in text


def test_view_on_a_terminal_shows_the_step_under_way() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with View(stream).running(3, 11, "kubelet restarts"):
        pass
    assert "[3/11] kubelet restarts" in stream.getvalue()


def test_view_of_cards_shows_holders_below_their_card() -> None:
    stream = io.StringIO()
    held = HeldSlice(owner="train/main", memory_mib=2500, cores=40, shown_cores="40 %")
    line = CardLine(
        node="n",
        card="0",
        vendor="NVIDIA",
        model="NVIDIA A10",
        is_healthy=False,
        slots=10,
        memory_mib=10000,
        cores="40/100 %",
        holders=(held,),
    )
    View(stream).cards((line,))
    found = [line.split() for line in stream.getvalue().splitlines() if line]
    assert found[-2] == [
        "n",
        "0",
        "A10",
        "FAILED",
        "1/10",
        *["##......", "2500/10000", "MiB", "40/100", "%"],
    ]
    assert found[-1] == ["train/main", "1", "2500", "MiB", "40", "%"]


def test_view_of_neuron_devices_counts_the_cores_that_are_held() -> None:
    stream = io.StringIO()
    held = HeldSlice(owner="job/main", memory_mib=None, cores=8, shown_cores="8", slots=8)
    line = CardLine(
        node="n",
        card="0-15",
        vendor="AWSNeuron",
        model="trn1.32xlarge",
        is_healthy=True,
        slots=32,
        memory_mib=None,
        cores="8/32",
        holders=(held,),
    )
    View(stream).cards((line,))
    found = [line.split() for line in stream.getvalue().splitlines() if line]
    assert found[-2] == ["n", "0-15", "trn1.32xlarge", "ok", "8/32", "-", "8/32"]
    assert found[-1] == ["job/main", "8", "-", "8"]


def test_view_without_cards_shows_no_table() -> None:
    stream = io.StringIO()
    View(stream).cards(())
    assert stream.getvalue() == ""
