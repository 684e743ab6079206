from __future__ import annotations

import os
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.driver import driver_root_of
from hami_node.vendors.nvidia.node.handover.cdi_spec import DriverOnHost
from hami_node.vendors.nvidia.node.handover.driver_files import DriverFiles
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.driver_root import VERSION, lay_driver, link

HOST = Path("/run/nvidia/driver")
FOLDER = "usr/lib/x86_64-linux-gnu"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return tmp_path / "driver-root"


def found(here: Path, host: Path = HOST, **values: object) -> DriverOnHost | str:
    settings = NvidiaSettings(driver_root=host, driver_root_ctr_path=here, **values)  # type: ignore[arg-type]
    return DriverFiles("x86_64").find(driver_root_of(settings), settings)


def driver(here: Path, host: Path = HOST, **values: object) -> DriverOnHost:
    result = found(here, host, **values)
    assert isinstance(result, DriverOnHost), result
    return result


def test_libraries_of_the_drivers_version_are_found_with_their_links(here: Path) -> None:
    lay_driver(here)
    by_name = {file.host_path: file.paths for file in driver(here).libraries}
    assert by_name == {
        f"{HOST}/{FOLDER}/libcuda.so.{VERSION}": (
            f"/{FOLDER}/libcuda.so.{VERSION}",
            f"/{FOLDER}/libcuda.so",
            f"/{FOLDER}/libcuda.so.1",
        ),
        **{
            f"{HOST}/{FOLDER}/{name}.so.{VERSION}": (
                f"/{FOLDER}/{name}.so.{VERSION}",
                f"/{FOLDER}/{name}.so.1",
            )
            for name in ("libnvidia-ml", "libnvidia-ptxjitcompiler")
        },
    }
    assert driver(here).folders == (f"/{FOLDER}",)
    assert [file.host_path for file in driver(here).programs] == [f"{HOST}/usr/bin/nvidia-smi"]


def test_nodes_of_other_devices_come_where_they_are_asked_for(here: Path) -> None:
    lay_driver(here)
    (here / "dev/infiniband").mkdir()
    wanted = ("nvidia-fs0", "nvidia-fs1", "infiniband/uverbs0", "infiniband/rdma_cm", "gdrdrv")
    for name in (*wanted, "sda"):
        (here / "dev" / name).touch()
    plain = {node.path for node in driver(here).nodes}
    every = driver(here, gds_enabled=True, mofed_enabled=True, gdrcopy_enabled=True).nodes
    assert {node.path for node in every} - plain == {f"/dev/{name}" for name in wanted}


def test_the_linked_version_counts_and_not_a_left_over_one(here: Path) -> None:
    lay_driver(here, "560.35.03")
    lay_driver(here)  # its links are in force
    assert all(VERSION in file.host_path for file in driver(here).libraries)


def test_links_to_absolute_paths_stay_inside_the_root(here: Path) -> None:
    real = f"{FOLDER}/nvidia/current"
    lay_driver(here, folder=real)
    (here / "etc/alternatives").mkdir(parents=True)
    link(here / "etc/alternatives/cuda", f"/{real}/libcuda.so.1")
    link(here / FOLDER / "libcuda.so.1", "/etc/alternatives/cuda")
    link(here / "usr/lib64", "/usr/lib/x86_64-linux-gnu")
    libraries = driver(here).libraries
    assert {file.host_path for file in libraries} == {
        f"{HOST}/{real}/{name}.so.{VERSION}"
        for name in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")
    }


def test_libraries_of_32_bits_and_of_other_processors_are_left_out(here: Path) -> None:
    lay_driver(here)
    (here / "usr/lib").mkdir(exist_ok=True)
    head = bytearray(b"\x7fELF" + bytes(16))
    for name, width, machine in (("libcuda", 1, 3), ("libnvidia-opencl", 2, 183)):
        head[4], head[18] = width, machine
        (here / f"usr/lib/{name}.so.{VERSION}").write_bytes(bytes(head))
    assert all(f"/{FOLDER}/" in file.host_path for file in driver(here).libraries)


def test_pipe_among_the_libraries_is_not_waited_for(here: Path) -> None:
    lay_driver(here)
    os.mkfifo(here / FOLDER / f"libnvidia-pipe.so.{VERSION}")
    (here / FOLDER / f"libnvidia-folder.so.{VERSION}").mkdir()
    names = [file.paths[0].rpartition("/")[2] for file in driver(here).libraries]
    assert len(names) == 3
    assert not any("pipe" in name or "folder" in name for name in names)


def test_firmware_of_the_version_comes_along(here: Path) -> None:
    lay_driver(here)
    (here / "lib/firmware/nvidia" / VERSION).mkdir(parents=True)
    (here / "lib/firmware/nvidia" / VERSION / "gsp_ga10x.bin").touch()
    inside = f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    assert [f.host_path for f in driver(here).programs if f.paths == (inside,)] == [
        f"{HOST}{inside}"
    ]


@pytest.mark.parametrize(
    ("host", "values", "expected"),
    [
        (Path("/"), {}, "/usr/bin/nvidia-cdi-hook"),
        (HOST, {}, ""),
        (HOST, {"nvidia_cdi_hook_path": Path("/opt/hook")}, "/opt/hook"),
    ],
    ids=["host root", "driver container", "set"],
)
def test_hook_is_looked_for_on_the_host_only(
    here: Path, host: Path, values: dict[str, object], expected: str
) -> None:
    lay_driver(here)
    if Path("/usr/bin/nvidia-cdi-hook").exists():
        pytest.skip("this machine has the toolkit")
    assert driver(here, host, **values).hook == expected
