from __future__ import annotations

import hashlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.node.limiter.install import install
from hami_node.vendors.nvidia.node.limiter.limiter_files import Limiter, LimiterFiles
from hami_node.vendors.nvidia.node.limiter.versions import Read
from hami_node.vendors.on_node.limiter import LimiterOrder
from tests.fakes.limiter import lay_limiter
from tests.reliability import shows


@pytest.fixture
def hook_path(tmp_path: Path) -> Path:
    (tmp_path / "hook" / "vgpu").mkdir(parents=True)
    return tmp_path / "hook"


@pytest.fixture
def root(hook_path: Path) -> Path:
    return hook_path / "vgpu"


@pytest.fixture
def files(root: Path) -> LimiterFiles:
    return LimiterFiles(root, root / "libvgpu.so")


def chosen(files: LimiterFiles) -> str | None:
    library = files.find().library
    return library.name if library else None


def test_nothing_there_is_told_with_the_cure(root: Path, files: LimiterFiles) -> None:
    found = files.find()
    assert not found.is_complete
    assert found.problem == f"{root}/libvgpu.so is not on this node"
    assert "install" in found.hint


@shows(
    "N7",
    fault="the limiter's library is empty, half copied or no library",
    happens="it does not pass: containers are refused with file, reason and what to do",
)
@pytest.mark.parametrize("size", [0, 100, 1023])
def test_half_a_library_is_none(
    hook_path: Path, root: Path, files: LimiterFiles, size: int
) -> None:
    lay_limiter(hook_path)
    os.truncate(root / "libvgpu.so", size)
    found = files.find()
    assert not found.is_complete
    assert f"{root}/libvgpu.so has {size} bytes" in found.problem
    assert "install it again" in found.hint


@shows(
    "N7",
    fault="ld.so.preload names another path than the library has in a container",
    happens="containers are refused; the reason shows what it says and what it should say",
)
@pytest.mark.parametrize(
    "content",
    ["", "/usr/local/vgpu/libvgpu.so\n", "{path}\n\n", " {path}", "{path}:/x.so", "x" * 9000],
)
def test_preload_that_loads_something_else_is_refused(
    hook_path: Path, root: Path, files: LimiterFiles, content: str
) -> None:
    lay_limiter(hook_path)
    path = f"{root}/libvgpu.so"
    text = content.format(path=path)
    (root / "ld.so.preload").write_text(text)
    found = files.find()
    assert not found.is_complete
    assert found.problem.startswith(f"{root}/ld.so.preload has the content ")
    assert repr(text)[:100] in found.problem
    assert found.problem.endswith(f"instead of {path!r}")
    assert path in found.hint
    assert len(found.problem) < 1000


@shows(
    "N7",
    fault="several versions of the limiter on the node, 2.9 and 2.10, and a temporary file",
    happens="the newest by its numbers serves, the temporary file never",
)
def test_newest_version_serves_and_a_temporary_file_never(
    hook_path: Path, root: Path, files: LimiterFiles
) -> None:
    for version in ("v2.9.0", "v2.10.0"):
        lay_limiter(hook_path, version)
    whole = (root / "libvgpu.so.v2.10.0").read_bytes()
    for ending in (".v2.11.0.tmp", ".new", ".v2.9.0.tmp", "~"):
        (root / f"libvgpu.so{ending}").write_bytes(whole)
    assert chosen(files) == "libvgpu.so.v2.10.0"
    assert str(files.find().version) == "v2.10.0"


@pytest.mark.parametrize("name", ["libvgpu.so", "libvgpu.so.v2.9.0", "ld.so.preload"])
@pytest.mark.parametrize("kind", ["link", "folder", "dangling", "fifo"])
def test_what_is_no_regular_file_never_serves(
    hook_path: Path, root: Path, files: LimiterFiles, name: str, kind: str
) -> None:
    lay_limiter(hook_path, name.removeprefix("libvgpu.so").removeprefix("."))
    path = root / name
    real = path.rename(root / "real")
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(real if kind == "link" else root / "nothing")
    found = files.find()
    assert not found.is_complete
    assert f"{path} is no regular file" in found.problem or name == "ld.so.preload"


@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
def test_file_that_a_container_can_not_read_is_refused(
    hook_path: Path, root: Path, files: LimiterFiles, name: str
) -> None:
    lay_limiter(hook_path)
    (root / name).chmod(0o640)
    found = files.find()
    assert not found.is_complete
    assert f"{root / name} has the mode 0640" in found.problem
    assert "readable for all" in found.hint


def test_validator_counts_only_with_a_licence(root: Path, files: LimiterFiles) -> None:
    (root / "vgpuvalidator").write_text("x")
    assert files.find().validator is None
    (root / "license").write_text("x")
    assert files.find().validator == root / "vgpuvalidator"


def test_file_is_read_again_only_when_it_has_changed(hook_path: Path, root: Path) -> None:
    looks: list[int] = []

    def check(read: Read, size: int) -> str:
        looks.append(size)
        return "" if read(0, 4) == b"\x7fELF" else "is broken"

    files = LimiterFiles(root, root / "libvgpu.so", check)
    lay_limiter(hook_path)
    for _ in range(3):
        assert files.find().is_complete
    os.link(root / "libvgpu.so", root / "kept")
    files.was_linked("libvgpu.so")
    assert files.find().is_complete
    assert len(looks) == 1

    status = (root / "libvgpu.so").stat()
    with (root / "libvgpu.so").open("r+b") as file:  # in place, size and time as before
        file.write(b"zzzz")
    os.utime(root / "libvgpu.so", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not files.find().is_complete
    assert len(looks) == 2


@shows(
    "N7",
    fault="limiter 2.8.1 is installed, which does not limit a container's second program",
    happens="a warning in the log, an Event on each pod that gets it, and a metric",
    lost="the limit of second programs, until limiter 2.8.2 is installed",
)
def test_leaky_version_is_logged_once(
    hook_path: Path, files: LimiterFiles, caplog: pytest.LogCaptureFixture
) -> None:
    lay_limiter(hook_path, "v2.8.1")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert "second program" in files.find().defect
    assert [record.message for record in caplog.records] == ["limiter_defective"]


class Installed:
    """A node on which two versions were installed, the older one last."""

    def __init__(self, hook_path: Path, source: Path) -> None:
        source.mkdir()
        self.root, self.paths = hook_path / "vgpu", {}
        self.sha256: dict[str, str] = {}
        for version in ("v2.10.0", "v2.9.0"):
            path = source / f"libvgpu.so.{version}"
            path.write_bytes(empty_library(os.uname().machine) + version.encode())
            done = install(LimiterOrder(source=source, hook_path=hook_path))
            self.paths[version], self.sha256[version] = done.path, done.sha256
            path.unlink()

    def found(self, *pins: str) -> Limiter:
        files = LimiterFiles(self.root, self.root / "libvgpu.so", pins=lambda: pins)
        return files.find()


@pytest.fixture
def installed(hook_path: Path, tmp_path: Path) -> Installed:
    return Installed(hook_path, tmp_path / "source")


def test_installed_last_serves_before_newer_and_plain_ones(
    hook_path: Path, installed: Installed
) -> None:
    lay_limiter(hook_path)
    found = installed.found()
    assert (found.library, found.sha256) == (
        installed.paths["v2.9.0"], installed.sha256["v2.9.0"],
    )  # fmt: skip


@shows(
    "L1",
    fault="what was installed last is gone, damaged or not named any more, beside other libraries",
    happens="none of the others steps in: containers are refused with the remedy",
)
@pytest.mark.parametrize("what", ["gone", "other content", "damaged pointer", "foreign pointer"])
def test_what_was_installed_last_is_not_replaced_by_another(
    hook_path: Path, installed: Installed, what: str
) -> None:
    lay_limiter(hook_path)
    last, pointer = installed.paths["v2.9.0"], installed.root / "limiter.installed"
    if what == "gone":
        last.unlink()
    elif what == "other content":
        last.unlink()
        last.write_bytes(installed.paths["v2.10.0"].read_bytes())
    else:
        pointer.unlink()
        pointer.write_text("nothing" if what == "damaged pointer" else f"libvgpu.so {'a' * 64}\n")
    found = installed.found()
    assert (found.library, found.is_complete) == (None, False)
    assert str(installed.root) in found.problem
    assert "hami-node install-limiter" in found.hint


def test_file_whose_name_tells_another_content_never_serves(
    hook_path: Path, root: Path, files: LimiterFiles
) -> None:
    lay_limiter(hook_path, "v2.10.0-0123456789ab")
    assert not files.find().is_complete
    lay_limiter(hook_path, "v2.9.0")
    assert chosen(files) == "libvgpu.so.v2.9.0"


def test_sha256_for_another_machine_only_serves_nobody(installed: Installed) -> None:
    other = "arm64" if os.uname().machine == "x86_64" else "amd64"
    found = installed.found(f"{other}={'b' * 64}")
    assert not found.is_complete
    assert "no sha256 is given for" in found.problem


@shows(
    "N7",
    fault="the limiter's library is replaced while two threads look at it",
    happens="each serves the one that it has read, with that one's checksum",
)
def test_library_that_is_replaced_while_it_is_read_serves(hook_path: Path, root: Path) -> None:
    found: list[Limiter] = []

    def check(read: Read, size: int) -> str:
        if not found:
            found.append(Limiter())
            lay_limiter(hook_path)  # another file by now
            with ThreadPoolExecutor(1) as other:
                found.append(other.submit(looked_at.find).result())
        return ""

    lay_limiter(hook_path)
    wanted = hashlib.sha256((root / "libvgpu.so").read_bytes()).hexdigest()
    looked_at = LimiterFiles(root, root / "libvgpu.so", check)
    found.append(looked_at.find())
    assert [(one.problem, one.sha256) for one in found[1:]] == [("", wanted)] * 2
