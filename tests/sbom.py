"""The bill of materials of an image (CycloneDX): Python and Debian packages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.image_archive import ImageArchive

ROOT: Final = Path(__file__).parent.parent


def bill_of_materials(path: Path, version: str) -> str:
    """CycloneDX 1.6 as JSON, without a time or anything random: the same image, the same text.

    Raises:
        SystemExit: the tool failed.
    """
    archive = ImageArchive(path)
    image = archive.images()["amd64"]  # the other has the same packages
    *base, own = image["layers"]
    found = json.loads(_of_python(archive, own))
    known = {component["bom-ref"] for component in found["components"]}
    for layer in base:
        for component in _of_debian(archive, layer):
            if component["bom-ref"] not in known:
                found["components"].append(component)
                known.add(component["bom-ref"])
    found["metadata"]["component"]["version"] = version
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


def _of_python(archive: ImageArchive, layer: Any) -> str:
    """By cyclonedx-py, which reads the descriptions of packages in an environment."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        (site,) = Path(folder).glob("lib/python3*/site-packages")
        for member, content in archive.files(layer, lambda it: ".dist-info/" in it.name):
            if member.isfile():
                target = site / member.name.partition("/site-packages/")[2]
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        tool = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible")
        more = ("--of", "JSON", "--pyproject", str(ROOT / "pyproject.toml"))
        done = subprocess.run(
            (*tool, *more, f"{folder}/bin/python3"), capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SystemExit(f"error: cyclonedx-py failed:\n{done.stderr[-2000:]}")
    return done.stdout


def _of_debian(archive: ImageArchive, layer: Any) -> Iterator[dict[str, Any]]:
    """The packages that a layer's dpkg knows; distroless images have a file for each."""

    def is_status(name: str) -> bool:
        folder, _, file = name.removeprefix("./").rpartition("/")
        is_one = folder == "var/lib/dpkg" and file == "status"
        return is_one or (folder == "var/lib/dpkg/status.d" and not file.endswith(".md5sums"))

    for _, content in archive.files(layer, lambda it: it.isfile() and is_status(it.name)):
        yield from debian_packages(content.decode())


def debian_packages(status: str) -> Iterator[dict[str, Any]]:
    """The installed packages of dpkg's status as components."""
    for block in status.split("\n\n"):
        package = message_from_string(block.strip())
        name, version = package.get("Package"), package.get("Version")
        if not name or not version or "deinstall" in package.get("Status", ""):
            continue
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}"
        if machine := package.get("Architecture"):
            purl += f"?arch={machine}"
        yield {
            "type": "library",
            "name": name,
            "version": version,
            "purl": purl,
            "bom-ref": purl,
        }
