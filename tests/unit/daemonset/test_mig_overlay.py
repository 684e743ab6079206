"""What MIG needs of the host is in components of its own: nothing of it is in the base."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from hami_node.vendors.nvidia.driver import HOST_MOUNT
from hami_node.vendors.nvidia.node.handover.instances import FOLDER as CAPS
from tests.unit.daemonset.manifests import FOLDER, Object, starts_on
from tests.unit.daemonset.test_overlays import container_of, mounts_of, pod_of, rendered

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
