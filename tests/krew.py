"""The plugin `kubectl hami` for krew: an archive for each platform, and the manifest.

An archive holds the plugin with the packages that it loads, compiled ones for every Python that is
supported, because krew installs files and nothing else. `make release` calls `write_krew`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13")
PURE: Final = ("click", "kubernetes", "tenacity", "typing_extensions", "urllib3")
COMPILED: Final = ("msgspec", "PyYAML")
"""Together what `kubectl hami` loads; a test runs it with nothing else."""
_NO_PART: Final = ("__pycache__", "kubelet_api", "simulate", "demo", "*.pyi")
_KUBERNETES: Final = ("client/api", "client/models", "aio", "e2e_test", "test", "dynamic", "stream")
"""Generated code, 70 MB of it, that is never loaded."""


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and a processor, in krew's words and in those of wheels."""

    os: str
    arch: str
    wheels: tuple[str, ...]

    def archive(self, version: str) -> str:
        """The name of its archive."""
        return f"kubectl-hami_{version}_{self.os}_{self.arch}.tar.gz"


PLATFORMS: Final = (
    Platform("linux", "amd64", ("manylinux2014_x86_64", "manylinux_2_28_x86_64")),
    Platform("linux", "arm64", ("manylinux2014_aarch64", "manylinux_2_28_aarch64")),
    Platform("darwin", "amd64", ("macosx_10_9_x86_64", "macosx_10_13_x86_64")),
    Platform("darwin", "arm64", ("macosx_11_0_arm64",)),
)


def write_krew(dist: Path, version: str, where: str, homepage: str) -> None:
    """Write the archives and `hami.yaml`.

    Args:
        dist: the folder.
        version: of the release.
        where: the address below which the archives will be.
        homepage: of the project.
    """
    archives = {}
    with tempfile.TemporaryDirectory() as scratch:
        pure = Path(scratch, "pure")
        install(pure, PURE)
        for platform in PLATFORMS:
            lib = Path(scratch, platform.os, platform.arch)
            merge(pure, lib)
            for python in PYTHONS:
                made = Path(scratch, platform.os, f"{platform.arch}-{python}")
                install(made, COMPILED, *_tags(platform, python))
                merge(made, lib)
            archives[platform] = dist / platform.archive(version)
            archives[platform].write_bytes(archive_of(lib))
    (dist / "hami.yaml").write_text(manifest(version, where, homepage, archives))


def _tags(platform: Platform, python: str) -> tuple[str, ...]:
    wheels = [part for tag in platform.wheels for part in ("--platform", tag)]
    return ("--implementation", "cp", "--python-version", python, *wheels)


def install(folder: Path, names: Iterable[str], *tags: str) -> None:
    """Put packages into a folder, in the locked versions; needs a package index."""
    command = (
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"),
        *("--only-binary", ":all:", *tags, "--target", str(folder), *locked(names)),
    )
    subprocess.run(command, check=True)
    for part in _KUBERNETES:
        shutil.rmtree(folder / "kubernetes" / part, ignore_errors=True)


def locked(names: Iterable[str]) -> list[str]:
    """The packages with their versions."""
    text = (ROOT / "requirements.lock").read_text()
    versions = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\\n]+)", text, re.MULTILINE))
    plain = {_plain(name): version for name, version in versions.items()}
    return [f"{name}=={plain[_plain(name)]}" for name in names]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def merge(source: Path, lib: Path) -> None:
    """Add a folder of packages to another: compiled modules name their Python."""
    shutil.copytree(source, lib, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NO_PART))


def archive_of(lib: Path) -> bytes:
    """The archive of a folder with packages; the same files give the same bytes."""
    shutil.rmtree(lib / "bin", ignore_errors=True)
    merge(ROOT / "hami_node", lib / "hami_node")
    files = {f"lib/{path.relative_to(lib)}": path for path in lib.rglob("*") if path.is_file()}
    files |= {"kubectl-hami": ROOT / "plugin/kubectl-hami", "LICENSE": ROOT / "LICENSE"}
    raw = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o755 if name == "kubectl-hami" else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def manifest(version: str, where: str, homepage: str, archives: dict[Platform, Path]) -> str:
    """Krew's manifest for these archives."""
    text = (ROOT / "plugin/hami.yaml").read_text()
    text = text.replace("vVERSION", f"v{version}").replace("HOMEPAGE", homepage)
    entries = [
        {
            "selector": {"matchLabels": {"os": platform.os, "arch": platform.arch}},
            "uri": f"{where.rstrip('/')}/{path.name}",
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bin": "kubectl-hami",
        }
        for platform, path in archives.items()
    ]
    shown = yaml.safe_dump({"platforms": entries}, sort_keys=False)
    return text.replace("  platforms: []\n", "".join(f"  {line}\n" for line in shown.splitlines()))
