"""Build the product's image from its Dockerfile without a registry or a container engine.

The base image is Debian's own python3, made with debootstrap; buildah runs the Dockerfile in a
chroot on the machine's network, with the machine's certificates and pip settings.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.assets import IMAGE, IMAGE_TAR, PROGRAMS, REPOSITORY, ROOTFS

_BASE: Final = "localhost/python:3.11-slim-bookworm"
_BASE_PACKAGES: Final = "python3,python3-venv,python3-pip,ca-certificates"
_HASH_FILE: Final = IMAGE_TAR.with_suffix(".sha256")
_CERTIFICATES: Final = "/etc/ssl/certs"
_STORAGE_PREFIX: Final = "image-storage"
_BUILDAH_ENV: Final = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
_INPUTS: Final = (
    *("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"),
    *("requirements-runtime.lock", "requirements-build.lock"),
    *("daemonset/build-image", "daemonset/image-tree", "daemonset/trim-kubernetes"),
)


def has_base() -> bool:
    """Is the base file system there, whole?"""
    return (ROOTFS / "usr/bin/python3").exists() and (ROOTFS / ".complete").exists()


def make_base() -> None:
    """Make Debian bookworm with python3 in a folder, from the mirror that apt uses.

    Raises:
        SystemExit: debootstrap failed; its log's end is in the text.
    """
    shutil.rmtree(ROOTFS, ignore_errors=True)
    ROOTFS.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        (
            *("debootstrap", "--variant=minbase", f"--include={_BASE_PACKAGES}"),
            *("bookworm", str(ROOTFS), _debian_mirror()),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        log = ROOTFS / "debootstrap/debootstrap.log"
        more = log.read_text()[-2000:] if log.exists() else done.stderr
        raise SystemExit(f"debootstrap failed:\n{done.stdout[-1000:]}{more}")
    shutil.rmtree(ROOTFS / "var/cache/apt/archives", ignore_errors=True)
    (ROOTFS / ".complete").touch()


def is_current() -> bool:
    """Was the image built from the files as they are now?"""
    return IMAGE_TAR.exists() and _HASH_FILE.exists() and _HASH_FILE.read_text() == _digest()


def build() -> None:
    """Run the Dockerfile; the image becomes an archive that containerd can import.

    Raises:
        SystemExit: buildah failed; what it printed last is in the text.
    """
    digest = _digest()
    with _storage() as storage, tempfile.TemporaryDirectory() as scratch:
        container = run_buildah(storage, "from", "scratch").strip()
        run_buildah(storage, "add", "-q", container, str(ROOTFS), "/")
        run_buildah(storage, "commit", "-q", container, _BASE)
        run_buildah(storage, "rm", container)
        run_build(IMAGE, storage, Path(scratch), PYTHON_IMAGE=_BASE)
        fresh = Path(scratch, IMAGE_TAR.name)
        run_buildah(storage, "push", "-q", IMAGE, f"docker-archive:{fresh}:{IMAGE}")
        shutil.move(fresh, IMAGE_TAR)
    _HASH_FILE.write_text(digest)


@contextmanager
def _storage() -> Iterator[Path]:
    """A folder for buildah that no build used before; those of interrupted builds are removed."""
    PROGRAMS.mkdir(parents=True, exist_ok=True)
    for left in PROGRAMS.glob(f"{_STORAGE_PREFIX}*"):
        _remove(left)
    storage = Path(tempfile.mkdtemp(prefix=f"{_STORAGE_PREFIX}-", dir=PROGRAMS))
    try:
        yield storage
    finally:
        _remove(storage)


def _remove(storage: Path) -> None:
    """Unmount what buildah left mounted there, newest first; then remove it.

    It stays where something can't be unmounted: folders of this machine are mounted into builds,
    and nothing may be removed through those.
    """
    for mount in reversed(_mounts_in(storage)):
        subprocess.run(("umount", "--lazy", mount), check=False)
    if not _mounts_in(storage):
        shutil.rmtree(storage, ignore_errors=True)


def _mounts_in(folder: Path) -> list[Path]:
    """What is mounted there, in the order in which it was; spaces are escaped in the file."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [Path(line.split()[1].replace(r"\040", " ")) for line in lines]
    return [mount for mount in mounts if mount.is_relative_to(folder)]


def run_build(image: str, storage: Path, scratch: Path, **settings: str) -> None:
    """Run daemonset/build-image with buildah, whose images lie in `storage`.

    Raises:
        SystemExit: it failed; what it printed last is in the text.
    """
    tool = {"IMAGE_TOOL": " ".join(("buildah", *_where(storage)))}
    command = (str(REPOSITORY / "daemonset/build-image"), image, "--network", "host")
    done = subprocess.run(
        (*command, *_build_mounts(scratch)),
        capture_output=True,
        text=True,
        env=os.environ | _BUILDAH_ENV | tool | settings,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"build-image failed:\n{(done.stdout + done.stderr)[-4000:]}")


def _build_mounts(scratch: Path) -> list[str]:
    """The machine's certificates and pip settings, mounted: nothing of them stays in the image."""
    config = scratch / "pip.conf"
    settings = _pip_settings()
    config.write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in settings.items()))
    mounts = [f"{config}:/etc/pip.conf:ro", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
    links = settings.get("find-links", "")
    mounts += [f"{p}:{p}:ro" for p in links.split() if Path(p).is_dir()]
    return [part for mount in mounts for part in ("-v", mount)]


def _pip_settings() -> dict[str, str]:
    """pip's settings on this machine, from its files and its environment."""
    shown = subprocess.run(
        (sys.executable, "-m", "pip", "config", "list"), capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^(?:global|:env:)\.([a-z-]+)='(.*)'$", shown, re.MULTILINE)
    return dict(sorted(found, key=lambda item: item[0]))


def _debian_mirror() -> str:
    """The address from which apt takes Debian's main packages."""
    shown = subprocess.run(
        ("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    targets = [line.split() for line in shown.splitlines()]
    for uri, codename, component in (t for t in targets if len(t) == 3):
        if "-" not in codename and component == "main":
            return uri
    raise SystemExit("apt has no source for Debian's main packages: add one to its sources")


def run_buildah(storage: Path, *args: str) -> str:
    """Run buildah, whose images lie in `storage`; what it printed.

    Raises:
        SystemExit: it failed; what it printed last is in the text.
    """
    done = subprocess.run(
        ("buildah", *_where(storage), *args),
        capture_output=True,
        text=True,
        env=os.environ | _BUILDAH_ENV,
        check=False,
    )
    if done.returncode:
        shown = (done.stdout + done.stderr)[-4000:]
        raise SystemExit(f"buildah {args[0]} failed:\n{shown}")
    return done.stdout


def _where(storage: Path) -> tuple[str, str]:
    return f"--root={storage}/root", f"--runroot={storage}/run"


def _digest() -> str:
    """One hash of everything that the image is made of."""
    paths = [REPOSITORY / name for name in _INPUTS]
    paths += sorted(
        p
        for p in (REPOSITORY / "hami_node").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    )
    total = hashlib.sha256()
    for path in paths:
        content = path.read_bytes() if path.exists() else b""
        total.update(f"{path.relative_to(REPOSITORY)} {len(content)}\n".encode() + content)
    return total.hexdigest()
