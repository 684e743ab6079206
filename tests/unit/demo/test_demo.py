"""The demo's parts: what it believes, what it shows, and what it leaves behind."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from hami_node.demo import demo
from hami_node.demo.pods import Want
from hami_node.demo.stage import LONGEST_TMP, Stage, temporary_folder
from hami_node.demo.steps import Shown, Step, limits_row
from hami_node.errors import ConfigError
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.model import Device, Uuid
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.demo import StepFailed
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.registry import VENDORS

SHARED = Stage(VENDORS).shared

CARD = Device(uuid=Uuid("GPU-1"), index=0, vendor=NVIDIA, model="NVIDIA L40S", memory_mib=46068)
WANT = Want(name="main", memory_mib=3000, cores=30)
ENVS = {
    f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "3000m",
    nvidia_names.ENV_CORE_LIMIT: "30",
    nvidia_names.ENV_VISIBLE_DEVICES: "GPU-1",
}


def admission_of(envs: dict[str, str], ids: tuple[str, ...] = ("GPU-1-0",)) -> Admission:
    response = api.ContainerAllocateResponse(envs=envs)
    return Admission(responses={"main": response}, device_ids={"main": ids})


def seen(stage: Stage) -> Iterable[Shown]:
    del stage
    return ("seen",)


def not_so(stage: Stage) -> Iterable[Shown]:
    del stage
    raise StepFailed("it was not so")


def missing(stage: Stage) -> Iterable[Shown]:
    del stage
    raise KeyError("adj")


def shown_by(*steps: Step) -> tuple[int, str]:
    stream = io.StringIO()
    return demo.run(Stage(VENDORS), keep=False, stream=stream, steps=steps), stream.getvalue()


# -- what a step believes --------------------------------------------------------------------------
def test_limits_of_a_container_that_got_its_own_are_shown() -> None:
    row = limits_row(SHARED, "pod", WANT, admission_of(ENVS), CARD)
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
        limits_row(SHARED, "pod", WANT, admission, CARD)


# -- the run ---------------------------------------------------------------------------------------
def test_run_with_true_steps_ends_with_0() -> None:
    code, text = shown_by(Step(title="one", act=seen), Step(title="two", act=seen))
    assert code == 0
    assert "all 2 steps passed" in text


@pytest.mark.parametrize(
    ("act", "why"),
    [(not_so, "it was not so"), (missing, "KeyError: 'adj'")],
    ids=["checked", "missing"],
)
def test_run_with_a_false_step_goes_on_and_ends_with_1(
    act: Callable[[Stage], Iterable[Shown]], why: str
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


# -- the stage -------------------------------------------------------------------------------------
def test_temporary_folder_that_cannot_be_made_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        temporary_folder("/proc/nowhere")


def test_temporary_folder_below_a_long_path_keeps_sockets_short(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_TMP)
    folder = temporary_folder(str(long))
    folder.rmdir()
    assert len(str(folder)) < LONGEST_TMP
    assert not long.exists()
