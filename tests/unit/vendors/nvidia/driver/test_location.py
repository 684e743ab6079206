"""Where the driver is: settings first, then the Operator's file, then the host itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.vendors.nvidia.driver import DriverRoot, driver_root_of
from hami_node.vendors.nvidia.settings import NvidiaSettings


def located(tmp_path: Path, text: str = "", **given: Path) -> DriverRoot:
    if text:
        tmp_path.joinpath("driver-ready").write_text(text)
    return driver_root_of(NvidiaSettings(validations_dir=tmp_path, **given))  # type: ignore[arg-type]


def test_without_anything_it_is_the_host(tmp_path: Path) -> None:
    assert located(tmp_path, driver_root_ctr_path=tmp_path / "none") == DriverRoot(
        host=Path("/"), inside=tmp_path / "none", dev_host=Path("/"), dev_inside=tmp_path / "none"
    )


def test_settings_come_before_the_operators_file(tmp_path: Path) -> None:
    found = located(
        tmp_path,
        "NVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n",
        driver_root=Path("/opt/nvidia"),
        driver_root_ctr_path=Path("/mnt"),
        dev_root=Path("/"),
    )
    assert (found.host, found.inside, found.dev_host) == (
        Path("/opt/nvidia"),
        Path("/mnt"),
        Path("/"),
    )


def test_operators_file_counts_where_no_setting_names_the_root(tmp_path: Path) -> None:
    assert located(
        tmp_path,
        "NVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
        "NVIDIA_DEV_ROOT=/\nDEV_ROOT_CTR_PATH=/host\n",
    ) == DriverRoot(
        host=Path("/run/nvidia/driver"),
        inside=Path("/driver-root"),
        dev_host=Path("/"),
        dev_inside=Path("/host"),
    )


@pytest.mark.parametrize("value", ["relative", "/a/../b", ""])
def test_path_that_leads_elsewhere_is_not_taken(tmp_path: Path, value: str) -> None:
    assert located(tmp_path, f"NVIDIA_DRIVER_ROOT={value}\n").host == Path("/")


@pytest.mark.parametrize(("has_nodes", "wanted"), [(True, "/run/nvidia/driver"), (False, "/")])
def test_root_without_device_nodes_has_the_hosts(
    tmp_path: Path, has_nodes: bool, wanted: str
) -> None:
    inside = tmp_path / "root"
    inside.mkdir()
    if has_nodes:
        inside.joinpath("dev").mkdir()
    found = located(tmp_path, driver_root=Path("/run/nvidia/driver"), driver_root_ctr_path=inside)
    assert found.dev_host == Path(wanted)
