"""HAMi's chart values as ours: for each generation, checked by our chart's own schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.config.files import MAX_FILE_BYTES
from hami_node.errors import ConfigError
from hami_node.migrate.seen.picture import plain_yaml
from hami_node.migrate.values.mapping import Mapped, as_yaml, map_values, read_values
from hami_node.migrate.values.rules import RULES

CHART: Final = Path(__file__).parents[3] / "daemonset" / "chart"
SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
OURS: Final = yaml.safe_load((CHART / "values.yaml").read_text())

V2_4: Final = """
version: v2.4.1
imagePullSecrets: [{name: pull}]
resourceName: nvidia.com/vgpu
global: {gpuHookPath: /opt/hami, labels: {team: ml}}
scheduler:
  overwriteEnv: "true"
  defaultSchedulerPolicy: {nodeSchedulerPolicy: spread, gpuSchedulerPolicy: binpack}
  kubeScheduler:
    image: registry.local/google_containers/kube-scheduler
    imageTag: v1.29.3
    imagePullPolicy: IfNotPresent
  extender: {image: projecthami/hami, imagePullPolicy: Always}
  customWebhook: {enabled: true, host: 10.0.0.1, whitelistNamespaces: [istio-system]}
  mutatingWebhookConfiguration: {failurePolicy: Fail}
  patch: {image: docker.io/jettech/kube-webhook-certgen:v1.5.2}
devicePlugin:
  image: projecthami/hami
  monitorimage: projecthami/hami
  monitorctrPath: /opt/hami/vgpu/containers
  deviceSplitCount: 5
  deviceMemoryScaling: 1.5
  runtimeClassName: nvidia
  extraArgs: ["-v=4"]
  libPath: /opt/hami/vgpu
  service: {httpPort: 31999}
  nvidianodeSelector: {pool: a100}
  mlunodeSelector: {mlu: "on"}
  tolerations: [{key: gpu, operator: Exists}]
devices: {mthreads: {enabled: true}}
"""
V2_7: Final = """
global: {imageRegistry: registry.local, imagePullSecrets: [pull], imageTag: v2.7.1}
scheduler:
  replicas: 2
  kubeScheduler:
    image: {registry: registry.local, repository: k8s/kube-scheduler, tag: v1.31.0}
    resources: {limits: {cpu: "1", memory: 1000Mi}}
  nodeLabelSelector: {gpu: "on"}
  admissionWebhook: {whitelistNamespaces: [default], failurePolicy: Fail}
  certManager: {enabled: true}
  service: {type: NodePort, monitorPort: 32001}
devicePlugin:
  nvidianodeSelector: {gpu: "on"}
  passDeviceSpecsEnabled: true
  createRuntimeClass: true
  runtimeClassName: nvidia
  updateStrategy: {type: OnDelete}
dcuResourceName: hygon.com/dcunum
devices: {nvidia: {gpuCorePolicy: force, libCudaLogLevel: 3}}
"""
V2_10: Final = """
legacyMetrics: true
prometheus: {enabled: true}
resourceCores: example.com/cores
scheduler:
  forceOverwriteDefaultScheduler: false
  admissionWebhook:
    namespaceSelector: {matchLabels: null, matchExpressions: [{key: a, operator: Exists}]}
    objectSelector: {matchExpressions: []}
  networkPolicy: {enabled: true}
devicePlugin:
  preConfiguredDeviceMemory: 131072
  enableNumaTopology: true
  deviceListStrategy: cdi-annotations
  nvidiaHookPath: /usr/bin/nvidia-ctk
  gdsEnabled: true
  nvidiaDriverRoot: /run/nvidia/driver
  gpuOperatorToolkitReady: {enabled: true, hostPath: /run/nvidia/validations}
  hostPID: true
  securityContext: {privileged: true}
  extraEnvs: {DEVICE_ID_STRATEGY: uuid}
  nvidiaNodeSelector: {pool: h100}
  nodeConfiguration: {config: '{"nodeconfig": [{"name": "gpu-1", "devicesplitcount": 4}]}'}
device-config: {content: "nvidia: {deviceSplitCount: 7}"}
"""
ALL: Final = {"2.4": V2_4, "2.7": V2_7, "2.10": V2_10}


def mapped(text: str) -> Mapped:
    return map_values(read_values(text.encode(), "values.yaml"))


def at(values: Mapping[str, Any], path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def left_out(found: Mapped) -> dict[str, str]:
    return {one.path: one.why for one in found.left_out}


@pytest.mark.parametrize("generation", ALL)
def test_values_of_each_generation_fit_our_schema(generation: str) -> None:
    found = mapped(ALL[generation])
    import jsonschema  # only here: its import builds 39 parsers

    jsonschema.validate(yaml.safe_load(as_yaml(found)), SCHEMA)
    assert found.unknown == ()
    assert found.values["devicePlugin"]["nodeSelection"] == "own-label"  # type: ignore[index]


@pytest.mark.parametrize(
    ("generation", "path", "value"),
    [
        ("2.4", "global.imagePullSecrets", [{"name": "pull"}]),
        ("2.4", "global.gpuHookPath", "/opt/hami"),
        ("2.4", "resourceName", "nvidia.com/vgpu"),
        ("2.4", "scheduler.overwriteEnv", True),
        ("2.4", "scheduler.kubeScheduler.image.registry", "registry.local"),
        ("2.4", "scheduler.kubeScheduler.image.tag", "v1.29.3"),
        ("2.4", "scheduler.admissionWebhook.whitelistNamespaces", ["istio-system"]),
        ("2.4", "scheduler.admissionWebhook.failurePolicy", "Fail"),
        ("2.4", "devicePlugin.nvidiaNodeSelector", {"pool": "a100"}),
        ("2.4", "devicePlugin.service.nodePort", 31999),
        ("2.4", "devicePlugin.runtimeClassName", "nvidia"),
        ("2.4", "podRuntimeClassName", "nvidia"),
        ("2.7", "scheduler.kubeScheduler.image.tag", "v1.31.0"),
        ("2.7", "scheduler.extender.replicas", 2),
        ("2.7", "scheduler.service.nodePort", 32001),
        ("2.7", "config.deviceConfig.nvidia.gpuCorePolicy", "force"),
        ("2.10", "legacyMetrics", True),
        ("2.10", "networkPolicy.enabled", True),
        ("2.10", "devicePlugin.extraEnv", [{"name": "DEVICE_ID_STRATEGY", "value": "uuid"}]),
        ("2.10", "devicePlugin.deviceListStrategy", "cdi-annotations"),
        ("2.10", "config.deviceConfig", "nvidia: {deviceSplitCount: 7}"),
    ],
)
def test_value_is_taken_over(generation: str, path: str, value: object) -> None:
    assert at(mapped(ALL[generation]).values, path) == value


@pytest.mark.parametrize(
    ("generation", "path", "why"),
    [
        ("2.4", "version", "HAMi's version"),
        ("2.4", "devicePlugin.image", "HAMi's image"),
        ("2.4", "devicePlugin.mlunodeSelector", "other makers"),
        ("2.4", "scheduler.patch", "certificate"),
        ("2.7", "dcuResourceName", "other makers"),
        ("2.10", "devicePlugin.nvidiaDriverRoot", "devicePlugin.driver=host"),
        ("2.10", "devicePlugin.securityContext", "no such right"),
    ],
)
def test_value_is_left_out_with_a_reason(generation: str, path: str, why: str) -> None:
    assert why in left_out(mapped(ALL[generation]))[path]


def test_old_spelling_is_said() -> None:
    (one,) = [t for t in mapped(V2_4).taken if t.path == "devicePlugin.nvidianodeSelector"]
    assert "before 2.8" in one.note


def test_defaults_of_hami_are_not_mentioned() -> None:
    text = """
    resourceName: nvidia.com/gpu
    scheduler: {service: {type: NodePort, monitorPort: 31993}, overwriteEnv: "false"}
    devicePlugin: {deviceSplitCount: 10, nvidiaNodeSelector: {gpu: "on"}, hostPID: true}
    """
    found = mapped(text)
    assert (found.taken, found.left_out, found.unknown) == ((), (), ())


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("devicePlugin.deviceSplitcount", "devicePlugin.deviceSplitCount"),
        ("deviceSplitCount", "devicePlugin.deviceSplitCount"),
        ("scheduler.admissionWebhook.whitelistNamespace", "whitelistNamespaces"),
        ("resourcesName", "resourceName"),
        ("completely.different", ""),
    ],
)
def test_unknown_value_is_named_with_what_was_meant(path: str, meant: str) -> None:
    nested: Any = 3
    for key in reversed(path.split(".")):
        nested = {key: nested}
    (one,) = map_values(nested).unknown
    assert one.path in path
    assert meant in one.meant
    assert bool(one.meant) == bool(meant)


def test_every_target_is_a_value_of_our_chart() -> None:
    samples: dict[str, object] = {"devicePlugin.extraEnvs": {"A": "b"}}
    for path, rule in RULES.items():
        if rule.puts is None:
            continue
        for ours, _ in rule.puts(samples.get(path, {"registry": "r", "matchLabels": {"a": "b"}})):
            if not ours.startswith("config.deviceConfig."):
                at(OURS, ours)


@pytest.mark.parametrize(
    "text",
    ["- a", "a: &x [1]\nb: *x", "{", "USER-SUPPLIED VALUES:\na: 1", "1: 2", "a: !!python/name:os"],
)
def test_file_that_is_no_values_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        mapped(text)


def test_file_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError):
        read_values(b"a: 1\n" * MAX_FILE_BYTES, "values.yaml")


@pytest.mark.parametrize(
    "text", ["{", "!!python/object:os.x {}", "x" * 2_000_000, "[" * 900_000, "a: 1\na: 2"]
)
def test_text_of_the_cluster_that_could_harm_is_nothing(text: str) -> None:
    assert plain_yaml(text) is None


@pytest.mark.parametrize("text", ["", "null\n", "{}", "# nothing"])
def test_nothing_set_gives_the_label_only(text: str) -> None:
    assert mapped(text).values == {"devicePlugin": {"nodeSelection": "own-label"}}


def test_deep_and_odd_values_end_in_words() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"devicePlugin": deep}
    assert len(map_values(deep).unknown) == 1
    found = mapped("devicePlugin: [1]\nscheduler: text\nglobal: {labels: 7, gpuHookPath: [1]}")
    assert {one.path for one in found.unknown} == {"devicePlugin", "scheduler"}


def convert(*args: str, stdin: str = V2_4) -> Result:
    return CliRunner().invoke(
        main, ["migrate", "plan", "--from-hami-values", "-", *args], input=stdin
    )


def test_values_go_to_standard_output_and_the_rest_beside_it() -> None:
    result = convert()
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["resourceName"] == "nvidia.com/vgpu"
    assert "left out" in result.stderr
    assert "deviceSplitCount" in result.stderr


def test_values_that_are_all_defaults_are_said() -> None:
    assert "nothing to take over" in convert(stdin="{}").stderr


def test_values_go_to_a_file_of_the_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "ours.yaml"
    result = convert("-o", str(file))
    assert (result.exit_code, result.stdout) == (0, "")
    assert yaml.safe_load(file.read_text())["resourceName"] == "nvidia.com/vgpu"
    assert file.stat().st_mode & 0o777 == 0o600


def test_values_do_not_follow_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("mine")
    link.symlink_to(target)
    result = convert("-o", str(link))
    assert result.exit_code == 1
    assert "can't write" in result.stderr
    assert target.read_text() == "mine"


def test_values_as_json() -> None:
    found = json.loads(convert("-o", "json").stdout)
    assert found["values"]["resourceName"] == "nvidia.com/vgpu"
    assert {one["path"] for one in found["left_out"]} >= {"version", "scheduler.patch"}


def test_hostile_values_are_text(tmp_path: Path) -> None:
    text = 'resourceName: "a\\n  b: c # \\e[31m"\n"x\\e[31m": 1'
    result = convert("-o", str(tmp_path / "f"), stdin=text)
    assert "\x1b" not in result.stderr
    ours = yaml.safe_load((tmp_path / "f").read_text())
    assert ours["resourceName"] == "a\n  b: c # \x1b[31m"


def test_registry_of_our_image_is_asked_for_unless_one_holds_all_images() -> None:
    """HAMi's values do not name it, and the chart of a checkout does not, either."""
    text = as_yaml(map_values({}))
    assert yaml.safe_load(text)["image"] == {"registry": "REGISTRY"}
    text = as_yaml(map_values({"global": {"imageRegistry": "registry.local"}}))
    assert "image" not in yaml.safe_load(text)
