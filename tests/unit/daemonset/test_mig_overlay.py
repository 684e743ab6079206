"""What MIG needs of the host is in components of its own: nothing of it is in the base."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hami_node.vendors.nvidia.driver.location import HOST_MOUNT
from hami_node.vendors.nvidia.node.handover.mig.caps import FOLDER as CAPS
from tests.unit.daemonset.manifests import FOLDER, Object, starts_on
from tests.unit.daemonset.test_overlays import container_of, env_of, mounts_of, pod_of, rendered

pytestmark = pytest.mark.programs

VARIABLES = {"NVIDIA_MIG_CONFIG_DEVICES": "all", "NVIDIA_MIG_MONITOR_DEVICES": "all"}


def composed(folder: Path, resource: str, *components: str) -> tuple[Object, Object]:
    """The pod template and the container of a kustomization with these parts."""
    paths = [os.path.relpath(FOLDER / "components" / name, folder) for name in components]
    folder.joinpath("kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [os.path.relpath(FOLDER / resource, folder)],
                "components": paths,
            }
        )
    )
    (found,) = (item for item in rendered(folder) if item["kind"] == "DaemonSet")
    pod: Object = found["spec"]["template"]
    (container,) = (it for it in pod["spec"]["containers"] if it["name"] == "hami-node")
    return pod, container


def test_base_has_no_capability_and_knows_no_mig() -> None:
    assert container_of("")["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container_of("")["securityContext"]["privileged"] is False
    text = yaml.safe_dump(pod_of(""))
    assert "MIG" not in text
    assert "nvidia-caps" not in text


def test_overlay_adds_two_variables_one_folder_and_two_capabilities() -> None:
    base, own = env_of(""), env_of("mig")
    assert own == base | VARIABLES
    more = mounts_of("mig")
    inside = str(HOST_MOUNT / CAPS)
    assert set(more) - set(mounts_of("")) == {inside}, "where the daemon looks for it"
    assert more[inside].get("readOnly", False) is False
    (volume,) = (
        item for item in pod_of("mig")["spec"]["volumes"] if item["name"] == more[inside]["name"]
    )
    assert volume["hostPath"] == {"path": f"/{CAPS}", "type": "DirectoryOrCreate"}
    security = container_of("mig")["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN", "MKNOD"]}
    assert security["allowPrivilegeEscalation"] is False
    assert pod_of("mig")["spec"]["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize("overlay", ["gpu-operator", "kubelet-root", "read-only-usr-local"])
def test_component_fits_overlays_in_which_the_runtime_adds_the_driver(
    overlay: str, tmp_path: Path
) -> None:
    _, found = composed(tmp_path, f"overlays/{overlay}", "mig")
    env = {item["name"]: item.get("value") for item in found["env"]}
    assert env.items() >= VARIABLES.items()
    assert {item["mountPath"] for item in found["volumeMounts"]} == {
        *mounts_of(overlay), str(HOST_MOUNT / CAPS)
    }  # fmt: skip


def test_switching_the_mode_is_privileged_and_only_in_its_own_component(tmp_path: Path) -> None:
    text = FOLDER.joinpath("overlays/mig/kustomization.yaml").read_text()
    assert "  # - ../../components/mig-mode\n" in text, "the overlay leaves it out"
    pod, found = composed(tmp_path, "base", "mig", "mig-mode")
    assert found["securityContext"] == {
        "runAsUser": 0, "privileged": True, "readOnlyRootFilesystem": True
    }  # fmt: skip
    assert pod["spec"]["hostPID"] is True
    assert {item["name"] for item in pod["spec"]["volumes"]} == {
        item["name"] for item in pod_of("mig")["spec"]["volumes"]
    }


def test_hosts_processes_are_seen_with_a_component_of_its_own(tmp_path: Path) -> None:
    pod, found = composed(tmp_path, "base", "mig", "host-pid")
    assert pod["spec"]["hostPID"] is True
    assert found == container_of("mig")


def from_docs(number: int, folder: Path) -> Object:
    """The DaemonSet of a kustomization that docs/mig.md tells people to write."""
    text = FOLDER.parent.joinpath("docs/mig.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    wanted = [block for block in blocks if "resources: [" in block][number]
    here = os.path.relpath(FOLDER.parent, folder)
    folder.joinpath("kustomization.yaml").write_text(wanted.replace("../hami-node/", f"{here}/"))
    (found,) = (item for item in rendered(folder) if item["kind"] == "DaemonSet")
    return found


def test_daemonset_beside_the_base_takes_nothing_of_it(tmp_path: Path) -> None:
    found = from_docs(0, tmp_path)
    place = (found["metadata"]["name"], found["metadata"]["namespace"])
    assert place == ("hami-node-mig", "hami-system")
    spec = found["spec"]
    assert starts_on(spec["template"]["spec"], {"mig": "on", "hami-node.io/serve": "false"})
    assert not starts_on(spec["template"]["spec"], {"nvidia.com/gpu.present": "true"})
    own = spec["selector"]["matchLabels"]
    assert own.items() <= spec["template"]["metadata"]["labels"].items()
    assert own["app"] != pod_of("")["metadata"]["labels"]["app"]
    (container,) = spec["template"]["spec"]["containers"]
    assert container["securityContext"] == container_of("mig")["securityContext"]


def test_component_over_another_overlay_as_the_documents_say(tmp_path: Path) -> None:
    spec = from_docs(1, tmp_path)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == container_of("mig")["securityContext"]
    assert "nvidia-caps" in {item["name"] for item in spec["volumes"]}
