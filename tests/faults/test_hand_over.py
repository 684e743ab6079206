"""Cards without a runtime of NVIDIA's, in the real process: CDI names, specs, and refusals."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hami_node.simulate.kubelet import Admission
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.bench.daemon_rig import NODE, RESOURCE, DaemonRig, running_daemon
from tests.fakes.driver_root import lay_driver
from tests.fakes.waiting import eventually
from tests.faults.process import listed, page, port_of
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

LIMIT_S = 20.0
AUTO = {"DEVICE_LIST_STRATEGY": "auto", "HAMI_NODE_VISIBLE_DEVICES_FORM": "auto"}


def flags(folder: Path) -> tuple[str, ...]:
    """Where this node has the driver's folder and the engine its specs."""
    return (
        "--driver-root=/run/nvidia/driver",
        f"--driver-root-ctr-path={folder / 'driver-root'}",
        f"--cdi-spec-dir={folder / 'cdi'}",
        f"--validations-dir={folder / 'validations'}",
    )


def admitted(rig: DaemonRig, name: str, *cards: str) -> Admission:
    rig.create_pod(name, cards[0], 1000)
    pod = decode_pod(rig.api.read("pods", name, "default"))
    return rig.kubelet.admit(pod, RESOURCE)


def wait_listed(rig: DaemonRig) -> None:
    eventually(lambda: listed(rig), LIMIT_S)


def said(rig: DaemonRig) -> str:
    """How containers get their cards, on the node object."""
    notes: Mapping[str, str] = rig.api.read("nodes", NODE)["metadata"].get("annotations") or {}
    return notes.get(names.NODE_HAND_OVER, "")


def shown(rig: DaemonRig) -> Any:
    """The same on the page with the settings."""
    return json.loads(page(port_of(rig), "/config")[1])["hand-over"].get(RESOURCE)


def ready(rig: DaemonRig) -> tuple[int, str]:
    return page(port_of(rig), "/readyz")


@shows(
    "H7",
    fault="nothing shows how a runtime would find a card: no runtime, no folder of the driver",
    happens="cards are named by their UUIDs, as most runtimes take them; log, /config and the "
    "node's annotation say that containers may start without a card, and what to set",
)
def test_node_without_any_sign_tries_the_plain_name_and_says_what_to_do(tmp_path: Path) -> None:
    folders = [flag for flag in flags(tmp_path) if not flag.startswith("--driver-root=")]
    with running_daemon(*folders, env=AUTO) as rig:
        wait_listed(rig)
        answer = admitted(rig, "a", UUIDS[0]).responses["c"]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == UUIDS[0]
        eventually(lambda: said(rig).startswith("envvar UUID; "), LIMIT_S)
        eventually(lambda: ready(rig)[0] == 200, LIMIT_S)
        for where in (said(rig), shown(rig)["warning"], rig.log):
            assert "NVIDIA_VISIBLE_DEVICES is not set in this daemon" in where
            assert "or name a --device-list-strategy" in where


@shows(
    "H8",
    fault="the daemon is stopped, or killed, while a container holds a card by our CDI spec",
    happens="the spec stays, so that the container can be started again; where nobody holds a card "
    "it goes with the daemon",
)
def test_specs_outlive_the_daemon_only_while_they_are_needed(tmp_path: Path) -> None:
    lay_driver(tmp_path / "driver-root", cards=8)
    file = tmp_path / "cdi/hami-node.io-gpu.json"
    for name, end in (("killed", signal.SIGKILL), ("held", signal.SIGTERM)):
        with running_daemon(*flags(tmp_path), env=AUTO) as rig:
            wait_listed(rig)
            assert not admitted(rig, name, UUIDS[1]).refusal
            rig.process.send_signal(end)
            rig.process.wait(LIMIT_S)
            check(json.loads(file.read_bytes()))
    with running_daemon(*flags(tmp_path), env=AUTO) as rig:
        eventually(lambda: said(rig).startswith("cdi-cri"), LIMIT_S)
        assert file.exists()
    assert not file.exists()
