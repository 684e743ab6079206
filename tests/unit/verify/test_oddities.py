"""What works and should be known: mentioned, and no failure."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from hami_node.cli.main import Programs, main
from tests.fakes.installed import SPACE, Installed
from tests.unit.verify.calling import call, findings, states
from tests.unit.verify.faults import annotated, kubelet, lose, other_plugin, webhook

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
