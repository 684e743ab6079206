"""Links of a driver's folder are followed inside it; the library is found wherever it is put."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.vendors.nvidia.driver import FOLDERS, LIBRARY, libraries_below, resolve_in

REAL = "libnvidia-ml.so.570.86.15"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    made.joinpath("usr/lib64").mkdir(parents=True)
    made.joinpath("usr/lib64", REAL).write_text("library")
    return made


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("usr/lib64/libnvidia-ml.so.1", REAL),
        ("lib64", "usr/lib64"),
        ("lib64", "/usr/lib64"),
        ("lib64", "../../../usr/lib64"),
        ("usr/lib64/x", "../../usr/./lib64"),
    ],
)
def test_links_stay_inside_the_root(root: Path, link: str, target: str) -> None:
    root.joinpath(link).symlink_to(target)
    path = link if target == REAL else f"{link}/{REAL}"
    assert resolve_in(root, path) == root / "usr/lib64" / REAL


def test_absolute_link_never_leads_to_the_containers_own_file(root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("the container's own")
    root.joinpath("usr/lib64", LIBRARY).symlink_to(outside)
    assert list(libraries_below(root)) == []
    inside = root / str(outside).lstrip("/")
    inside.parent.mkdir(parents=True)
    inside.write_text("the driver's")
    assert [path.read_text() for path in libraries_below(root)] == ["the driver's"]


def test_links_in_a_circle_are_an_error(root: Path) -> None:
    root.joinpath("a").symlink_to("b")
    root.joinpath("b").symlink_to("/a")
    with pytest.raises(OSError, match="Too many levels"):
        resolve_in(root, "a/x")


@pytest.mark.parametrize("folder", FOLDERS)
def test_library_is_found_in_every_usual_folder(tmp_path: Path, folder: str) -> None:
    tmp_path.joinpath(folder).mkdir(parents=True)
    tmp_path.joinpath(folder, LIBRARY).write_text("x")
    assert list(libraries_below(tmp_path)) == [tmp_path / folder / LIBRARY]
