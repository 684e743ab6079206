"""Write a release into dist/: `python -m tests.release VERSION` (make release).

The image as an OCI archive, chart and manifests that name its digest, a bill of materials, the
changelog's section and checksums. What a release needs is checked first, and all that is missing
is said at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.image_archive import ImageArchive
from tests.krew import write_krew
from tests.sbom import bill_of_materials

ROOT: Final = Path(__file__).parent.parent
PLATFORMS: Final = "linux/amd64,linux/arm64"
VERSION_PLACES: Final = {
    "hami_node/__init__.py": r'^__version__ = "(.*)"$',
    "daemonset/chart/Chart.yaml": r"^(?:version|appVersion| +image): (?:hami-node:)?(\d\S*)$",
    "daemonset/chart/images.txt": r"^hami-node:(.*)$",
    "daemonset/base/daemonset/kustomization.yaml": r"newName: hami-node\n +newTag: (.*)$",
    "daemonset/extender/kustomization.yaml": r"newName: hami-node\n +newTag: (.*)$",
}
"""Where the version stands, in the group."""
SEMVER: Final = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Image:
    """What manifests and chart name."""

    name: str
    digest: str


def misfits(root: Path, version: str) -> list[str]:
    """Why this can't be released as that version, each with its cure."""
    if not SEMVER.fullmatch(version):
        return [f"VERSION={version}: a version is three numbers, for instance 1.2.3 or 1.2.3-rc.1"]
    found = []
    for name, pattern in VERSION_PLACES.items():
        said = re.findall(pattern, (root / name).read_text(), re.MULTILINE)
        wrong = sorted({text.strip('"') for text in said} - {version})
        if wrong or not said:
            found.append(f"{name} says {', '.join(wrong) or 'nothing'}: set it to {version}")
    if not changes(root / "CHANGELOG.md", version):
        found.append(f"CHANGELOG.md has no section [{version}]: rename [Unreleased], and date it")
    return found


def changes(changelog: Path, version: str) -> str:
    """The section of a version; "" without one."""
    sections = re.split(r"^(?=## \[)", changelog.read_text(), flags=re.MULTILINE)
    return next((text for text in sections if text.startswith(f"## [{version}]")), "")


def with_image(values: str, image: Image) -> str:
    """The chart's values.yaml, for this image."""
    registry, repository = split_name(image.name)
    for key, text in (("registry", registry), ("repository", repository), ("digest", image.digest)):
        pattern = rf"(?m)\A([\s\S]*?^image:$[\s\S]*?^  {key}: ).*$"
        values, count = re.subn(pattern, rf'\g<1>"{text}"', values, count=1)
        if not count:
            raise SystemExit(f"daemonset/chart/values.yaml has no image.{key}")
    return values


def split_name(name: str) -> tuple[str, str]:
    """Registry and repository; the first part is a registry if it has a dot or a port."""
    first, slash, rest = name.partition("/")
    return (first, rest) if slash and re.search(r"[.:]", first) else ("", name)


def build_image(archive: Path, name: str) -> str:
    """Build the image for all platforms into an archive; its digest."""
    settings = {"PLATFORMS": PLATFORMS, **os.environ, "ARCHIVE": str(archive)}
    options = shlex.split(settings.get("BUILD_OPTIONS", ""))
    _run(("daemonset/build-image", name, *options), settings)
    return ImageArchive(archive).digest


def write_chart(dist: Path, version: str, image: Image) -> None:
    """Package the chart with helm; without helm that is said, and left out."""
    helm = program("helm")
    if helm is None:
        print("release: no chart: helm is not installed", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch:
        chart = Path(shutil.copytree(ROOT / "daemonset/chart", Path(scratch, "hami-node")))
        values = chart / "values.yaml"
        values.write_text(with_image(values.read_text(), image))
        for name in ("Chart.yaml", "images.txt"):
            text = (chart / name).read_text()
            named = f"{image.name}@{image.digest}"
            (chart / name).write_text(text.replace(f"hami-node:{version}", named))
        _run((helm, "package", str(chart), "--destination", str(dist)))


def write_manifests(path: Path, image: Image) -> None:
    """Render base and extender with the image's digest, to apply as they are."""
    kubectl = program("kubectl")
    if kubectl is None:
        print("release: no manifests: kubectl is not installed", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(dir=ROOT / "daemonset") as folder:  # a base is named from here
        Path(folder, "kustomization.yaml").write_text(
            "apiVersion: kustomize.config.k8s.io/v1beta1\n"
            "kind: Kustomization\n"
            "resources: [../base, ../extender]\n"
            f"images: [{{name: hami-node, newName: {image.name}, digest: '{image.digest}'}}]\n"
        )
        path.write_text(_run((kubectl, "kustomize", folder)))


def write_checksums(dist: Path) -> None:
    """SHA256SUMS of everything in the folder, for `sha256sum --check`."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(dist.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (dist / "SHA256SUMS").write_text("".join(lines))


def release(version: str, dist: Path, settings: Mapping[str, str]) -> None:
    """Write everything.

    Raises:
        SystemExit: something is missing or failed.
    """
    if found := misfits(ROOT, version):
        raise SystemExit("\n".join(f"error: {each}" for each in found))
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    stem = f"hami-node-{version}"
    name, digest = settings.get("IMAGE") or "hami-node", settings.get("IMAGE_DIGEST", "")
    if digest and not DIGEST.fullmatch(digest):
        raise SystemExit(f"error: IMAGE_DIGEST={digest}: it is sha256: and 64 hexadecimal digits")
    if not digest:
        archive = dist / f"{stem}-image.tar"
        digest = build_image(archive, f"{name}:{version}")
        (dist / f"{stem}-sbom.cdx.json").write_text(bill_of_materials(archive, version))
    image = Image(name, digest)
    write_chart(dist, version, image)
    write_manifests(dist / f"{stem}.yaml", image)
    (dist / f"{stem}-changes.md").write_text(changes(ROOT / "CHANGELOG.md", version))
    if where := settings.get("RELEASE_URL", ""):
        write_krew(dist, version, where, settings.get("SOURCE", ""))
    else:
        print("release: no kubectl hami: RELEASE_URL is not set", file=sys.stderr)
    write_checksums(dist)
    print(f"release: {name}@{digest}")
    print((dist / "SHA256SUMS").read_text(), end="")


def program(name: str) -> str | None:
    """Where a program is: installed, or as the end-to-end tests have made it."""
    made = Path("~/.cache/hami-e2e/bin", name).expanduser()
    return shutil.which(name) or (str(made) if made.exists() else None)


def _run(command: tuple[str, ...], settings: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=settings, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {command[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1]:
        raise SystemExit("usage: make release VERSION=1.2.3")
    release(sys.argv[1], ROOT / "dist", os.environ)
