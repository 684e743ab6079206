from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami_node.vendors.nvidia.node.leftovers import GRACE_S, STEPS, TRASH, Folders
from hami_node.vendors.nvidia.node.regions.region_file import MAX_CACHE_BYTES
from hami_node.vendors.on_node.upkeep import ClosedFile, FilesFound, FilesInUse
from tests.fakes.regions import fill_behind_the_end, on_the_disk
from tests.reliability import shows

ROOT = Path(__file__).parents[6]


class Node:
    """The folder of all containers, and a clock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self.handle = os.open(path, os.O_RDONLY)
        self.folders = Folders()
        self.now_s = 1000.0
        self.held: set[str] = set()

    def pass_(self, used: FilesInUse | str | None = "") -> FilesFound:
        if isinstance(used, str):
            used = FilesInUse(uids=frozenset(self.held), is_held=lambda uid: uid in self.held)
        return self.folders.tidy(self.handle, used, self.now_s)

    def tidy(self, passes: int = 1) -> FilesFound:
        """Notice what may go, wait, and remove it."""
        self.pass_()
        self.now_s += GRACE_S
        found = FilesFound()
        for _ in range(passes):
            found = self.pass_()
        return found

    def make(self, name: str, mode: int = 0o755) -> Path:
        folder = self.path / name
        folder.mkdir()
        folder.chmod(mode)
        (folder / f"{name}.cache").write_bytes(b"x" * 10_000)
        return folder

    def names(self) -> list[str]:
        return sorted(path.name for path in self.path.iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "containers")
    yield node
    os.close(node.handle)


def test_folder_of_an_ended_pod_goes_after_a_while_and_others_stay(node: Node) -> None:
    node.held = {"u-1"}
    for name in ("u-1_main", "u-2_main", "u-2_side"):
        node.make(name)
    assert node.pass_().next_s == GRACE_S
    assert node.names() == ["u-1_main", "u-2_main", "u-2_side"]
    node.now_s += GRACE_S - 1
    node.pass_()
    assert len(node.names()) == 3
    node.now_s += 1
    found = node.pass_()
    assert node.names() == ["u-1_main"]
    assert (found.folders, found.stuck, found.next_s) == (1, (), None)


@shows(
    "L6",
    fault="the API server or kubelet's list can't be read while files of containers are unclaimed",
    happens="nothing is removed, and afterwards everybody has been missed for 0 seconds",
)
def test_nothing_goes_while_it_is_unknown_who_is_there(node: Node) -> None:
    node.make("u-1_main")
    node.pass_()
    node.now_s += GRACE_S
    assert node.pass_(None).folders == 1
    node.now_s += 10 * GRACE_S
    node.pass_()
    assert node.names() == ["u-1_main"]
    node.now_s += GRACE_S
    node.pass_()
    assert node.names() == []


def test_pod_that_comes_back_at_the_last_moment_keeps_its_files(node: Node) -> None:
    node.make("u-1_main")
    node.pass_()
    node.now_s += GRACE_S
    node.pass_(FilesInUse(uids=frozenset(), is_held=lambda uid: uid == "u-1"))
    assert node.names() == ["u-1_main"]


@pytest.mark.parametrize(
    "name", ["other", "u-1", "_main", "u 1_main", "u-1_Main", "u-1_main.bak", "u_1_main", ".x_y"]
)
def test_names_of_others_stay(node: Node, name: str) -> None:
    node.make(name)
    assert node.tidy().folders == 0
    assert node.names() == [name]


def test_link_or_file_of_our_naming_goes_without_being_followed(node: Node, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    (node.path / "u-1_main").symlink_to(victim)
    (node.path / "u-2_main").touch()
    node.tidy()
    assert node.names() == []
    assert (victim / "precious").exists()


def test_bytes_are_those_on_the_disk_and_a_shared_library_counts_once(node: Node) -> None:
    node.held = {"u-1", "u-2"}
    first, second = (node.make(f"{uid}_main") for uid in sorted(node.held))
    sparse = first / "sparse"
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    library = first / "libvgpu.so"
    library.write_bytes(b"x" * 100_000)
    os.link(library, second / "libvgpu.so")
    files = [library, *node.path.glob("*/*.cache")]
    assert node.pass_().used_bytes == sum(path.stat().st_blocks * 512 for path in files)


@shows(
    "L9",
    fault="a container blows its cache file up to fill the node's disk",
    happens="at the next pass the file is cut to 64 MiB, beyond which no limiter reads; links and "
    "other files stay",
)
def test_cache_file_that_fills_the_disk_is_cut(node: Node, tmp_path: Path) -> None:
    node.held = {"u-1"}
    folder = node.make("u-1_main")
    cache, other = folder / "u-1_main.cache", tmp_path / "other"
    other.touch()
    for path in (cache, other):
        os.truncate(path, 1 << 30)
    (folder / "link.cache").symlink_to(other)
    os.link(other, folder / "second.cache")
    with cache.open("r+b") as file, mmap.mmap(file.fileno(), 2_008_985) as mapped:
        node.pass_()
        assert cache.stat().st_size == 64 << 20
        assert mapped[:10] == b"x" * 10
    assert other.stat().st_size == 1 << 30


CLOSED = """
import os, sys
from hami_node.vendors.nvidia.node.leftovers import Folders
from hami_node.vendors.on_node.upkeep import FilesInUse
folders = Folders()
used = FilesInUse(uids=frozenset(("u-1", "u-2", "u-3")), is_held=lambda uid: True)
print(*folders.tidy(os.open(sys.argv[1], os.O_RDONLY), used, 0.0).closed, sep="\\n")
"""


@shows(
    "L11",
    fault="root in a container closes its cache file to the daemon, and fills the disk with it",
    happens="the daemon opens a file of its own again and cuts it to 64 MiB; one that was given to "
    "another user stays as it is while the container runs, an Event on the pod names it, and "
    "`hami_node_container_usage_unreadable` too",
    lost="that space on the disk, until the pod is deleted",
)
def test_closed_cache_file_is_opened_again_or_told(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of other users need root")
    shut, given, small = (
        node.make(name) / f"{name}.cache" for name in ("u-1_main", "u-2_main", "u-3_main")
    )
    for path, owner, mode in ((shut, 0, 0), (given, 1234, 0o600), (small, 1234, 0o644)):
        if path is not small:
            fill_behind_the_end(path, MAX_CACHE_BYTES)
        os.chown(path, owner, owner)
        path.chmod(mode)
    command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", CLOSED)
    done = subprocess.run(
        [*command, str(node.path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    closed = ClosedFile(folder="u-2_main", why="can't be opened: Permission denied")
    assert done.stdout.strip() == str(closed)
    assert (shut.stat().st_mode & 0o777, on_the_disk(shut) < 20_000) == (0o666, True)
    assert (given.stat().st_mode & 0o777, given.read_bytes()) == (0o600, b"x" * 10_000)
    assert small.stat().st_mode & 0o777 == 0o644


def fill_deep(folder: Path) -> None:
    """Deeper than any path may be long."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=handle)
        below = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)


def fill_wide(folder: Path) -> None:
    for number in range(3 * STEPS):
        (folder / str(number)).touch()


def fill_odd(folder: Path) -> None:
    names = (b"\xff\xfe", b"a\nb", b"-rf", b"'\"\\", "ÿ".encode() * 100, b" ", b"..x", b"\x01")
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "wb"):
            pass


def fill_links(folder: Path) -> None:
    outside = folder.parent.parent / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "dangling").symlink_to("/nowhere")
    (folder / "sub").mkdir()
    (folder / "sub" / "up").symlink_to("../..")


def fill_kinds(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "closed").mkdir()
    (folder / "closed" / "in").mkdir()
    (folder / "closed" / "in" / "file").touch()
    (folder / "closed").chmod(0)
    (folder / "closed file").touch()
    (folder / "closed file").chmod(0)
    folder.chmod(0)


@shows(
    "L7",
    fault="an ended container leaves trees of 3,000 levels, 6,000 files, odd names, links, pipes",
    happens="all of it goes, in steps of 2,000 files; no link is followed; nothing else is touched",
)
@pytest.mark.parametrize("fill", [fill_deep, fill_wide, fill_odd, fill_links, fill_kinds])
def test_hostile_folder_is_emptied_in_bounded_steps(
    node: Node, tmp_path: Path, fill: Callable[[Path], None]
) -> None:
    node.held = {"u-2"}
    node.make("u-2_main")
    fill(node.make("u-1_main", 0o777))
    found, passes = node.tidy(), 1
    while found.next_s is not None:
        assert found.next_s < 10, "the rest goes soon"
        before = sum(len(files) for _, _, files in os.walk(node.path))
        found, passes = node.pass_(), passes + 1
        assert sum(len(files) for _, _, files in os.walk(node.path)) >= before - STEPS
        assert passes < 20
    assert (node.names(), found.stuck) == (["u-2_main"], ())
    outside = tmp_path / "outside"
    assert not outside.exists() or (outside / "precious").exists()


def test_removal_that_a_killed_daemon_began_is_finished_by_the_next(node: Node) -> None:
    fill_wide(node.make("u-1_main"))
    node.tidy()
    assert node.names() == [TRASH]
    node.folders = Folders()
    for _ in range(5):
        node.pass_()
    assert node.names() == []


RIGHTLESS = """
import os, sys
from pathlib import Path
from hami_node.vendors.nvidia.node.leftovers import Folders
from hami_node.vendors.on_node.upkeep import FilesInUse
containers = os.open(sys.argv[1], os.O_RDONLY)
folders = Folders()
used = FilesInUse(uids=frozenset(), is_held=lambda uid: False)
for now_s in (0.0, 60.0, 62.0):
    found = folders.tidy(containers, used, now_s)
print(*found.stuck, sep="\\n")
assert found.next_s is None, found
again = folders.tidy(containers, used, 100.0)
assert again.stuck == found.stuck, again
os.chown(Path(sys.argv[1], ".removed"), 0, 0)
"""


@shows(
    "L7",
    fault="what an ended container leaves belongs to other users, and the daemon has no capability",
    happens="what can go goes, the rest is moved aside; metric, log and an Event name it with why",
    lost="that space on the disk, until an administrator removes it",
)
def test_root_without_capabilities_removes_what_it_can_and_names_the_rest(node: Node) -> None:
    if os.geteuid() != 0:
        pytest.skip("files of other users need root")
    folder = node.make("u-1_main", 0o777)
    for name, mode in (("shut", 0o700), ("readable", 0o755), ("open", 0o777), ("empty", 0o700)):
        (folder / name).mkdir()
        if name != "empty":
            (folder / name / "file").touch()
            os.chown(folder / name / "file", 1000, 1000)
        os.chown(folder / name, 1000, 1000)
        (folder / name).chmod(mode)
    (folder / "file").touch()
    os.chown(folder / "file", 1000, 1000)
    node.make("u-2_main")
    command = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", RIGHTLESS)
    done = subprocess.run(
        [*command, str(node.path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (told,) = done.stdout.strip().splitlines()
    assert "u-1_main" in told
    assert "Permission denied" in told
    assert node.names() == [TRASH]
    left = {path.name for path in node.path.rglob("*")} - {TRASH}
    assert {"shut", "readable", "file"} <= left
    assert not left & {"open", "empty", "u-1_main.cache"}


MOUNTED = """
import ctypes, os, sys
from hami_node.vendors.nvidia.node.leftovers import Folders
from hami_node.vendors.on_node.upkeep import FilesInUse
path = os.fsencode(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000) or libc.mount(b"none", b"/", None, 0x44000, None):
    sys.exit(77)
inner, outer = path + b"/u-1_main/inner", path + b"/u-2_main"
for place in (inner, outer):
    if libc.mount(b"tmpfs", place, b"tmpfs", 0, b"size=32k"):
        sys.exit(77)
    open(place + b"/precious", "w").close()
containers, folders = os.open(path, os.O_RDONLY), Folders()
used = FilesInUse(uids=frozenset(), is_held=lambda uid: False)
for now_s in (0.0, 60.0, 62.0):
    found = folders.tidy(containers, used, now_s)
assert len(found.stuck) == 2 and all("busy" in why for why in found.stuck), found
assert os.path.exists(outer + b"/precious")
(inside,) = os.listdir(path + b"/.removed")
assert os.path.exists(path + b"/.removed/" + os.fsencode(inside) + b"/inner/precious")
"""


def test_what_is_mounted_there_is_not_emptied(node: Node) -> None:
    (node.make("u-1_main") / "inner").mkdir()
    node.make("u-2_main")
    done = subprocess.run(
        [sys.executable, "-c", MOUNTED, str(node.path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("no mount namespace here")
    assert done.returncode == 0, done.stderr
