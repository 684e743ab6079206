from __future__ import annotations

import hashlib
import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from hami_node.errors import InstallError
from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.node.limiter.install import install
from hami_node.vendors.nvidia.node.limiter.limiter_files import LimiterFiles
from hami_node.vendors.on_node.limiter import LimiterInstalled, LimiterOrder
from tests.reliability import shows

MACHINE = os.uname().machine


def library(mark: str = "") -> bytes:
    """A whole library; another one for each mark."""
    return empty_library(MACHINE) + mark.encode()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    return tmp_path / "hook"


def deliver(hook: Path, source: Path | None, *pins: str, version: str = "") -> LimiterInstalled:
    return install(LimiterOrder(source=source, hook_path=hook, pins=pins, version=version))


def served(hook: Path) -> str:
    found = LimiterFiles(hook / "vgpu", hook / "vgpu" / "libvgpu.so").find()
    return found.library.name if found.library is not None and found.is_complete else found.problem


def test_library_is_installed_under_its_content_with_the_preload_for_containers(
    hook: Path, source: Path
) -> None:
    source.joinpath("libvgpu.so.v2.10.0").write_bytes(library())
    done = deliver(hook, source)
    sha256 = digest(library())
    assert done.path == hook / "vgpu" / f"libvgpu.so.v2.10.0-{sha256[:12]}"
    assert (done.version, done.sha256, done.is_new) == ("v2.10.0", sha256, True)
    assert f"--sha256 {sha256}" in done.hint
    assert done.path.read_bytes() == library()
    assert (hook / "vgpu" / "ld.so.preload").read_text() == f"{hook}/vgpu/libvgpu.so\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (hook / "vgpu").iterdir()} == {0o444}
    assert served(hook) == done.path.name


def test_second_run_changes_nothing(hook: Path, source: Path) -> None:
    source.joinpath("libvgpu.so").write_bytes(library())
    deliver(hook, source)
    before = written(hook / "vgpu")
    assert not deliver(hook, source).is_new
    assert written(hook / "vgpu") == before


def written(folder: Path) -> dict[Path, tuple[int, ...]]:
    """All that a write changes; reading moves the access time."""
    found = {path: path.stat() for path in folder.iterdir()}
    return {
        path: (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        for path, stat in found.items()
    }


def test_newest_version_in_the_folder_is_taken(hook: Path, source: Path) -> None:
    for version in ("", ".v2.9.0", ".v2.10.0", ".v2.11.0.tmp"):
        source.joinpath(f"libvgpu.so{version}").write_bytes(library(version))
    assert deliver(hook, source).version == "v2.10.0"


def test_with_a_sha256_the_library_that_has_it_is_taken(hook: Path, source: Path) -> None:
    for version in ("v2.9.0", "v2.10.0"):
        source.joinpath(f"libvgpu.so.{version}").write_bytes(library(version))
    done = deliver(hook, source, digest(library("v2.9.0")))
    assert (done.version, done.hint) == ("v2.9.0", "")


def test_version_without_a_name_is_what_the_operator_calls_it(hook: Path, source: Path) -> None:
    source.joinpath("libvgpu.so").write_bytes(library())
    assert deliver(hook, source).version == "unknown"
    assert deliver(hook, source, version="v2.4.1").path.name.startswith("libvgpu.so.v2.4.1-")


@shows(
    "L1",
    fault="the image has another library than the sha256 that is wanted",
    happens="nothing is installed; the error has both checksums, and the old library goes on",
)
def test_other_library_than_the_wanted_one_is_not_installed(hook: Path, source: Path) -> None:
    source.joinpath("libvgpu.so.v2.9.0").write_bytes(library("old"))
    before = deliver(hook, source).path
    source.joinpath("libvgpu.so.v2.10.0").write_bytes(library("forged"))
    source.joinpath("libvgpu.so.v2.9.0").unlink()
    with pytest.raises(InstallError) as caught:
        deliver(hook, source, "a" * 64)
    assert "a" * 64 in str(caught.value)
    assert digest(library("forged")) in str(caught.value)
    assert served(hook) == before.name
    assert not list((hook / "vgpu").glob("libvgpu.so.v2.10.0*"))


@shows(
    "L1",
    fault="the image holds half a library, a link, a device or nothing",
    happens="the init container ends with one line that names the file and what is wrong with it",
)
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("half", "bytes"),
        ("link", "may be a link"),
        ("fifo", "no regular file"),
        ("folder", "no regular file"),
        ("huge", "which no library has"),
        ("nothing", "has no libvgpu.so"),
        ("missing", "can't be read"),
    ],
)
def test_what_is_no_library_is_not_installed(
    hook: Path, source: Path, kind: str, told: str
) -> None:
    path = source / "libvgpu.so"
    if kind == "half":
        path.write_bytes(library()[:1000])
    elif kind == "link":
        (source / "real").write_bytes(library())
        path.symlink_to(source / "real")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "missing":
        source.rmdir()
    with pytest.raises(InstallError, match=told):
        deliver(hook, source)
    assert not hook.exists()


@shows(
    "L2",
    fault="another installer overwrites its own library in place while containers run",
    happens="the containers have the installed copy mapped, which keeps its inode and its bytes",
)
def test_what_others_write_in_place_is_not_what_containers_have(hook: Path) -> None:
    root = hook / "vgpu"
    root.mkdir(parents=True)
    theirs = root / "libvgpu.so.v2.9.0"
    theirs.write_bytes(library("one"))
    ours = deliver(hook, None).path
    with ours.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        theirs.write_bytes(library("two"))
        second = deliver(hook, None).path
        assert bytes(mapped) == library("one")
    assert ours.read_bytes() == library("one")
    assert served(hook) == second.name


@shows(
    "L2",
    fault="an installed library is damaged on the disk, and the installer runs again",
    happens="a whole file takes its name; who has the old one mapped keeps the old inode",
)
def test_damaged_library_is_replaced_and_never_written(hook: Path, source: Path) -> None:
    source.joinpath("libvgpu.so.v2.10.0").write_bytes(library())
    path = deliver(hook, source).path
    path.chmod(0o644)
    path.write_bytes(b"damaged" * 1000)
    assert "bytes" in served(hook) or "sha256" in served(hook) or "ELF" in served(hook)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert deliver(hook, source).is_new
        assert bytes(mapped).startswith(b"damaged")
    assert path.read_bytes() == library()
    assert served(hook) == path.name


@shows(
    "L3",
    fault="links stand in place of the library, the preload file and the pointer to it",
    happens="they are replaced; what they name is neither read nor written",
)
@pytest.mark.parametrize("name", ["library", "ld.so.preload", "limiter.installed"])
def test_links_are_replaced_and_never_followed(
    hook: Path, source: Path, tmp_path: Path, name: str
) -> None:
    source.joinpath("libvgpu.so").write_bytes(library())
    path = deliver(hook, source).path
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    place = path if name == "library" else path.with_name(name)
    place.unlink()
    place.symlink_to(victim)
    deliver(hook, source)
    assert victim.read_text() == "keep me"
    assert not place.is_symlink()
    assert served(hook) == path.name


@shows(
    "L3",
    fault="a folder, a dangling link or a file stands where a file or the folder would be",
    happens="the installer ends with one line that says what to remove",
)
@pytest.mark.parametrize("where", ["ld.so.preload", "library", "vgpu-file", "vgpu-dangling"])
def test_what_can_not_be_replaced_is_named(hook: Path, source: Path, where: str) -> None:
    source.joinpath("libvgpu.so").write_bytes(library())
    root = hook / "vgpu"
    if where.startswith("vgpu"):
        hook.mkdir()
        root.touch() if where == "vgpu-file" else root.symlink_to("/nowhere/at/all")
    elif where == "library":
        (root / f"libvgpu.so.unknown-{digest(library())[:12]}").mkdir(parents=True)
    else:
        (root / where).mkdir(parents=True)
    with pytest.raises(InstallError, match="remove it"):
        deliver(hook, source)


def test_folder_that_strangers_may_write_is_closed_first(hook: Path, source: Path) -> None:
    source.joinpath("libvgpu.so").write_bytes(library())
    (hook / "vgpu").mkdir(parents=True)
    (hook / "vgpu").chmod(0o777)  # as HAMi may have left it
    deliver(hook, source)
    assert stat.S_IMODE((hook / "vgpu").stat().st_mode) == 0o775
    if os.geteuid() != 0:
        pytest.skip("another group needs root")
    os.chown(hook / "vgpu", -1, 1000)
    with pytest.raises(InstallError, match="open to others"):
        deliver(hook, source)


@shows(
    "L4",
    fault="the disk is full while the library is written",
    happens="the installer says so, leaves nothing behind, and the old library goes on",
)
def test_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
import ctypes, os, sys
from pathlib import Path
from hami_node.errors import InstallError
from hami_node.vendors.on_node.limiter import LimiterOrder
from hami_node.vendors.nvidia.node.limiter.install import install
source, disk = Path(sys.argv[1]), Path(sys.argv[2])
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None):
    sys.exit(77)
if libc.mount(b"tmpfs", bytes(disk), b"tmpfs", 0, b"size=32k"):
    sys.exit(77)
first = install(LimiterOrder(source=source / "small", hook_path=disk))
try:
    install(LimiterOrder(source=source / "large", hook_path=disk))
except InstallError as e:
    assert "free some space" in str(e), e
else:
    sys.exit("it fits")
names = sorted(os.listdir(disk / "vgpu"))
assert names == sorted([first.path.name, "ld.so.preload", "limiter.installed"]), names
assert first.path.name in (disk / "vgpu/limiter.installed").read_text()
libc.mount(b"none", bytes(disk), None, 0x21, None)  # read-only from now on
try:
    install(LimiterOrder(source=source / "other", hook_path=disk))
except InstallError as e:
    assert "name a writable folder" in str(e), e
else:
    sys.exit("it was written")
"""
    for name, content in {
        "small": library(),
        "large": library("x" * 50_000),
        "other": library("y"),
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "libvgpu.so").write_bytes(content)
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), str(disk)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("no mount namespace here")
    assert done.returncode == 0, done.stderr


KILLED = """
import os, signal, sys
from pathlib import Path
from hami_node.vendors.on_node.limiter import LimiterOrder
from hami_node.vendors.nvidia.node.limiter.install import install
source, hook, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
count = 0
def watch(event, args):
    global count
    if event == "open" or event.removeprefix("os.") in ("rename", "remove", "chmod", "listdir"):
        count += 1
        if count == steps:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
install(LimiterOrder(source=source, hook_path=hook))
"""


@shows(
    "L4",
    fault="the installer is killed at each of its steps, in an upgrade",
    happens="the daemon serves the old library or the new one, whole; the next run finishes",
)
def test_killed_at_any_step_leaves_whole_files_only(hook: Path, source: Path) -> None:
    old = source / "libvgpu.so.v2.9.0"
    old.write_bytes(library("old"))
    first = deliver(hook, source).path.name
    old.unlink()
    source.joinpath("libvgpu.so.v2.10.0").write_bytes(library("new" * 1000))
    second = f"libvgpu.so.v2.10.0-{digest(library('new' * 1000))[:12]}"
    seen, steps, code = set(), 0, -9
    while code == -9:
        steps += 1
        command = [sys.executable, "-c", KILLED, str(source), str(hook), str(steps)]
        code = subprocess.run(command, check=False, timeout=60).returncode
        seen.add(served(hook))
        assert seen <= {first, second}, f"killed at step {steps}"
        for path in (hook / "vgpu").glob("libvgpu.so.*"):
            assert path.name.endswith(digest(path.read_bytes())[:12])
    assert (code, seen) == (0, {first, second})
    assert steps > 8, "it was killed at many steps"
    names = {path.name for path in (hook / "vgpu").iterdir()}
    assert names == {first, second, "ld.so.preload", "limiter.installed"}


def test_files_that_the_installer_has_not_made_stay(hook: Path, source: Path) -> None:
    root = hook / "vgpu"
    root.mkdir(parents=True)
    theirs = ["libvgpu.so", "libvgpu.so.v2.5.0", "license", ".x.tmp", ".hami-node-1.tmp", "notes"]
    for name in theirs:
        (root / name).write_text(name)
    left = root / ".hami-node-0123456789abcdef.tmp"
    left.write_text("of a killed installer")
    source.joinpath("libvgpu.so").write_bytes(library())
    deliver(hook, source)
    assert all((root / name).read_text() == name for name in theirs)
    assert not left.exists()
