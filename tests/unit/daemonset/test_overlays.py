"""The overlays, rendered: paths agree, and which of them need more rights than the base."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources
from hami_node.vendors.nvidia.choices import DeviceListStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.e2e.assets import program
from tests.unit.daemonset.manifests import FOLDER, Object

pytestmark = pytest.mark.programs

OVERLAYS = sorted(path.parent.name for path in FOLDER.glob("overlays/*/kustomization.yaml"))
WITH_DAEMON = [
    name
    for name in OVERLAYS
    if name not in ("cert-manager", "extender-kubernetes-1.28", "monitoring")
]
PRIVILEGED = {"driver-root"}
MORE_CAPABILITIES = {"mig": ["SYS_ADMIN", "MKNOD"]}


@cache
def rendered(path: Path) -> tuple[Object, ...]:
    kubectl = program("kubectl")
    assert kubectl is not None, "no kubectl: `make e2e` brings one"
    done = subprocess.run(
        [kubectl, "kustomize", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(item for item in yaml.safe_load_all(done.stdout) if item)


def pod_of(name: str) -> Object:
    """The daemon's pod template in an overlay; "" for the base."""
    path = FOLDER / "overlays" / name if name else FOLDER / "base"
    (found,) = (item for item in rendered(path) if item["kind"] == "DaemonSet")
    template: Object = found["spec"]["template"]
    return template


def container_of(name: str) -> Object:
    (found,) = (item for item in pod_of(name)["spec"]["containers"] if item["name"] == "hami-node")
    item: Object = found
    return item


def env_of(name: str) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in container_of(name)["env"]}


def mounts_of(name: str) -> dict[str, Any]:
    return {item["mountPath"]: item for item in container_of(name)["volumeMounts"]}


def settings_of(name: str, folder: Path) -> Settings:
    """The settings of a daemon that is started as the overlay says."""
    got: list[Settings] = []

    def run(settings: Settings, _: ConfigSources) -> int:
        got.append(settings)
        return 0

    config = folder / "device-config.yaml"
    config.write_text("nvidia: {}")
    arguments = [
        item.replace("/config/device-config.yaml", str(config))
        for item in container_of(name)["args"]
        if not item.startswith("--node-config-file")
    ]
    env = {"NODE_NAME": "n1"} | {key: value for key, value in env_of(name).items() if value}
    done = CliRunner().invoke(main, arguments, obj=Programs(run_daemon=run, env=lambda: env))
    assert done.exit_code == 0, done.output
    return got[0]


@pytest.mark.parametrize("name", ["", *WITH_DAEMON])
def test_paths_in_settings_mounts_and_volumes_agree(name: str, tmp_path: Path) -> None:
    found, mounts = settings_of(name, tmp_path), mounts_of(name)
    own = found.of(NvidiaSettings)
    wanted = (
        found.plugin_dir,
        found.pod_resources_socket.parent,
        found.record_dir,
        own.hook_path / "vgpu",
    )
    volumes = {item["name"]: item for item in pod_of(name)["spec"]["volumes"]}
    for path in wanted:
        volume = volumes[mounts[str(path)]["name"]]
        assert volume["hostPath"]["path"] == str(path), "files are mounted by the host's path"
    assert {item["name"] for item in mounts.values()} <= set(volumes)


def check_hook_path(spec: Object) -> str:
    """The hook path, which every container that has the limiter's folder says and mounts alike."""
    (volume,) = (item["hostPath"]["path"] for item in spec["volumes"] if item["name"] == "limiter")
    found = set()
    for item in (*spec["containers"], *spec.get("initContainers", ())):
        mounted = [it["mountPath"] for it in item["volumeMounts"] if it["name"] == "limiter"]
        named = [it["value"] for it in item["env"] if it["name"] == "HOOK_PATH"]
        assert mounted == [f"{path}/vgpu" for path in named]
        found.update(named)
    (hook_path,) = found
    assert volume == f"{hook_path}/vgpu"
    return str(hook_path)


@pytest.mark.parametrize("name", ["", *WITH_DAEMON])
def test_limiters_folder_is_the_same_in_every_container(name: str) -> None:
    assert check_hook_path(pod_of(name)["spec"]) == env_of(name)["HOOK_PATH"]


def test_read_only_usr_local_with_the_limiter_from_an_image(tmp_path: Path) -> None:
    text = FOLDER.joinpath("overlays/read-only-usr-local/kustomization.yaml").read_text()
    image = os.path.relpath(FOLDER / "overlays/limiter-image", tmp_path)
    text = text.replace("../../base", image).replace("            # ", "            ")
    tmp_path.joinpath("kustomization.yaml").write_text(text)
    (found,) = (item for item in rendered(tmp_path) if item["kind"] == "DaemonSet")
    spec = found["spec"]["template"]["spec"]
    assert check_hook_path(spec) == "/var/lib/hami"
    assert len(spec["initContainers"]) == 2
    assert "/usr/local" not in yaml.safe_dump(spec)


@pytest.mark.parametrize("name", WITH_DAEMON)
def test_rights_are_those_of_the_base_unless_the_overlay_is_for_more(name: str) -> None:
    base, own = container_of("")["securityContext"], dict(container_of(name)["securityContext"])
    assert own.get("privileged", False) is (name in PRIVILEGED)
    if name not in PRIVILEGED:
        capabilities = dict(own.pop("capabilities"))
        assert capabilities.pop("add", []) == MORE_CAPABILITIES.get(name, [])
        assert {**own, "capabilities": capabilities} == base
    for host in ("hostNetwork", "hostPID", "hostIPC"):
        assert host not in pod_of(name)["spec"]
    assert pod_of(name)["spec"]["securityContext"] == pod_of("")["spec"]["securityContext"]
    if name in PRIVILEGED:
        text = FOLDER.joinpath("overlays", name, "kustomization.yaml").read_text()
        assert "privileged here, and only here: " in text, "the reason is written there"


def test_commented_lines_let_the_operator_pause_the_daemon_for_a_driver_upgrade(
    tmp_path: Path,
) -> None:
    text = FOLDER.joinpath("overlays/gpu-operator/kustomization.yaml").read_text()
    before, _, lines = text.partition("# patches:\n")
    text = before + "patches:\n" + lines.replace("#   ", "  ")
    for folder in ("base", "components/validations"):
        text = text.replace(f"../../{folder}", os.path.relpath(FOLDER / folder, tmp_path))
    tmp_path.joinpath("kustomization.yaml").write_text(text)
    (found,) = (item for item in rendered(tmp_path) if item["kind"] == "DaemonSet")
    assert found["spec"]["template"]["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.deploy.client": "true",
    }


def test_driver_root_has_both_places_where_the_operators_driver_may_be(tmp_path: Path) -> None:
    mounts, own = mounts_of("driver-root"), settings_of("driver-root", tmp_path).of(NvidiaSettings)
    for path in ("/host", "/driver-root", str(own.validations_dir)):
        assert mounts[path]["readOnly"] is True
        assert mounts[path]["mountPropagation"] == "HostToContainer"
    assert own.driver_root is None, "the Operator's driver-ready decides"
    assert str(own.driver_root_ctr_path) in mounts


def test_nri_asks_by_annotation_and_hands_cards_over_by_cdi(tmp_path: Path) -> None:
    notes = pod_of("nri")["metadata"]["annotations"]
    name = container_of("nri")["name"]
    assert notes[f"nvidia.cdi.k8s.io/container.{name}"] == "management.nvidia.com/gpu=all"
    own = settings_of("nri", tmp_path).of(NvidiaSettings)
    assert own.device_list_strategy == (DeviceListStrategy.CDI_CRI,)


def test_gpu_operator_adds_the_marks_and_nothing_else(tmp_path: Path) -> None:
    base, more = mounts_of(""), mounts_of("gpu-operator")
    own = settings_of("gpu-operator", tmp_path).of(NvidiaSettings)
    assert set(more) - set(base) == {str(own.validations_dir)}
    assert more[str(own.validations_dir)]["readOnly"] is True
