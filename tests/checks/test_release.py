"""What `make release` checks, and what it writes beside the image."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami_node import __version__
from tests.image_archive import ImageArchive
from tests.release import (
    ROOT,
    VERSION_PLACES,
    Image,
    misfits,
    program,
    release,
    split_name,
    with_image,
    write_chart,
    write_checksums,
    write_manifests,
)
from tests.sbom import bill_of_materials

HELM = program("helm")
DIGEST = f"sha256:{'a' * 64}"
STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Version: 3.0.1+deb12u2
Description: a library
 with more lines

Package: gone
Status: deinstall ok config-files
Version: 1
"""
METADATA = (
    "Metadata-Version: 2.4\nName: msgspec\nVersion: 0.22.0\nLicense-Expression: BSD-3-Clause\n"
)


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A copy of what carries the version, ready to be released."""
    for name in VERSION_PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## [{__version__}] - 2026-01-01\n\n- Much.\n\n## [0.0.1]\n\n- Little.\n"
    )
    return tmp_path


# -- what is checked -------------------------------------------------------------------------------
def test_sources_of_one_version_are_ready(sources: Path) -> None:
    assert misfits(sources, __version__) == []


def test_all_that_is_missing_is_said_at_once(sources: Path) -> None:
    found = misfits(sources, "9.8.7")
    assert len(found) == len(VERSION_PLACES) + 1
    assert found[0] == f"hami_node/__init__.py says {__version__}: set it to 9.8.7"
    assert "CHANGELOG.md has no section [9.8.7]" in found[-1]


@pytest.mark.parametrize("version", ["v1.2.3", "1.2", "1.2.3 ", "../x", ""])
def test_what_is_no_version_is_refused(sources: Path, version: str) -> None:
    (why,) = misfits(sources, version)
    assert "three numbers" in why


def test_nothing_is_written_where_something_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="set it to 9\\.8\\.7"):
        release("9.8.7", tmp_path / "dist", {})
    assert not (tmp_path / "dist").exists()


# -- what is written -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "registry", "repository"),
    [
        ("hami-node", "", "hami-node"),
        ("team/hami-node", "", "team/hami-node"),
        ("registry.example.org/team/hami-node", "registry.example.org", "team/hami-node"),
        ("localhost:5000/hami-node", "localhost:5000", "hami-node"),
    ],
)
def test_chart_names_the_image_by_its_digest(name: str, registry: str, repository: str) -> None:
    assert split_name(name) == (registry, repository)
    before = (ROOT / "daemonset/chart/values.yaml").read_text()
    after = with_image(before, Image(name, DIGEST))
    wanted = yaml.safe_load(before)
    wanted["image"] |= {"registry": registry, "repository": repository, "digest": DIGEST}
    assert yaml.safe_load(after) == wanted
    assert len(before.splitlines()) == len(after.splitlines()), "comments stay"


@pytest.mark.programs
def test_packed_chart_names_no_image_of_ours_by_its_tag(tmp_path: Path) -> None:
    write_chart(tmp_path, __version__, Image("example.org/hami-node", DIGEST))
    with tarfile.open(tmp_path / f"hami-node-{__version__}.tgz") as chart:
        for name in ("values.yaml", "Chart.yaml", "images.txt"):
            file = chart.extractfile(f"hami-node/{name}")
            assert file is not None
            text = file.read().decode()
            assert DIGEST in text
            assert f"hami-node:{__version__}" not in text


@pytest.mark.programs
def test_manifests_name_the_image_by_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    write_manifests(path, Image("example.org/hami-node", DIGEST))
    text = path.read_text()
    assert f"image: example.org/hami-node@{DIGEST}" in text
    assert "image: hami-node:" not in text
    kinds = [item["kind"] for item in yaml.safe_load_all(text)]
    assert {"DaemonSet", "Deployment", "Namespace"} <= set(kinds)
    assert not list((ROOT / "daemonset").glob("tmp*"))


def test_checksums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"a")
    (tmp_path / "b.json").write_bytes(b"b")
    write_checksums(tmp_path)
    done = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"OK") == 2


# -- the bill of materials -------------------------------------------------------------------------
def packed(files: dict[str, bytes]) -> bytes:
    """A tar of these files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def image_of(path: Path, *layers: dict[str, bytes]) -> ImageArchive:
    """An archive with one image of these layers."""
    blobs: dict[str, bytes] = {}

    def put(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"digest": f"sha256:{digest}"}

    def document(content: Any) -> dict[str, str]:
        return put(json.dumps(content).encode())

    manifest = {
        "config": document({"architecture": "amd64", "config": {}}),
        "layers": [put(packed(files)) for files in layers],
    }
    index = json.dumps({"manifests": [document(manifest)]}).encode()
    path.write_bytes(packed({"index.json": index, **blobs}))
    return ImageArchive(path)


@pytest.mark.skipif(
    importlib.util.find_spec("cyclonedx_py") is None, reason="cyclonedx-bom is not installed"
)
def test_bill_lists_python_and_debian_packages_and_is_always_the_same(tmp_path: Path) -> None:
    site = "opt/hami-node/lib/python3.11/site-packages"
    archive = image_of(
        tmp_path / "image.tar",
        {"var/lib/dpkg/status": STATUS.encode()},
        {f"{site}/msgspec-0.22.0.dist-info/METADATA": METADATA.encode()},
    )
    text = bill_of_materials(archive.path, "1.2.3")
    assert text == bill_of_materials(archive.path, "1.2.3")
    found = json.loads(text)
    assert found["bomFormat"] == "CycloneDX"
    assert found["metadata"]["component"]["name"] == "hami-node"
    assert found["metadata"]["component"]["version"] == "1.2.3"
    named = {item["name"]: item for item in found["components"]}
    assert {"libssl3", "msgspec"} <= named.keys()
    assert "gone" not in named
    (licence,) = named["msgspec"]["licenses"]
    assert "BSD-3-Clause" in json.dumps(licence)
