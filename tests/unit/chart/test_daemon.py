"""Where the daemon gets the driver from, what it may do, and how it is configured."""

from __future__ import annotations

import pytest
import yaml

from hami_node.config.settings import declarations
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.unit.chart.helm import (
    Object,
    Objects,
    config,
    container,
    needs_helm,
    pod,
    pod_template,
    render,
)

pytestmark = needs_helm


def environment(found: Objects) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(found)["env"]}


def test_folder_of_the_driver_is_named_for_host_and_container() -> None:
    values = {"driver": "host", "nvidiaDriverRoot": "/home/kubernetes/bin/nvidia"}
    found = environment(render({"devicePlugin": values}))
    assert found["NVIDIA_DRIVER_ROOT"] == "/home/kubernetes/bin/nvidia"
    assert found["DRIVER_ROOT_CTR_PATH"] == "/host/home/kubernetes/bin/nvidia"
    found = environment(render({"devicePlugin": {"driver": "host", "nvidiaDriverRoot": "/"}}))
    assert (found["NVIDIA_DRIVER_ROOT"], found["DRIVER_ROOT_CTR_PATH"]) == ("/", "/host")


def test_hamis_values_reach_the_configuration() -> None:
    values = {
        "legacyMetrics": True,
        "podRuntimeClassName": "nvidia",
        "devicePlugin": {
            "deviceSplitCount": 4,
            "deviceMemoryScaling": 1.5,
            "preConfiguredDeviceMemory": 131072,
            "migStrategy": "mixed",
            "deviceListStrategy": "envvar,cdi-cri",
            "gdrcopyEnabled": True,
        },
        "scheduler": {
            "nodeLabelSelector": {"usage": "gpu"},
            "defaultSchedulerPolicy": {"gpuSchedulerPolicy": "binpack"},
        },
    }
    found = yaml.safe_load(config(render(values)))
    assert found["nvidia"]["deviceSplitCount"] == 4
    assert found["nvidia"]["deviceMemoryScaling"] == 1.5
    assert found["nvidia"]["preConfiguredDeviceMemory"] == 131072
    assert found["nvidia"]["runtimeClassName"] == "nvidia"
    assert found["hami-node"] == {
        "register-format": "auto",
        "handshake": "always",
        "legacy-metrics": True,
        "mig-strategy": "mixed",
        "device-list-strategy": "envvar,cdi-cri",
        "gdrcopy-enabled": True,
        "node-label-selector": ["usage=gpu"],
        "gpu-scheduler-policy": "binpack",
    }


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "nvidia"),
        ({"devicePlugin": {"runtimeClassName": "nvidia-cdi"}}, "nvidia-cdi"),
        ({"devicePlugin": {"runtimeClassName": ""}}, None),
        ({"podRuntimeClassName": ""}, None),
        ({"podRuntimeClassName": "other"}, "other"),
        ({"devicePlugin": {"driver": "nri"}}, None),
        ({"platform": "gke"}, None),
    ],
    ids=str,
)
def test_pods_get_the_daemons_runtime_class(values: Object, name: str | None) -> None:
    """Without it a container starts without its card where NVIDIA's runtime is not the default."""
    assert yaml.safe_load(config(render(values)))["nvidia"].get("runtimeClassName") == name


def test_settings_that_the_chart_writes_exist() -> None:
    values: Object = {
        "legacyMetrics": True,
        "schedulerName": "mine",
        "devicePlugin": {
            "migStrategy": "single",
            "deviceListStrategy": "envvar",
            "nvidiaHookPath": "/usr/bin/nvidia-ctk",
            "passDeviceSpecsEnabled": True,
            "gdsEnabled": True,
            "mofedEnabled": True,
            "gdrcopyEnabled": True,
        },
        "scheduler": {
            "forceOverwriteDefaultScheduler": False,
            "nodeLabelSelector": {"a": "b"},
            "defaultSchedulerPolicy": {
                "nodeSchedulerPolicy": "spread",
                "gpuSchedulerPolicy": "binpack",
            },
        },
    }
    written = yaml.safe_load(config(render(values)))["hami-node"]
    known = {one.name.replace("_", "-") for one in declarations(SETTINGS_BLOCKS).values()}
    assert set(written) - known == set()
    assert len(written) == 15


def test_text_replaces_the_whole_file_and_a_map_parts_of_it() -> None:
    text = "# mine\nnvidia:\n  resourceCountName: example.com/vgpu\n"
    assert config(render({"config": {"deviceConfig": text}})) == text
    found = yaml.safe_load(
        config(render({"config": {"deviceConfig": {"nvidia": {"defaultCores": 5}}}}))
    )
    assert found["nvidia"]["defaultCores"] == 5
    assert found["nvidia"]["resourceCountName"] == "nvidia.com/gpu"


@pytest.mark.parametrize(
    "values",
    [
        {"resourceName": "example.com/vgpu"},
        {"config": {"deviceConfig": {"nvidia": {"resourceCountName": "example.com/vgpu"}}}},
        {"config": {"deviceConfig": "nvidia: {resourceCountName: example.com/vgpu}"}},
    ],
    ids=["value", "map", "text"],
)
def test_renamed_resource_is_renamed_everywhere(values: Object) -> None:
    found = render(values)
    scheduler = yaml.safe_load(found["ConfigMap/hami-node-scheduler"]["data"]["config.yaml"])
    managed = {one["name"] for one in scheduler["extenders"][0]["managedResources"]}
    condition = found["MutatingWebhookConfiguration/hami-node"]["webhooks"][0]["matchConditions"][0]
    for names in (managed, condition["expression"], config(found)):
        assert "example.com/vgpu" in names
    assert "'nvidia.com/gpu'" not in condition["expression"]
    assert "nvidia.com/gpu" not in managed
    before = render()
    assert restart_sum(found) != restart_sum(before)


def restart_sum(found: Objects) -> str:
    notes = found["DaemonSet/hami-node"]["spec"]["template"]["metadata"]["annotations"]
    text: str = notes["checksum/restart"]
    return text


def test_live_settings_restart_no_daemon() -> None:
    changed = render({"devicePlugin": {"deviceSplitCount": 3}, "legacyMetrics": True})
    assert pod_template(changed) == pod_template(render())


def test_settings_of_nodes_as_a_list_and_as_hamis_text() -> None:
    nodes = [{"name": "gpu-1", "devicesplitcount": 4}]
    found = render({"devicePlugin": {"nodeConfiguration": {"config": nodes}}})
    assert yaml.safe_load(config(found, "config.json")) == {"nodeconfig": nodes}
    text = '{"nodeconfig": []}'
    found = render({"devicePlugin": {"nodeConfiguration": {"config": text}}})
    assert config(found, "config.json") == text


def test_config_maps_of_the_user_are_mounted_instead() -> None:
    found = render(
        {
            "config": {"existingConfigMap": "mine"},
            "devicePlugin": {"nodeConfiguration": {"externalConfigName": "nodes"}},
        }
    )
    assert "ConfigMap/hami-node-config" not in found
    volume = next(one for one in pod(found)["volumes"] if one["name"] == "config")
    assert [one["configMap"]["name"] for one in volume["projected"]["sources"]] == ["mine", "nodes"]
    volume = pod(found, "Deployment/hami-node-extender")["volumes"][0]
    assert volume["configMap"]["name"] == "mine"
