"""Which nodes the daemon serves, its images, and its paths on each platform."""

from __future__ import annotations

import pytest

from tests.unit.chart.helm import (
    NOT_REFUSED,
    PROCESSORS,
    Object,
    container,
    host_paths,
    needs_helm,
    pod,
    render,
    template,
    terms,
)

pytestmark = needs_helm


def test_nodes_with_the_usual_labels_are_served_unless_our_label_says_no() -> None:
    assert terms(render()) == [
        [("hami-node.io/serve", "In", ("true",)), PROCESSORS],
        [("nvidia.com/gpu.present", "In", ("true",)), NOT_REFUSED, PROCESSORS],
        [("feature.node.kubernetes.io/pci-10de.present", "In", ("true",)), NOT_REFUSED, PROCESSORS],
        [("gpu", "In", ("on",)), NOT_REFUSED, PROCESSORS],
    ]


def test_own_label_alone_selects_when_asked() -> None:
    found = render({"devicePlugin": {"nodeSelection": "own-label"}})
    assert terms(found) == [[("hami-node.io/serve", "In", ("true",)), PROCESSORS]]
    notes = found["DaemonSet/hami-node"]["metadata"]["annotations"]
    assert notes["hami-node.io/node-selection"] == "own-label"


def test_label_of_the_operator_is_a_node_selector_when_asked() -> None:
    assert "nodeSelector" not in pod(render())
    values = {"gpuOperatorClient": True, "nvidiaNodeSelector": {"pool": "a"}}
    selector = pod(render({"devicePlugin": values}))["nodeSelector"]
    assert selector == {"nvidia.com/gpu.deploy.client": "true", "pool": "a"}


def images(values: Object) -> set[str]:
    return {
        line.split("image:")[1].strip()
        for line in template({"view": {"enabled": True}, **values}).splitlines()
        if line.strip().startswith("image:")
    }


def test_digest_takes_precedence_over_every_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    found = images(
        {
            "image": {"digest": digest, "tag": "8", "registry": "one.example"},
            "limiter": {"image": {"digest": digest}},
            "scheduler": {"kubeScheduler": {"image": {"digest": digest}}},
        }
    )
    assert found == {
        f"one.example/hami-node@{digest}",
        f"registry.k8s.io/kube-scheduler@{digest}",
        f"docker.io/projecthami/hamicore@{digest}",
    }


@pytest.mark.parametrize(
    ("platform", "hook", "pod_resources"),
    [
        ("", "/usr/local/vgpu", "/var/lib/kubelet/pod-resources"),
        ("k3s", "/usr/local/vgpu", "/var/lib/kubelet/pod-resources"),
        ("rke2", "/usr/local/vgpu", "/var/lib/kubelet/pod-resources"),
        ("k0s", "/usr/local/vgpu", "/var/lib/k0s/kubelet/pod-resources"),
        (
            "microk8s",
            "/usr/local/vgpu",
            "/var/snap/microk8s/common/var/lib/kubelet/pod-resources",
        ),
        ("talos", "/var/lib/hami/vgpu", "/var/lib/kubelet/pod-resources"),
        ("bottlerocket", "/var/lib/hami/vgpu", "/var/lib/kubelet/pod-resources"),
        ("gke", "/home/kubernetes/bin/hami/vgpu", "/var/lib/kubelet/pod-resources"),
    ],
)
def test_platform_sets_the_paths_everywhere(platform: str, hook: str, pod_resources: str) -> None:
    found = render({"platform": platform})
    assert host_paths(found)["limiter"] == hook
    assert host_paths(found)["pod-resources"] == pod_resources
    assert host_paths(found)["device-plugins"] == "/var/lib/kubelet/device-plugins"
    for one in [*pod(found)["initContainers"], container(found)]:
        mounts = {mount["name"]: mount["mountPath"] for mount in one["volumeMounts"]}
        assert mounts.get("limiter", hook) == hook
        hooks = [each["value"] for each in one["env"] if each["name"] == "HOOK_PATH"]
        assert all(f"{each}/vgpu" == hook for each in hooks)
    flag = f"--pod-resources-socket={pod_resources}/kubelet.sock"
    assert (flag in container(found)["args"]) == (pod_resources != "/var/lib/kubelet/pod-resources")


def test_value_takes_precedence_over_the_platform() -> None:
    values = {
        "platform": "k0s",
        "devicePlugin": {"podResourcesPath": "/data/kubelet/pod-resources/"},
    }
    assert host_paths(render(values))["pod-resources"] == "/data/kubelet/pod-resources"


def test_openshift_lets_our_accounts_run_and_no_other() -> None:
    found = render({"platform": "openshift", "view": {"enabled": True}})
    rights = found["SecurityContextConstraints/hami-node"]
    assert not rights["allowPrivilegedContainer"]
    assert not rights["allowHostNetwork"]
    assert not rights["allowHostPID"]
    assert (rights["users"], rights["groups"]) == ([], [])
    accounts = {
        one["metadata"]["name"] for one in found.values() if one["kind"] == "ServiceAccount"
    }
    bound = {
        subject["name"]
        for name in ("RoleBinding/hami-node-scc", "RoleBinding/hami-node-nonroot")
        for subject in found[name]["subjects"]
    }
    assert bound == accounts
