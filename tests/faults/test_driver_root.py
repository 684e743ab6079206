"""The driver from a folder instead of the runtime, and the wait for the GPU Operator's toolkit."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.daemon_rig import CARDS, DaemonRig, running_daemon
from tests.fakes.waiting import eventually
from tests.faults.process import listed, page, port_of
from tests.nvml_stub.control import Stub
from tests.reliability import shows

LIMIT_S = 20.0
WAITS = "waits for the GPU Operator's container toolkit"


@dataclass(frozen=True)
class Node:
    """A node's folders, as this daemon's container has them mounted."""

    library: Path
    root: Path
    marks: Path

    def install(self) -> Path:
        """The driver as distributions have it: links that only mean something below the root."""
        real = self.root / "usr/lib/x86_64-linux-gnu/nvidia/libnvidia-ml.so.570.86.15"
        real.parent.mkdir(parents=True)
        shutil.copy(self.library, real)
        alternatives = self.root / "etc/alternatives/libnvidia-ml.so.1"
        alternatives.parent.mkdir(parents=True)
        alternatives.symlink_to(f"/{real.relative_to(self.root)}")
        shown = self.root / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
        shown.symlink_to("/etc/alternatives/libnvidia-ml.so.1")
        return real

    @contextmanager
    def daemon(self, *lines: str) -> Iterator[DaemonRig]:
        """The daemon, to which no runtime has given the driver; `lines` say how that behaves."""
        with running_daemon(
            f"--driver-root-ctr-path={self.root}",
            f"--validations-dir={self.marks}",
            env={"LD_LIBRARY_PATH": ""},
            driver=lines,
        ) as rig:
            yield rig

    def mark(self, name: str) -> None:
        """As the Operator's validator does."""
        self.marks.mkdir(exist_ok=True)
        self.marks.joinpath(name).touch()


@pytest.fixture
def node(stub_library: Stub, tmp_path: Path) -> Node:
    return Node(library=stub_library.library, root=tmp_path / "root", marks=tmp_path / "marks")


def ready_text(rig: DaemonRig) -> str:
    return page(port_of(rig), "/readyz")[1]


def wait_served(rig: DaemonRig) -> None:
    eventually(lambda: listed(rig) == dict.fromkeys(range(CARDS), True), LIMIT_S)


@shows(
    "D2",
    fault="the driver is neither injected by the runtime nor below the driver root",
    happens="readyz, log and cards' error name each folder and the remedy; once there, it serves",
)
def test_missing_driver_says_where_it_was_looked_for_until_it_is_there(node: Node) -> None:
    node.root.mkdir()
    with node.daemon() as rig:
        eventually(lambda: "usr/lib64" in ready_text(rig), LIMIT_S)
        for part in (str(node.root), "ld.so.cache", "nvidia/lib64", "runtimeClassName nvidia"):
            assert part in ready_text(rig)
        node.install()
        wait_served(rig)
        assert rig.process.poll() is None


@shows(
    "D3",
    fault="a library below the driver root is cut off, another one is whole",
    happens="the whole one is loaded",
)
def test_library_that_can_not_be_loaded_costs_itself_alone(node: Node) -> None:
    node.root.joinpath("usr/lib64").mkdir(parents=True)
    node.root.joinpath("usr/lib64/libnvidia-ml.so.1").write_bytes(b"\x7fELF")
    node.install()
    with node.daemon() as rig:
        wait_served(rig)


@shows(
    "D4",
    fault="the GPU Operator has not installed its toolkit yet, later it has",
    happens="readyz, log and the cards' error say what is waited for; then it goes on by itself",
)
def test_waits_for_the_toolkit_and_goes_on_in_the_same_process(node: Node) -> None:
    node.install()
    node.mark("something")
    with node.daemon() as rig:
        eventually(lambda: WAITS in ready_text(rig), LIMIT_S)
        assert f"{node.marks}/toolkit-ready" in ready_text(rig)
        assert "driver-ready is missing" in ready_text(rig)
        node.mark("driver-ready")
        node.mark("toolkit-ready")
        wait_served(rig)
        assert rig.process.poll() is None


@shows(
    "D5",
    fault="the daemon's container was made before the toolkit, which alone can give it the driver",
    happens="once the toolkit is there the daemon ends, once, so that kubelet makes it again",
    lost="the seconds until kubelet has made the container again",
)
def test_container_made_before_the_toolkit_is_made_again_once(node: Node) -> None:
    node.mark("something")
    with node.daemon() as rig:
        eventually(lambda: WAITS in ready_text(rig), LIMIT_S)
        node.mark("toolkit-ready")
        assert rig.process.wait(LIMIT_S) == 1
        assert "this container was made before it" in rig.log
    with node.daemon() as again:
        eventually(lambda: "can't be loaded" in ready_text(again), LIMIT_S)
        assert WAITS not in ready_text(again)
        assert again.process.poll() is None


@shows(
    "D6",
    fault="the driver below its root is being installed: driver-ready is not there",
    happens="nothing of it is loaded until it is; readyz names the missing file",
)
def test_driver_that_is_being_installed_is_not_loaded(node: Node) -> None:
    node.install()
    node.mark("toolkit-ready")
    with node.daemon() as rig:
        eventually(lambda: "driver-ready is missing" in ready_text(rig), LIMIT_S)
        assert "driver_library_loaded" not in rig.log
        node.mark("driver-ready")
        wait_served(rig)


@shows(
    "D7",
    fault="the toolkit is there, but the driver does not answer: its module is being loaded again",
    happens="while toolkit-ready is missing that is what is waited for; when it is back, it serves",
)
def test_driver_reload_of_the_operator_is_waited_for(node: Node) -> None:
    node.install()
    for name in ("driver-ready", "something"):
        node.mark(name)
    with node.daemon() as rig:
        wait_served(rig)
        rig.stub.show("generation 2", "fail nvmlInitWithFlags * 9", cards=CARDS)
        eventually(lambda: listed(rig) == dict.fromkeys(range(CARDS), False), LIMIT_S)
        eventually(lambda: WAITS in rig.log, LIMIT_S)
        node.mark("toolkit-ready")
        rig.stub.show("generation 2", cards=CARDS)
        wait_served(rig)
        assert rig.process.poll() is None


@shows(
    "D8",
    fault="the driver below its root is replaced after its library was loaded",
    happens="when the versions differ the daemon ends once, and kubelet starts it with the new one",
    lost="the seconds until kubelet has started the container again",
)
def test_replaced_driver_needs_a_new_process(node: Node) -> None:
    real = node.install()
    mismatch = "fail nvmlInitWithFlags * 18"
    with node.daemon(mismatch) as rig:
        eventually(lambda: "different versions" in ready_text(rig), LIMIT_S)
        assert rig.process.poll() is None
        new = real.with_suffix(".new")
        shutil.copy(node.library, new)
        new.replace(real)
        assert rig.process.wait(LIMIT_S) == 1
