"""The scheduler's manifests: they fit the program, each other, and ask for nothing not needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.config.settings import Settings
from hami_node.config.sources import ConfigSources
from hami_node.extender.http.certify import service_names
from hami_node.extender.webhook import OPT_OUT
from hami_node.vendors.holding import reservation_keys
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import protocols_of
from hami_node.wire import names
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.settings import settings as default_settings
from tests.unit.daemonset.manifests import FOLDER, Object, documents, rights_of

EXTENDER: Final = FOLDER / "extender"
ALL: Final = [one for path in sorted(EXTENDER.glob("*.yaml")) for one in documents(path)]
NAME, SPACE = "hami-node-extender", "hami-system"
LEADER = "hami-node-leader"
SCHEDULER, CERTIFICATE = "hami-node-scheduler", "hami-node-certificate"
SECRET, CLIENT_SECRET = "hami-node-extender-tls", "hami-node-scheduler-client-tls"
AUTHORITY, WEBHOOK = "hami-node-authority", "hami-node-webhook"
SECRETS: Final = (SECRET, CLIENT_SECRET, AUTHORITY)
VENDOR_PROTOCOLS: Final = protocols_of(VENDORS, default_settings())
RESERVATION_KEYS: Final = reservation_keys(VENDOR_PROTOCOLS)
RESOURCES: Final = {
    nvidia_names.RESOURCE_GPU,
    nvidia_names.RESOURCE_GPU_MEMORY,
    nvidia_names.RESOURCE_GPU_MEMORY_PERCENT,
    nvidia_names.RESOURCE_GPU_CORES,
    nvidia_names.RESOURCE_GPU_PRIORITY,
    neuron_names.RESOURCE_NEURON,
    neuron_names.RESOURCE_NEURON_CORE,
}


def one(kind: str, name: str = NAME) -> Object:
    (found,) = (
        doc for doc in ALL if doc["kind"] == kind and doc.get("metadata", {}).get("name") == name
    )
    return found


def pod_spec(kind: str, name: str) -> Object:
    spec: Object = one(kind, name)["spec"]["template"]["spec"]
    return spec


def container(kind: str, name: str) -> Object:
    (found,) = pod_spec(kind, name)["containers"]
    only: Object = found
    return only


PODS: Final = [("Deployment", NAME), ("Deployment", SCHEDULER), ("Job", CERTIFICATE)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """What the extender's arguments and environment mean to our own command line."""
    got: list[Settings] = []

    def run(settings: Settings, _: ConfigSources) -> int:
        got.append(settings)
        return 0

    file = tmp_path / "device-config.yaml"
    (config,) = documents(FOLDER / "base" / "config.yaml")
    file.write_text(config["data"]["device-config.yaml"])
    found = container("Deployment", NAME)
    arguments = [arg.replace("/config/device-config.yaml", str(file)) for arg in found["args"]]
    assert arguments != found["args"]
    paths = {env["name"]: env["valueFrom"]["fieldRef"]["fieldPath"] for env in found["env"]}
    values = {
        "metadata.name": "pod-1",
        "metadata.namespace": SPACE,
        "status.podIP": "192.0.2.7",
    }
    env = {name: values[path] for name, path in paths.items()}
    parts = Programs(run_extender=run, env=lambda: env)
    done = CliRunner().invoke(main, arguments, obj=parts)
    assert done.exit_code == 0, done.output
    return got[0]


def test_arguments_are_those_of_our_command_line(settings: Settings) -> None:
    assert settings.leader_elect
    assert settings.replica_name == "pod-1"
    assert settings.lease_namespace == SPACE
    rights = rights_of([one("Role")])
    assert ("coordination.k8s.io", "leases", settings.lease_name, "update") in rights
    ports = {port["name"]: port["containerPort"] for port in container("Deployment", NAME)["ports"]}
    assert settings.http_bind == f":{ports['https']}"
    assert settings.webhook_bind == f":{ports['webhook']}"
    assert settings.metrics_address == f":{ports['metrics']}"
    assert settings.probe_address == f":{ports['probes']}"
    assert (settings.endpoint_slice, settings.pod_ip) == (LEADER, "192.0.2.7")
    assert settings.client_name == SCHEDULER


@pytest.mark.parametrize(("kind", "name"), PODS, ids=[name for _, name in PODS])
def test_pods_have_no_privileges(kind: str, name: str) -> None:
    spec, found = pod_spec(kind, name), container(kind, name)
    assert found["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not any("hostPath" in volume for volume in spec.get("volumes", []))
    assert not {"hostNetwork", "hostPID", "hostIPC", "tolerations"} & set(spec)
    assert set(found["resources"]["requests"]) == {"cpu", "memory"}
    assert set(found["resources"]["limits"]) == {"memory"}


@pytest.mark.parametrize(("kind", "name"), PODS, ids=[name for _, name in PODS])
def test_our_webhook_never_sees_our_own_pods(kind: str, name: str) -> None:
    labels = one(kind, name)["spec"]["template"]["metadata"]["labels"]
    assert labels[names.WEBHOOK_OPT_OUT] == OPT_OUT
    (space,) = documents(FOLDER / "base" / "namespace.yaml")
    assert space["metadata"]["labels"][names.WEBHOOK_OPT_OUT] == OPT_OUT


def test_probes_have_a_port_of_their_own() -> None:
    found = container("Deployment", NAME)
    live, ready = found["livenessProbe"], found["readinessProbe"]
    assert (live["httpGet"]["path"], ready["httpGet"]["path"]) == ("/healthz", "/readyz")
    assert live["httpGet"]["port"] == ready["httpGet"]["port"] == "probes"
    wait_s = float(re.findall(r"sleep\((\d+)\)", str(found["lifecycle"]))[0])
    assert wait_s + 20 <= pod_spec("Deployment", NAME)["terminationGracePeriodSeconds"]


def test_pod_that_missed_the_cards_by_kubelets_count_is_tried_again_soon() -> None:
    command = container("Deployment", SCHEDULER)["command"]
    assert "--pod-max-in-unschedulable-pods-duration=1s" in command


def test_service_for_the_scheduler_leads_where_the_leader_writes(settings: Settings) -> None:
    service, found = one("Service", LEADER), one("EndpointSlice", LEADER)
    assert "selector" not in service["spec"], "kube-proxy has to follow the leader alone"
    (port,) = service["spec"]["ports"]
    assert (port["port"], port["name"]) == (443, "https")
    assert settings.http_bind == f":{port['targetPort']}"
    assert found["metadata"]["name"] == settings.endpoint_slice
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == LEADER
    assert found["addressType"] == "IPv4"
    assert not {"endpoints", "ports"} & set(found), "applying again would take the leader away"


def test_rights_of_the_extender_are_exactly_these() -> None:
    assert rights_of([one("ClusterRole")]) == {
        *(("", "nodes", "", verb) for verb in ("get", "list", "watch", "patch")),
        *(("", "pods", "", verb) for verb in ("get", "list", "watch", "patch")),
        ("", "pods/binding", "", "create"),
        ("", "events", "", "create"),
        *(("", "resourcequotas", "", verb) for verb in ("list", "watch")),
        ("", "limitranges", "", "list"),
        ("policy", "poddisruptionbudgets", "", "list"),
    }
    assert rights_of([one("Role")]) == {
        *(("coordination.k8s.io", "leases", NAME, verb) for verb in ("get", "update")),
        ("coordination.k8s.io", "leases", "", "create"),
        *(("discovery.k8s.io", "endpointslices", LEADER, verb) for verb in ("get", "update")),
    }


def test_rights_of_the_certificate_job_are_exactly_these() -> None:
    assert rights_of([one("Role", CERTIFICATE)]) == {
        *(("", "secrets", name, verb) for name in SECRETS for verb in ("get", "update"))
    }
    assert rights_of([one("ClusterRole", CERTIFICATE)]) == {
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "hami-node", verb)
        for verb in ("get", "patch")
    }


def test_rights_of_the_scheduler_are_those_of_a_kube_scheduler() -> None:
    assert rights_of([one("Role", SCHEDULER)]) == {
        *(("coordination.k8s.io", "leases", SCHEDULER, verb) for verb in ("get", "update")),
        ("coordination.k8s.io", "leases", "", "create"),
    }
    bound = {
        (doc["metadata"].get("namespace"), doc["roleRef"]["kind"], doc["roleRef"]["name"])
        for doc in ALL
        if doc["kind"].endswith("RoleBinding") and doc["subjects"][0]["name"] == SCHEDULER
    }
    assert bound == {
        (None, "ClusterRole", "system:kube-scheduler"),
        (None, "ClusterRole", "system:volume-scheduler"),
        (SPACE, "Role", SCHEDULER),
        ("kube-system", "Role", "extension-apiserver-authentication-reader"),
    }


# -- kube-scheduler ------------------------------------------------------------------------------


@pytest.fixture
def scheduler() -> Object:
    found: Object = yaml.safe_load(one("ConfigMap", SCHEDULER)["data"]["config.yaml"])
    return found


def test_kube_scheduler_asks_our_extender_about_our_resources(
    scheduler: Object, settings: Settings
) -> None:
    (profile,) = scheduler["profiles"]
    assert profile["schedulerName"] == settings.scheduler_name == "hami-scheduler"
    (extender,) = scheduler["extenders"]
    managed = extender.pop("managedResources")
    assert {entry["name"] for entry in managed} == RESOURCES
    assert len(managed) == len(RESOURCES)
    counted = {entry["name"] for entry in managed if not entry.get("ignoredByScheduler", False)}
    assert counted == {
        nvidia_names.RESOURCE_GPU,
        neuron_names.RESOURCE_NEURON,
        neuron_names.RESOURCE_NEURON_CORE,
    }, "those that device plugins register, and no others"
    assert extender == {
        "urlPrefix": f"https://{LEADER}.{SPACE}.svc:443",
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "nodeCacheCapable": True,
        "weight": 1,
        "httpTimeout": "30s",
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": "/tls/ca.crt",
            "certFile": "/tls/tls.crt",
            "keyFile": "/tls/tls.key",
        },
    }
    assert f"{LEADER}.{SPACE}.svc" in service_names(LEADER, SPACE)
    assert settings.lock_wait_s < 30


def test_kube_scheduler_shows_the_extender_every_node(scheduler: Object) -> None:
    assert scheduler["percentageOfNodesToScore"] == 100


def test_kube_scheduler_has_its_own_certificate_and_not_the_servers_key() -> None:
    volumes = {volume["name"]: volume for volume in pod_spec("Deployment", SCHEDULER)["volumes"]}
    secret = volumes["tls"]["secret"]
    assert secret["secretName"] == CLIENT_SECRET
    assert [item["key"] for item in secret["items"]] == ["tls.crt", "tls.key", "ca.crt"]
    mounts = container("Deployment", SCHEDULER)["volumeMounts"]
    assert {mount["name"]: mount["mountPath"] for mount in mounts}["tls"] == "/tls"
    assert pod_spec("Deployment", SCHEDULER)["dnsPolicy"] == "ClusterFirst"
    assert AUTHORITY not in str([pod_spec(*pod).get("volumes") for pod in PODS])


# -- webhook -------------------------------------------------------------------------------------


@pytest.fixture
def webhook() -> Object:
    (found,) = one("MutatingWebhookConfiguration", "hami-node")["webhooks"]
    only: Object = found
    return only


def test_webhook_leads_to_the_service(webhook: Object) -> None:
    service = webhook["clientConfig"]["service"]
    assert service == {"name": WEBHOOK, "namespace": SPACE, "path": "/webhook", "port": 443}
    assert "caBundle" not in webhook["clientConfig"], "applying again would take it away"
    (port,) = one("Service", WEBHOOK)["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "webhook")


def test_webhook_is_asked_about_new_pods_and_must_answer(webhook: Object) -> None:
    (rule,) = webhook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "None"
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert 5 <= webhook["timeoutSeconds"] <= 10


def test_webhook_keeps_out_who_opted_out_and_kube_system(webhook: Object) -> None:
    opt_out = {"key": names.WEBHOOK_OPT_OUT, "operator": "NotIn", "values": [OPT_OUT]}
    assert webhook["objectSelector"]["matchExpressions"] == [opt_out]
    system = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system"],
    }
    assert webhook["namespaceSelector"]["matchExpressions"] == [opt_out, system]


def test_webhook_sees_pods_with_our_resources_or_a_reservation_and_no_others(
    webhook: Object,
) -> None:
    (condition,) = webhook["matchConditions"]
    text = condition["expression"]
    named = re.findall(r"'([^']*)'", text)
    assert set(named) == RESOURCES | set(RESERVATION_KEYS)
    for resource in RESOURCES:
        assert named.count(resource) == 4, "limits and requests, containers and init containers"
    for key in RESERVATION_KEYS:
        assert named.count(key) == 1
    assert text.count("(") == text.count(")")
    assert ".?" not in text, "Kubernetes 1.28 knows no optional fields"
    for part in ("c.resources.limits", "c.resources.requests", "object.spec.initContainers"):
        assert text.count(f"has({part})") == text.count(f"{part}.exists(")


def test_admission_policies_let_a_reservation_be_written_and_nothing_else() -> None:
    user = f"system:serviceaccount:{SPACE}:{NAME}"
    policies = {
        doc["spec"]["matchConstraints"]["resourceRules"][0]["resources"][0]: doc
        for doc in documents(EXTENDER / "own-fields-only.yaml")
        if doc["kind"] == "ValidatingAdmissionPolicy"
    }
    assert set(policies) == {"nodes", "pods", "pods/binding"}
    for doc in policies.values():
        (condition,) = doc["spec"]["matchConditions"]
        assert condition["expression"] == f"request.userInfo.username == '{user}'"
        assert doc["spec"]["failurePolicy"] == "Fail"
        binding = one("ValidatingAdmissionPolicyBinding", doc["metadata"]["name"])
        assert binding["spec"]["policyName"] == doc["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]
    for resource in ("nodes", "pods"):
        assert "object.spec == oldObject.spec" in str(policies[resource]["spec"]["validations"])
    pods = policies["pods"]["spec"]["validations"]
    prefixes, keys = allowed_by(pods[0]["expression"])
    assert set(prefixes) == {"hami.io/", "hami-node.io/", "AWS_NEURON", "NEURON_"}
    assert all(key.startswith(tuple(prefixes)) or key in keys for key in RESERVATION_KEYS)
    assert allowed_by(pods[1]["expression"]) == ([], [names.POD_NODE] * 2)
    prefixes, keys = allowed_by(policies["nodes"]["spec"]["validations"][0]["expression"])
    assert (prefixes, keys) == (
        ["hami.io/"] * 2,
        [names.NODE_READ_BY, names.NODE_LEADING_SINCE] * 2,
    )
    labels = policies["nodes"]["spec"]["validations"][1]["expression"]
    assert allowed_by(labels) == ([], [names.OPENED_NODE] * 2)
    handshakes = [vendor.keys.handshake for vendor in VENDOR_PROTOCOLS]
    written = (names.NODE_LOCK, names.NODE_READ_BY, names.NODE_LEADING_SINCE, *handshakes)
    for key in filter(None, written):
        assert key.startswith(tuple(prefixes)) or key in keys
    bindings = policies["pods/binding"]["spec"]["validations"]
    prefixes, keys = allowed_by(bindings[0]["expression"])
    carried = (*RESERVATION_KEYS, names.POD_BIND_PHASE, names.POD_BIND_TIME)
    assert all(key.startswith(tuple(prefixes)) or key in keys for key in carried)
    assert set(prefixes) == {"hami.io/", "hami-node.io/", "AWS_NEURON", "NEURON_"}
    assert allowed_by(bindings[1]["expression"]) == (["topology.kubernetes.io/"], [])


@pytest.mark.parametrize(
    ("policy", "resources", "accounts"),
    [
        (
            "hami-node-reservations",
            {"pods", "pods/status"},
            {
                f"system:serviceaccount:{SPACE}:{NAME}",
                f"system:serviceaccount:{SPACE}:hami-node",
                "system:serviceaccount:kube-system:neuron-device-plugin",
            },
        ),
        (
            "hami-node-reservations-by-binding",
            {"bindings", "pods/binding"},
            {f"system:serviceaccount:{SPACE}:{NAME}"},
        ),
    ],
)
def test_reservation_keys_are_written_by_listed_accounts_only(
    policy: str, resources: set[str], accounts: set[str]
) -> None:
    spec = one("ValidatingAdmissionPolicy", policy)["spec"]
    (rule,) = spec["matchConstraints"]["resourceRules"]
    assert set(rule["resources"]) == resources
    assert spec["failurePolicy"] == "Fail"
    conditions = [condition["expression"] for condition in spec["matchConditions"]]
    assert set(conditions) == {f"request.userInfo.username != '{name}'" for name in accounts}
    keys = re.findall(r"'([^']*)'", spec["variables"][-1]["expression"])
    assert sorted(keys) == sorted(RESERVATION_KEYS)
    (validation,) = spec["validations"]
    assert f"variables.{spec['variables'][-1]['name']}.join" in validation["messageExpression"]
    binding = one("ValidatingAdmissionPolicyBinding", policy)["spec"]
    assert binding == {"policyName": policy, "validationActions": ["Deny"]}


def test_daemon_alone_brings_no_policy_about_others() -> None:
    found = documents(FOLDER / "base" / "own-node-only.yaml")
    for doc in found:
        if doc["kind"] == "ValidatingAdmissionPolicy":
            (condition,) = doc["spec"]["matchConditions"]
            assert condition["expression"].startswith("request.userInfo.username == ")


def allowed_by(expression: str) -> tuple[list[str], list[str]]:
    """The prefixes and the whole keys that a policy lets change."""
    return (
        re.findall(r"key\.startsWith\('([^']*)'\)", expression),
        re.findall(r"key == '([^']*)'", expression),
    )


# -- certificate ---------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FaultyApiServer]:
    with FaultyApiServer() as running:
        for name in SECRETS:
            running.create("secrets", one("Secret", name))
        running.create(
            "mutatingwebhookconfigurations", one("MutatingWebhookConfiguration", "hami-node")
        )
        yield running


def test_certificate_job_serves_the_manifests_and_needs_no_more_than_its_rights(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    file = server.write_kubeconfig(tmp_path / "kubeconfig")
    arguments = [*container("Job", CERTIFICATE)["args"], f"--kubeconfig={file}"]
    done = CliRunner().invoke(main, arguments, obj=Programs())
    assert done.exit_code == 0, done.output
    data: dict[str, Any] = server.read("secrets", SECRET, SPACE)["data"]
    assert set(data) == set(server.read("secrets", CLIENT_SECRET, SPACE)["data"])
    assert set(data) == {"tls.crt", "tls.key", "ca.crt"}
    (found,) = server.read("mutatingwebhookconfigurations", "hami-node")["webhooks"]
    assert found["clientConfig"]["caBundle"] == data["ca.crt"]
    assert found["matchConditions"]
    roles = [one("Role", CERTIFICATE), one("ClusterRole", CERTIFICATE)]
    granted = {(resource, verb) for _, resource, _, verb in rights_of(roles)}
    used = {(request.resource, request.verb) for request in server.requests()}
    assert used == granted


def test_certificate_job_can_be_applied_again() -> None:
    assert one("Job", CERTIFICATE)["spec"]["ttlSecondsAfterFinished"] <= 60
    assert not [name for name in SECRETS if "data" in one("Secret", name)], "it would be emptied"


def test_cert_manager_takes_the_place_of_the_job() -> None:
    folder = FOLDER / "overlays" / "cert-manager"
    (found,) = documents(folder / "kustomization.yaml")
    removed, annotated = found["patches"]
    label = removed["target"]["labelSelector"].split("=")
    for doc in documents(EXTENDER / "certificate.yaml"):
        assert doc["metadata"]["labels"] == {label[0]: label[1]}
    certificates = {
        doc["metadata"]["name"]: doc["spec"]
        for doc in documents(folder / "certificate.yaml")
        if doc["kind"] == "Certificate"
    }
    assert certificates[NAME]["secretName"] == SECRET
    named = (*service_names(LEADER, SPACE), *service_names(WEBHOOK, SPACE))
    assert tuple(certificates[NAME]["dnsNames"]) == named
    assert certificates[SCHEDULER]["secretName"] == CLIENT_SECRET
    assert certificates[SCHEDULER]["commonName"] == SCHEDULER
    assert certificates[SCHEDULER]["usages"][0] == "client auth"
    patch = yaml.safe_load(annotated["patch"])
    annotations = patch["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"{SPACE}/{NAME}"}


# -- images --------------------------------------------------------------------------------------
