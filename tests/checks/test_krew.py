"""The archive for krew: it runs with nothing but a Python, and its manifest is krew's."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

from tests.fakes.saved_cluster import GPU, card_json, card_node_json, saved
from tests.krew import COMPILED, PLATFORMS, PURE, archive_of, manifest

SITE: Path = Path(sysconfig.get_paths()["purelib"])
MODULES = {"PyYAML": ("yaml", "_yaml")}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of this machine's Python, where krew would unpack it."""
    lib = tmp_path_factory.mktemp("lib")
    for package in (*PURE, *COMPILED):
        for name in MODULES.get(package, (package,)):
            source = SITE / name
            if source.is_dir():
                shutil.copytree(source, lib / name, ignore=_generated)
            else:
                shutil.copy(source.with_suffix(".py"), lib)
    folder = tmp_path_factory.mktemp("store")
    (folder / "a.tar.gz").write_bytes(archive_of(lib))
    subprocess.run(("tar", "-xzf", "a.tar.gz"), cwd=folder, check=True)
    return folder


def _generated(folder: str, names: list[str]) -> list[str]:
    """The generated code of kubernetes, and caches: copying them takes seconds."""
    is_client = folder.endswith("kubernetes/client")
    return [name for name in names if name == "__pycache__" or (is_client and name in _HEAVY)]


_HEAVY = ("api", "models")


def test_archive_runs_with_a_python_that_has_no_packages(unpacked: Path, tmp_path: Path) -> None:
    link = tmp_path / "kubectl-hami"
    link.symlink_to(unpacked / "kubectl-hami")  # as krew does
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    done = subprocess.run(
        (str(python), "-I", "-S", str(link), "nodes", "-f", "-", "-o", "json"),
        input=saved(card_node_json("n1", card_json(GPU))),
        env={"HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == b""
    assert [card["uuid"] for card in json.loads(done.stdout)["cards"]] == [GPU]


def test_archive_reaches_an_api_server(unpacked: Path, tmp_path: Path) -> None:
    python = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k"}}],
        "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    done = subprocess.run(
        (str(python), "-I", "-S", str(unpacked / "kubectl-hami"), "nodes"),
        env={"HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "config"), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr.endswith("Connection refused\n")
    assert done.returncode == 3


def test_archive_has_the_licence_and_nothing_heavy(unpacked: Path) -> None:
    assert (unpacked / "LICENSE").is_file()
    assert (unpacked / "a.tar.gz").stat().st_size < 6 << 20
    assert not (unpacked / "lib/hami_node/kubelet_api").exists()


def test_manifest_names_each_archive_with_its_checksum(tmp_path: Path) -> None:
    archives = {}
    for platform in PLATFORMS:
        archives[platform] = tmp_path / platform.archive("1.2.3")
        archives[platform].write_text(platform.arch)
    text = manifest("1.2.3", "https://example.com/1.2.3/", "https://example.com", archives)
    found = yaml.safe_load(text)
    assert (found["kind"], found["metadata"]["name"]) == ("Plugin", "hami")
    spec = found["spec"]
    assert (spec["version"], spec["homepage"]) == ("v1.2.3", "https://example.com")
    assert len(spec["shortDescription"]) <= 70
    first = spec["platforms"][0]
    assert first["selector"] == {"matchLabels": {"os": "linux", "arch": "amd64"}}
    assert first["uri"] == "https://example.com/1.2.3/kubectl-hami_1.2.3_linux_amd64.tar.gz"
    assert first["sha256"] == hashlib.sha256(b"amd64").hexdigest()
    assert {entry["bin"] for entry in spec["platforms"]} == {"kubectl-hami"}
    assert len(spec["platforms"]) == len(PLATFORMS)
