"""What a container sees of the node's cards, with NVIDIA's real runtime and without it."""

from __future__ import annotations

from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards, toolkit
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.setups import Setup, look_into, start
from tests.e2e.toolkit import DRIVER_ROOT, RuntimeClass

_FIRST, _SECOND = 2, 5  # by NVML's number
_ROOT: Final = {"NVIDIA_DRIVER_ROOT": str(DRIVER_ROOT), "NVIDIA_CDI_HOOK_PATH": str(toolkit.HOOK)}
_SETUPS: Final = {
    "auto": Setup(runtime=RuntimeClass.AUTO),
    "auto_under_operator": Setup(runtime=RuntimeClass.OPERATOR),
    "volume_mounts": Setup(
        runtime=RuntimeClass.MOUNTS, env={"DEVICE_LIST_STRATEGY": "volume-mounts"}
    ),
    "auto_without_runtime": Setup(env=_ROOT),
    "cdi_annotations": Setup(env={**_ROOT, "DEVICE_LIST_STRATEGY": "cdi-annotations"}),
    "cdi_names_with_runtime": Setup(
        runtime=RuntimeClass.AUTO, env={**_ROOT, "DEVICE_LIST_STRATEGY": "cdi-cri"}
    ),
    "everything_under_operator": Setup(
        runtime=RuntimeClass.OPERATOR,
        env={**_ROOT, "DEVICE_LIST_STRATEGY": "envvar,volume-mounts,cdi-annotations,cdi-cri"},
    ),
    "device_specs": Setup(
        runtime=RuntimeClass.AUTO,
        env={"PASS_DEVICE_SPECS": "true", "NVIDIA_DEV_ROOT": str(DRIVER_ROOT)},
    ),
    "device_specs_alone": Setup(
        env={**_ROOT, "DEVICE_LIST_STRATEGY": "envvar", "PASS_DEVICE_SPECS": "true"},
        has_libraries=False,
    ),
}


@pytest.fixture(scope="module", params=_SETUPS)
def setup(request: pytest.FixtureRequest, changeable: Daemon, runtimes: None) -> Setup:
    """The daemon runs on such a node."""
    found = _SETUPS[request.param]
    changeable.run_changed(found.change)
    return found


def _slice(card: int) -> Slice:
    return Slice(uuid=cards.uuid_of(card), memory_mib=4000)


def test_container_sees_its_own_card_and_the_driver(
    setup: Setup, pods: Pods, scheduler: Scheduler
) -> None:
    toolkit.LIMITS.unlink(missing_ok=True)
    for name, card in (("first", _FIRST), ("second", _SECOND)):
        start(pods, scheduler, name, _slice(card), setup)
    pods.wait_running("first", "second")
    assert toolkit.limits_set() == []  # the driver limits nobody unless it is told to
    for name, card in (("first", _FIRST), ("second", _SECOND)):
        seen = look_into(pods, name)
        assert seen.cards == seen.allowed == {card}
        assert {"nvidiactl", "nvidia-uvm"} <= seen.nodes
        libraries = {f"{n}.so.{toolkit.VERSION}" for n in ("libcuda", "libnvidia-ml")}
        paths = {str(toolkit.LIBRARIES / name) for name in libraries}
        assert paths <= seen.files if setup.has_libraries else not paths & seen.files


def test_pod_that_asks_for_all_cards_itself_gets_none(
    setup: Setup, pods: Pods, scheduler: Scheduler
) -> None:
    start(pods, scheduler, "greedy", _slice(_FIRST), setup, NVIDIA_VISIBLE_DEVICES="all")
    status = pods.wait_phase("greedy", "Failed")
    assert nvidia_names.ENV_VISIBLE_DEVICES in status["message"]
