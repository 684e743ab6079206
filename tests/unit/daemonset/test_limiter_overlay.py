"""The component that delivers the limiter: foreign code gets nothing, ours verifies."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.vendors.nvidia.demo import empty_library
from tests.unit.daemonset.manifests import FOLDER, Object, documents

PART: Final = FOLDER / "components" / "limiter-image"
TOKEN: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
ROOTLESS: Final = {
    "privileged": False,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.fixture
def spec() -> Object:
    (found,) = documents(PART / "init-containers.yaml")
    pod: Object = found["spec"]["template"]["spec"]
    return pod


def mounts_of(container: Object) -> dict[str, Object]:
    return {item["name"]: item for item in container["volumeMounts"]}


def test_foreign_container_gets_an_empty_folder_and_nothing_else(spec: Object) -> None:
    foreign, _ = spec["initContainers"]
    assert foreign["securityContext"] == ROOTLESS | {
        "runAsUser": 65534, "runAsGroup": 65534, "runAsNonRoot": True,
    }  # fmt: skip
    assert set(mounts_of(foreign)) == {"fetched"}
    (folder,) = (item for item in spec["volumes"] if item["name"] == "fetched")
    assert folder["emptyDir"]["sizeLimit"]
    assert foreign["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert "{" not in foreign["image"], "nobody's image is named for the operator"
    assert "/" not in foreign["image"]


def test_only_the_daemon_gets_the_token(spec: Object) -> None:
    assert spec["automountServiceAccountToken"] is False
    (daemon,) = spec["containers"]
    assert mounts_of(daemon)["token"]["mountPath"] == TOKEN
    assert not any("token" in mounts_of(item) for item in spec["initContainers"])
    (token,) = (item for item in spec["volumes"] if item["name"] == "token")
    paths = [
        item["path"]
        for source in token["projected"]["sources"]
        for item in ([source["serviceAccountToken"]] if "serviceAccountToken" in source else
                     next(iter(source.values()))["items"])
    ]  # fmt: skip
    assert sorted(paths) == ["ca.crt", "namespace", "token"]


def test_our_container_installs_what_the_foreign_one_fetched(spec: Object, tmp_path: Path) -> None:
    foreign, ours = spec["initContainers"]
    assert ours["securityContext"] == ROOTLESS | {"runAsUser": 0}
    mounts = mounts_of(ours)
    assert set(mounts) == {"fetched", "limiter"}
    assert mounts["fetched"]["readOnly"] is True
    env = {item["name"]: item["value"] for item in ours["env"]}
    assert mounts["limiter"]["mountPath"] == f"{env['HOOK_PATH']}/vgpu"
    (base,) = documents(FOLDER / "base" / "daemonset" / "daemonset.yaml")
    (daemon,) = base["spec"]["template"]["spec"]["containers"]
    assert mounts_of(daemon)["limiter"]["mountPath"] == mounts["limiter"]["mountPath"]
    image, fetched = tmp_path / "image", tmp_path / "fetched"
    image.mkdir()
    fetched.mkdir()
    (image / "libvgpu.so.v2.10.0").write_bytes(empty_library("x86_64"))
    (image / "libvgpu.so.v2.10.0").chmod(0o755)
    paths = {"/k8s-vgpu/lib/nvidia/.": f"{image}/.", "/limiter/": f"{fetched}/"}
    command = [paths.get(word, word) for word in foreign["command"]]
    subprocess.run(command, check=True, timeout=30)
    arguments = [word.replace("/limiter", str(fetched)) for word in ours["args"][1:]]
    done = CliRunner().invoke(
        main, [ours["args"][0], *arguments], obj=Programs(env=lambda: {"HOOK_PATH": str(tmp_path)})
    )
    assert "installed: " in done.output or "another processor" in done.output
