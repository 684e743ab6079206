"""What is waited for, and when a new container is needed: once, and only where it helps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.vendors.nvidia.driver import DriverLibrary, DriverRoot, Validations, has_function
from tests.nvml_stub.control import Stub
from tests.reliability import shows

ERROR = DriverUnavailable("libnvidia-ml.so.1 can't be loaded")


@dataclass
class Machine:
    folder: Path
    library: DriverLibrary = field(init=False)

    def __post_init__(self) -> None:
        for name in ("marks", "own-dev", "host/dev"):
            self.folder.joinpath(name).mkdir(parents=True)
        self.start()

    def start(self) -> None:
        """A new process in a new container."""
        self.library = DriverLibrary(
            root=self.root,
            validations=Validations(self.folder / "marks"),
            dev=self.folder / "own-dev",
        )

    def root(self) -> DriverRoot:
        return DriverRoot(
            host=Path("/"),
            inside=self.folder / "root",
            dev_host=Path("/"),
            dev_inside=self.folder / "host",
        )

    def put(self, name: str) -> None:
        self.folder.joinpath(name).touch()

    def explained(self, *, is_loaded: bool = False) -> DriverUnavailable:
        return self.library.explained(ERROR, is_loaded=is_loaded)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_the_operators_folder_nothing_is_waited_for(machine: Machine) -> None:
    machine.folder.joinpath("marks").rmdir()
    assert machine.explained() is ERROR
    assert not machine.library.may_go_on


def test_process_that_waited_in_vain_stays_of_the_opinion_that_it_has_to_end(
    machine: Machine,
) -> None:
    assert "waits for" in str(machine.explained())
    machine.put("marks/toolkit-ready")
    assert machine.library.may_go_on
    assert [type(machine.explained()) for _ in range(3)] == [DriverChanged] * 3
    machine.start()
    assert machine.explained() is ERROR


def test_library_or_root_in_this_container_needs_no_other_container(machine: Machine) -> None:
    machine.explained()
    machine.put("marks/toolkit-ready")
    assert machine.explained(is_loaded=True) is ERROR
    machine.start()
    machine.folder.joinpath("marks/toolkit-ready").unlink()
    machine.explained()
    machine.put("marks/toolkit-ready")
    machine.folder.joinpath("root").mkdir()
    assert machine.explained() is ERROR
    assert not machine.library.may_go_on, "asked once more at once, then with pauses again"


@shows(
    "D10",
    fault="the driver is loaded after the daemon's container was made, without its device nodes",
    happens="the daemon ends once, so that kubelet makes the container with them",
    lost="the seconds until kubelet has made the container again",
)
def test_device_nodes_that_came_late_need_another_container_once(machine: Machine) -> None:
    machine.put("marks/toolkit-ready")
    assert machine.explained(is_loaded=True) is ERROR
    machine.put("host/dev/nvidiactl")
    assert isinstance(machine.explained(is_loaded=True), DriverChanged)
    machine.start()
    assert machine.explained(is_loaded=True) is ERROR, "it did not help: never a crash loop"


def test_functions_of_the_loaded_library_are_known(stub_library: Stub) -> None:
    DriverLibrary(stub_library.library).load()
    assert has_function("nvmlInit_v2") is True
    assert has_function("nvmlNoSuchFunction") is False
