from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.on_node.answer import Slice
from tests.fakes.limiter import lay_limiter
from tests.reliability import shows

SERVED = Slice(pod_uid="u-1", container=Container(name="main"), grants=())


@pytest.fixture
def hook_path(tmp_path: Path) -> Path:
    lay_limiter(tmp_path / "hook", "v2.8.0")
    return tmp_path / "hook"


@pytest.fixture
def hook(hook_path: Path) -> HookFolder:
    return HookFolder(hook_path)


@pytest.fixture
def root(hook_path: Path) -> Path:
    return hook_path / "vgpu"


@pytest.fixture
def own(root: Path) -> Path:
    return root / "containers" / "u-1_main"


@pytest.fixture(params=[0o022, 0o077, 0o002], ids=["usual", "strict", "group"])
def _umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def prepare(hook: HookFolder) -> Path:
    """Prepare the container, and return its library."""
    library = hook.prepare(SERVED, hook.limiter()).library
    assert library is not None
    return library


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@shows(
    "N8",
    fault="a container writes what it likes where it may write",
    happens="it may write one empty file made for it, in a folder that only root can change",
)
@pytest.mark.usefixtures("_umask")
def test_container_gets_one_file_that_it_can_write_and_no_folder(
    hook: HookFolder, root: Path, own: Path
) -> None:
    prepare(hook)
    cache = own / "u-1_main.cache"
    assert (mode_of(cache), cache.stat().st_size) == (0o666, 0)
    assert {mode_of(own), mode_of(own.parent)} == {0o755}
    assert mode_of(root / "lock") == 0o777
    assert not mode_of(root) & 0o002


@shows(
    "N8",
    fault="a container is served again after a restart, with a running account in its cache file",
    happens="the file stays as it is, and so does the limiter's version that made it",
)
def test_account_and_limiter_stay_when_a_container_is_served_again(
    hook: HookFolder, hook_path: Path, root: Path, own: Path
) -> None:
    library = prepare(hook)
    cache = own / "u-1_main.cache"
    cache.write_bytes(b"shared region")
    cache.chmod(0o600)
    inode = library.stat().st_ino
    lay_limiter(hook_path, "v2.10.0")
    (root / "libvgpu.so.v2.8.0").unlink()

    again = prepare(hook)

    assert cache.read_bytes() == b"shared region"
    assert mode_of(cache) == 0o600
    assert (again, again.stat().st_ino) == (library, inode)
    assert again.name == "libvgpu.so.v2.8.0"


def test_kept_library_that_was_overwritten_in_place_is_refused(hook: HookFolder) -> None:
    os.truncate(prepare(hook), 10)
    with pytest.raises(AllocationError, match=r"libvgpu.so.v2.8.0 has 10 bytes.*recreate the pod"):
        hook.prepare(SERVED, hook.limiter())


def test_library_that_was_replaced_after_its_check_is_not_given(
    hook: HookFolder, hook_path: Path, own: Path
) -> None:
    checked = hook.limiter()
    lay_limiter(hook_path, "v2.8.0")
    with pytest.raises(AllocationError, match=r"being replaced just now: .*recreate"):
        hook.prepare(SERVED, checked)
    assert list(own.iterdir()) == []
    assert prepare(hook).exists()


def test_folder_of_an_earlier_version_is_tolerated_as_it_is(
    hook: HookFolder, root: Path, own: Path
) -> None:
    own.mkdir(parents=True)
    own.chmod(0o777)
    (own / "5bd0.cache").write_bytes(b"region")
    (own / "libvgpu.so").touch()

    assert prepare(hook) == root / "libvgpu.so.v2.8.0"

    assert mode_of(own) == 0o777
    assert (own / "5bd0.cache").read_bytes() == b"region"
    assert (own / "libvgpu.so").stat().st_size == 0
    assert mode_of(own / "u-1_main.cache") == 0o666


@shows(
    "N8",
    fault="a link, a folder or a pipe stands where the daemon makes a container's file or folder",
    happens="the pod is refused; nothing behind it is opened, changed or given to the container",
)
@pytest.mark.parametrize(
    ("where", "what"),
    [
        *product(
            ("containers", "containers/u-1_main", "lock"),
            ("link", "file-link", "fifo", "file", "hard-link"),
        ),
        *product(("cache",), ("link", "file-link", "fifo", "folder", "hard-link")),
    ],
)
def test_something_else_in_the_place_is_refused_and_not_followed(
    hook: HookFolder, root: Path, own: Path, tmp_path: Path, what: str, where: str
) -> None:
    victim, secret = tmp_path / "victim", tmp_path / "victim" / "secret"
    victim.mkdir(mode=0o700)
    secret.touch(0o600)
    place = own / "u-1_main.cache" if where == "cache" else root / where
    place.parent.mkdir(parents=True, exist_ok=True)
    match what:
        case "link":
            place.symlink_to(victim)
        case "file-link":
            place.symlink_to(secret)
        case "fifo":
            os.mkfifo(place)
        case "file":
            place.touch()
        case "hard-link":
            os.link(secret, place)
        case _:
            place.mkdir()

    with pytest.raises(AllocationError, match=rf"{place.name} can't be made .*remove it"):
        hook.prepare(SERVED, hook.limiter())

    assert (mode_of(victim), mode_of(secret)) == (0o700, 0o600)
    assert list(victim.iterdir()) == [secret]


def test_folders_that_everybody_could_write_are_closed(
    hook: HookFolder, root: Path, own: Path
) -> None:
    own.parent.mkdir()
    for folder in (root, own.parent):
        folder.chmod(0o777)
    prepare(hook)
    assert {mode_of(root), mode_of(own.parent)} == {0o775}


def test_folder_that_can_not_be_made_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hook = HookFolder(tmp_path / "file")
    with pytest.raises(AllocationError, match=r"can't be made.*check the disk"):
        hook.prepare(SERVED, hook.limiter())
