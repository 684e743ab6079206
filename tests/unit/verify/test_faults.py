"""One fault after another: each is named, with what to do; oddities are no failure."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from tests.fakes.installed import SPACE, Installed
from tests.unit.verify.calling import call, findings, states
from tests.unit.verify.faults import (
    add_argument,
    annotated,
    certificates_of_somebody_else,
    configure,
    expired,
    forbidden_pod,
    kubelet,
    lead,
    lose,
    other_plugin,
    rewrite_webhook,
    unlabel,
    waiting,
    webhook,
)

FAULTS = [
    pytest.param(
        lambda c: c.unready("hami-node-gpu-1", **waiting("ImagePullBackOff", "no such image")),
        "daemon",
        "1 pod not Ready (hami-node-gpu-1): hami-node: ImagePullBackOff: no such image",
        id="image",
    ),
    pytest.param(
        lose("pods", "hami-node-gpu-1", SPACE), "daemon", "no pod on 1 node: gpu-1", id="gone"
    ),
    pytest.param(
        forbidden_pod,
        "daemon",
        "no pod on 1 node: gpu-1 (FailedCreate: exceeded quota)",
        id="reported",
    ),
    pytest.param(unlabel, "daemon", "DaemonSet hami-node matches none of 3 nodes", id="no_label"),
    pytest.param(
        lose("daemonsets", "hami-node", SPACE), "daemon", "there is no DaemonSet", id="no_daemon"
    ),
    pytest.param(lose("runtimeclasses", "nvidia"), "runtime class", "does not exist", id="class"),
    pytest.param(
        lambda c: [c.server.delete("pods", f"extender-{n}", SPACE) for n in range(2)],
        "extender",
        "Deployment hami-node-extender has no pod: 2 pods wanted",
        id="no_extender_pods",
    ),
    pytest.param(
        lambda c: c.unready("scheduler-0", reason="Evicted", message="The node was low on memory"),
        "kube-scheduler",
        "1 pod not Ready (scheduler-0): Evicted The node was low on memory",
        id="scheduler",
    ),
    pytest.param(lead(holderIdentity=""), "leader", "nobody holds the Lease", id="no_leader"),
    pytest.param(
        lead(renewTime="2020-01-01T00:00:00Z"), "leader", "extender-0 renewed the Lease", id="stale"
    ),
    pytest.param(lead(renewTime="soon"), "leader", "last at an unknown time", id="lease_unread"),
    pytest.param(
        lead(holderIdentity="intruder"), "leader", "intruder leads and is no pod", id="who"
    ),
    pytest.param(
        lose("leases", "hami-node-extender", SPACE), "leader", "does not exist", id="no_lease"
    ),
    pytest.param(
        lambda c: c.edit(
            "endpointslices",
            "hami-node-leader",
            lambda body: body.update(endpoints=[{"addresses": ["6.6.6.6"]}]),
        ),
        "endpoints",
        "hami-node-leader names 6.6.6.6, and the leader extender-0 is 10.0.0.1",
        id="redirected",
    ),
    pytest.param(
        lose("endpointslices", "hami-node-leader", SPACE), "endpoints", "does not exist", id="slice"
    ),
    pytest.param(
        lose("mutatingwebhookconfigurations", "hami-node"),
        "webhook",
        "no MutatingWebhookConfiguration calls namespace hami-system",
        id="no_webhook",
    ),
    pytest.param(
        rewrite_webhook(lambda hook: hook["clientConfig"].pop("caBundle")),
        "webhook",
        "hami-node has no caBundle",
        id="no_bundle",
    ),
    pytest.param(
        lose("services", "hami-node-webhook", SPACE),
        "webhook",
        "it calls the Service hami-node-webhook, which does not exist",
        id="no_service",
    ),
    pytest.param(
        lose("endpointslices", "hami-node-webhook-x1", SPACE),
        "webhook",
        "nobody is behind the Service hami-node-webhook",
        id="nobody",
    ),
    pytest.param(webhook(rules=[]), "webhook", "is not called for new pods", id="no_rules"),
    pytest.param(
        webhook(matchConditions=[{"name": "x", "expression": "'nvidia.com/gpu' in x"}]),
        "webhook",
        "do not name aws.amazon.com/neuron, aws.amazon.com/neuroncore, nvidia.com/gpucores and",
        id="conditions",
    ),
    pytest.param(
        lambda c: c.server.create(
            "mutatingwebhookconfigurations",
            {
                "metadata": {"name": "hami-webhook"},
                "webhooks": [
                    {
                        "name": "vgpu.hami.io",
                        "clientConfig": {"service": {"name": "hami", "namespace": SPACE}},
                    }
                ],
            },
        ),
        "collision",
        "the webhook vgpu.hami.io of hami-webhook changes the same pods",
        id="second_webhook",
    ),
    pytest.param(
        other_plugin("nvcr.io/nvidia/k8s-device-plugin:v0.17"),
        "collision",
        "DaemonSet gpu-operator/plugin is a device plugin for the same cards, on 2 nodes of ours",
        id="second_plugin",
    ),
    pytest.param(
        lambda c: c.edit(
            "validatingadmissionpolicybindings",
            "hami-node-own-pods",
            lambda body: body["spec"].update(validationActions=["Audit"]),
        ),
        "policies",
        "no binding with the action Deny puts hami-node-own-pods into force",
        id="audit_only",
    ),
    pytest.param(
        lambda c: c.edit(
            "validatingadmissionpolicies",
            "hami-node-own-node",
            lambda body: body["spec"]["matchConditions"][0].update(
                expression="request.userInfo.username == 'system:serviceaccount:other:hami-node'"
            ),
        ),
        "policies",
        "hami-node-own-node: no condition names an account of namespace hami-system",
        id="other_account",
    ),
    pytest.param(
        lose("secrets", "hami-node-extender-tls", SPACE),
        "certificate",
        "the Secret hami-node-extender-tls does not exist",
        id="no_secret",
    ),
    pytest.param(
        lambda c: c.edit("secrets", "hami-node-extender-tls", lambda body: body.update(data={})),
        "certificate",
        "hami-node-extender-tls: it holds no certificate yet",
        id="empty_secret",
    ),
    pytest.param(
        certificates_of_somebody_else,
        "certificate",
        "no valid authority beside it signed it (by the caBundle of the webhook)",
        id="other_authority",
    ),
    pytest.param(expired, "certificate", "no valid authority", id="expired"),
    pytest.param(
        lambda c: c.edit("deployments", "hami-node-extender", add_argument("--client-name=other")),
        "certificate",
        "hami-node-scheduler-client-tls: it does not name other",
        id="client_name",
    ),
    pytest.param(
        configure(
            "hami-node-config", "device-config.yaml", "handshake: always", "handshke: always"
        ),
        "settings",
        "hami-node refuses its settings: configmap hami-node-config: hami-node: 'handshke' is",
        id="typo",
    ),
    pytest.param(
        lose("configmaps", "hami-node-config", SPACE),
        "settings",
        "configmap hami-node-config does not exist",
        id="no_config",
    ),
    pytest.param(
        lambda c: c.edit("daemonsets", "hami-node", add_argument("--resource-name=a.b/card")),
        "settings",
        "resource-count is 'a.b/card' in hami-node and 'nvidia.com/gpu' in the extender",
        id="differ",
    ),
    pytest.param(
        lambda c: c.edit("deployments", "hami-node-extender", add_argument("--scheduler-name=own")),
        "settings",
        "hami-node-scheduler serves hami-scheduler, and the webhook gives pods the scheduler own",
        id="scheduler_name",
    ),
    pytest.param(
        configure(
            "hami-node-scheduler", "config.yaml", "- name: nvidia.com/gpucores", "- name: x.y/z"
        ),
        "settings",
        "hami-node-scheduler does not name nvidia.com/gpucores in managedResources",
        id="managed",
    ),
    pytest.param(
        kubelet(capacity="", allocatable=""), "kubelet", "kubelet lists none of", id="kubelet_none"
    ),
    pytest.param(
        kubelet(capacity="1", allocatable="1"),
        "kubelet",
        "node gpu-0: kubelet counts 1 of nvidia.com/gpu, and 10 are registered",
        id="kubelet_less",
    ),
    pytest.param(
        annotated(handshake="Deleted_2020-01-01 00:00:00"), "handshake", "silent", id="given_up"
    ),
    pytest.param(
        annotated(handshake="Requesting_2020-01-01 00:00:00"), "handshake", "silent", id="silent"
    ),
    pytest.param(annotated(handshake="hello"), "handshake", "not a handshake", id="handshake"),
    pytest.param(annotated(handshake=None), "handshake", "not a handshake", id="no_handshake"),
    pytest.param(annotated(register=None), "cards", "has published no card", id="no_cards"),
    pytest.param(annotated(register="[{"), "cards", "can't be read", id="bad_register"),
    pytest.param(
        annotated(hand_over="refused: the runtime reads no CDI"),
        "hand-over",
        "no container can be given a card: the runtime reads no CDI",
        id="hand_over",
    ),
    pytest.param(annotated(limiter=None), "limiter", "nothing that limits", id="no_limiter"),
]


@pytest.mark.parametrize(("fault", "check", "what"), FAULTS)
def test_fault_is_named_with_its_cure(
    cluster: Installed, fault: Callable[[Installed], object], check: str, what: str
) -> None:
    fault(cluster)
    found = findings(cluster)
    bad = states(found, "wrong")
    assert [text for name, text in bad if name == check and what in text], bad
    assert all(one["remedy"] for one in found if one["state"] == "wrong")


def test_scheduler_that_asks_nobody_whom_to_evict_is_warned_about(cluster: Installed) -> None:
    configure("hami-node-scheduler", "config.yaml", "preemptVerb: preempt", "ignorable: false")(
        cluster
    )
    found = findings(cluster)
    [why] = [what for name, what in states(found, "warn") if "preemptVerb" in what]
    assert why.startswith("hami-node-scheduler does not ask the extender whom to evict")
    [remedy] = [one["remedy"] for one in found if one["what"] == why]
    assert "preemptVerb: preempt" in remedy


def test_table_ends_with_what_to_do_first(cluster: Installed) -> None:
    lose("runtimeclasses", "nvidia")(cluster)
    annotated(limiter=None)(cluster)
    done = call(cluster)
    assert done.exit_code == 1
    text = " ".join(done.output.split())
    assert "do this first: install the container toolkit that makes it" in text
    assert "then run it again: 1 more may have the same cause; -o json has all cures" in text


WARNINGS = [
    pytest.param(
        webhook(failurePolicy="Ignore"),
        "webhook",
        "hami-node has failurePolicy Ignore",
        id="ignore",
    ),
    pytest.param(
        webhook(namespaceSelector={"matchLabels": {"gpu": "yes"}}),
        "webhook",
        "hami-node is not called for namespaces without labels",
        id="namespaces",
    ),
    pytest.param(
        lambda c: c.edit(
            "nodes",
            "gpu-1",
            lambda body: body["spec"].update(taints=[{"key": "team", "effect": "NoSchedule"}]),
        ),
        "daemon",
        "taints keep DaemonSet hami-node off 1 node: gpu-1",
        id="taint",
    ),
    pytest.param(
        lambda c: c.edit(
            "deployments", "hami-node-extender", lambda b: b["spec"].update(replicas=1)
        ),
        "extender",
        "has one replica",
        id="one_replica",
    ),
    pytest.param(
        lose("validatingadmissionpolicies", "hami-node-own-node"),
        "policies",
        "no admission policy ...-own-node",
        id="no_policy",
    ),
    pytest.param(
        annotated(limiter="v2.8.1"), "limiter", "v2.10.0 on 1 node; v2.8.1 on 1 node", id="versions"
    ),
    pytest.param(
        kubelet(allocatable="0"), "kubelet", "kubelet offers 0 of nvidia.com/gpu", id="off"
    ),
    pytest.param(
        lambda c: c.annotate("gpu-0", {"hami-node.io/simulated": "true"}),
        "cards",
        "node gpu-0: its cards are simulated",
        id="simulated",
    ),
    pytest.param(
        lambda c: c.annotate("gpu-0", {"hami-node.io/closed-cards": '{"GPU-gpu-0-0": "XID 79"}'}),
        "cards",
        "node gpu-0: card 0 (GPU-gpu-0-0) takes no pod: XID 79",
        id="closed",
    ),
    pytest.param(
        lambda c: [c.server.delete("deployments", "hami-node-extender", SPACE)],
        "extender",
        "none is in namespace hami-system",
        id="no_extender",
    ),
]


@pytest.mark.parametrize(("fault", "check", "what"), WARNINGS)
def test_oddity_is_mentioned_and_no_failure(
    cluster: Installed, fault: Callable[[Installed], object], check: str, what: str
) -> None:
    fault(cluster)
    found = findings(cluster)
    odd = states(found, "warn")
    assert [text for name, text in odd if name == check and what in text], found
    assert states(found, "wrong") == []


def test_certificate_that_ends_soon_is_mentioned(cluster: Installed) -> None:
    cluster.now_s += 86400 * (3650 - 20)
    programs = Programs(
        env=lambda: {"KUBECONFIG": str(cluster.kubeconfig)}, now=lambda: cluster.now_s
    )
    done = CliRunner().invoke(main, ["verify", "-o", "json"], obj=programs)
    found = json.loads(done.stdout)["findings"]
    assert ("certificate", "warn") in {(one["check"], one["state"]) for one in found}


@pytest.mark.parametrize(
    ("image", "key"),
    [
        ("rdma/k8s-rdma-shared-dev-plugin:1", "nvidia.com/gpu.present"),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17", "elsewhere"),
    ],
)
def test_plugin_of_other_cards_or_other_nodes_is_no_collision(
    cluster: Installed, image: str, key: str
) -> None:
    other_plugin(image, key=key)(cluster)
    assert call(cluster).exit_code == 0
