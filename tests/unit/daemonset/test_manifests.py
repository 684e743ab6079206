"""The manifests: they fit together, and they ask for nothing that is not needed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.config.files import read_device_config, read_node_config
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.registry import SETTINGS_BLOCKS
from hami_node.wire import names
from tests.fakes.settings import load, settings
from tests.unit.daemonset.manifests import FOLDER, Object, documents, rights_of

USER: Final = "system:serviceaccount:hami-system:hami-node"

BASE: Final = [
    item for path in sorted(FOLDER.joinpath("base").rglob("*.yaml")) for item in documents(path)
]


def every(kind: str) -> list[Object]:
    return [item for item in BASE if item["kind"] == kind]


@pytest.fixture
def pod_spec() -> Object:
    (found,) = every("DaemonSet")
    spec: Object = found["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def container(pod_spec: Object) -> Object:
    (found,) = pod_spec["containers"]
    item: Object = found
    return item


def test_rights_are_exactly_these() -> None:
    (role,) = every("ClusterRole")
    assert rights_of([role]) == {
        *(("", "nodes", "", verb) for verb in ("get", "list", "watch", "patch")),
        *(("", "pods", "", verb) for verb in ("get", "list", "watch", "patch")),
        ("", "events", "", "create"),
    }
    assert not every("Role")
    (binding,) = every("ClusterRoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    assert f"system:serviceaccount:{subject['namespace']}:{subject['name']}" == USER


def test_container_has_no_privileges(pod_spec: Object, container: Object) -> None:
    assert container["securityContext"] == {
        "runAsUser": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod_spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    for host in ("hostNetwork", "hostPID", "hostIPC", "initContainers"):
        assert host not in pod_spec


def test_host_folders_are_only_the_needed_ones(pod_spec: Object, container: Object) -> None:
    host = {item["name"]: item["hostPath"] for item in pod_spec["volumes"] if "hostPath" in item}
    assert {item["path"] for item in host.values()} == {
        "/var/lib/kubelet/device-plugins",
        "/var/lib/kubelet/pod-resources",
        "/usr/local/vgpu",
        "/var/lib/hami-node",
    }
    mounts = {item["name"]: item for item in container["volumeMounts"]}
    assert set(mounts) == {item["name"] for item in pod_spec["volumes"]}
    for name, folder in host.items():
        assert mounts[name]["mountPath"] == folder["path"], "kubelet mounts by the host's path"
    assert mounts["pod-resources"]["readOnly"] is True
    assert mounts["config"]["readOnly"] is True
    assert not any("subPath" in item for item in mounts.values()), "a subPath never changes"


def test_default_paths_are_the_mounted_ones(container: Object) -> None:
    mounted = {item["mountPath"] for item in container["volumeMounts"]}
    found = settings()
    assert str(found.plugin_dir) in mounted
    assert str(found.pod_resources_socket.parent) in mounted
    env = {item["name"]: item.get("value") for item in container["env"]}
    assert f"{env['HOOK_PATH']}/vgpu" in mounted
    assert str(found.of(NvidiaSettings).hook_path) == env["HOOK_PATH"]


def test_probes_ask_a_port_of_their_own(container: Object) -> None:
    metrics, port = container["ports"]
    assert settings().metrics_address == f":{metrics['containerPort']}"
    assert f"--probe-address=:{port['containerPort']}" in container["args"]
    probes = {container[item]["httpGet"]["path"] for item in ("livenessProbe", "readinessProbe")}
    assert probes == {"/healthz", "/readyz"}
    for item in ("livenessProbe", "readinessProbe"):
        assert container[item]["httpGet"]["port"] == port["name"]


def test_resources_are_requested(container: Object) -> None:
    assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    assert "cpu" not in container["resources"]["limits"], "a throttled plugin costs running pods"


def started_with(arguments: list[str], config: Path) -> Settings:
    """The settings that the manifest's arguments mean, with the ConfigMap's file in `config`."""
    got: list[Settings] = []

    def run(settings: Settings, _: ConfigSources) -> int:
        got.append(settings)
        return 0

    shown = [item.replace("/config/device-config.yaml", str(config)) for item in arguments]
    shown = [item for item in shown if not item.startswith("--node-config-file")]
    parts = Programs(run_daemon=run, env=lambda: {"NODE_NAME": "n1"})
    done = CliRunner().invoke(main, shown, obj=parts)
    assert done.exit_code == 0, done.output
    return got[0]


def test_shipped_configuration_is_accepted_and_means_the_defaults(
    container: Object, tmp_path: Path
) -> None:
    (config,) = every("ConfigMap")
    data = config["data"]
    text = data["device-config.yaml"].encode()
    found = read_device_config(text, "device-config.yaml", SETTINGS_BLOCKS)
    assert (found.errors, found.ignored) == ((), ())
    text = data["config.json"].encode()
    assert read_node_config(text, "config.json", None, SETTINGS_BLOCKS).errors == ()
    file = tmp_path / "device-config.yaml"
    file.write_text(data["device-config.yaml"])
    defaults = load(ConfigSources(blocks=SETTINGS_BLOCKS, env={"NODE_NAME": "n1"}))
    assert started_with(container["args"], file) == replace(defaults, probe_address=":9396")


def test_admission_policies_deny_and_name_our_account() -> None:
    policies = every("ValidatingAdmissionPolicy")
    resources = set()
    for policy in policies:
        spec = policy["spec"]
        assert spec["failurePolicy"] == "Fail"
        (condition,) = spec["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{USER}'"
        (rule,) = spec["matchConstraints"]["resourceRules"]
        assert rule["operations"] == ["UPDATE"]
        resources |= set(rule["resources"])
        assert all(item["message"].startswith("hami-node may") for item in spec["validations"])
    assert resources == {"nodes", "pods"}
    bindings = every("ValidatingAdmissionPolicyBinding")
    bound = {item["spec"]["policyName"]: item["spec"]["validationActions"] for item in bindings}
    assert bound == {item["metadata"]["name"]: ["Deny"] for item in policies}


def test_admission_policies_allow_every_annotation_that_the_daemon_writes() -> None:
    prefixes = ("hami.io/", "hami-node.io/")
    for policy in every("ValidatingAdmissionPolicy"):
        text = " ".join(item["expression"] for item in policy["spec"]["validations"])
        for prefix in prefixes:
            assert text.count(f"key.startsWith('{prefix}')") == 2
    written = [
        value
        for module in (names, nvidia_names, neuron_names)
        for name, value in vars(module).items()
        if name.startswith(("NODE_", "POD_")) and isinstance(value, str)
    ]
    assert len(written) > 15
    assert all(value.startswith(prefixes) for value in written)


LOCKS = ("requirements.lock", "requirements-runtime.lock", "requirements-build.lock")


def test_runtime_lock_holds_a_part_of_the_full_lock_and_no_addresses() -> None:
    root = FOLDER.parent
    runtime, full = (
        set(re.findall(r"^([^ #=\n]+==[^ ;\n]+)", root.joinpath(name).read_text(), re.MULTILINE))
        for name in ("requirements-runtime.lock", "requirements.lock")
    )
    assert runtime < full
    for name in LOCKS:
        assert "://" not in root.joinpath(name).read_text()
    assert not any(line.startswith(("pytest", "mypy", "ruff")) for line in runtime)


@pytest.mark.parametrize("name", LOCKS[1:])
def test_everything_in_the_image_is_pinned_by_hash(name: str) -> None:
    lines = (FOLDER.parent / name).read_text().replace("\\\n", "").splitlines()
    pinned = [line for line in lines if "==" in line]
    assert pinned
    assert all("--hash=sha256:" in line for line in pinned)


def test_image_is_built_from_what_the_ignore_file_lets_through() -> None:
    root = FOLDER.parent
    allowed = {
        line[1:]
        for line in root.joinpath(".dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    for line in root.joinpath("Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert set(sources) <= allowed, line


def test_daemon_writes_how_a_resize_ended_and_never_approves_one() -> None:
    (policy,) = (
        item
        for item in every("ValidatingAdmissionPolicy")
        if item["metadata"]["name"] == "hami-node-own-pods"
    )
    rules = [item["expression"] for item in policy["spec"]["validations"]]
    assert sum(names.POD_RESIZE_APPROVED in rule for rule in rules) == 1
    assert not any(names.POD_RESIZE_STATE in rule for rule in rules)
