"""Whose fault it is that a pod got no cards: what kubelet says, and what tenants may."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.model import Container, Pod
from hami_node.wire import names
from hami_node.wire.node_fault import Fault, bound_at, node_fault
from hami_node.wire.objects import decode_pod

GPU, FOREIGN = "nvidia.com/gpu", "example.com/nic"
DENIED = "Allocate failed due to "
CODE = "rpc error: code = {} desc = {}, which is unexpected"


def pod(phase: str, refusal: str = "", *resources: str, node: str = "n") -> Pod:
    limits = dict.fromkeys(resources or (GPU,), "1")
    return Pod(
        uid="u",
        namespace="default",
        name="p",
        node_name="n",
        phase="Failed" if refusal else "Pending",
        annotations={names.POD_NODE: node, names.POD_BIND_PHASE: phase},
        containers=(Container(name="main", limits=limits),),
        refusal=refusal,
    )


UNHEALTHY = DENIED + "no healthy devices present; cannot allocate unhealthy devices {}, which is"
UNREGISTERED = DENIED + "cannot allocate unregistered device {}, which is unexpected"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (pod("allocating", DENIED + CODE.format("Unavailable", "no")), Fault.UNAVAILABLE),
        (pod("allocating", DENIED + CODE.format("Canceled", "no")), Fault.UNAVAILABLE),
        (
            pod("failed", "Pod was rejected: " + DENIED + CODE.format("Unavailable", "no")),
            Fault.UNAVAILABLE,
        ),
        (pod("allocating", UNREGISTERED.format(GPU)), Fault.UNAVAILABLE),
        (pod("allocating", UNHEALTHY.format(GPU)), Fault.UNHEALTHY),
    ],
)
def test_what_no_pod_can_have_brought_about_is_the_nodes_fault(given: Pod, fault: Fault) -> None:
    assert node_fault(given, (GPU,)) is fault


@pytest.mark.parametrize(
    "given",
    [
        pod("allocating"),
        pod("failed"),
        pod("failed", DENIED + CODE.format("FailedPrecondition", "no")),
        pod("allocating", DENIED + CODE.format("Unknown", "no")),
        pod("allocating", f"{DENIED}requested number of devices unavailable for {GPU}. R"),
        pod("allocating", DENIED + CODE.format("Unavailable", "no"), node="other"),
        pod("success", DENIED + CODE.format("Unavailable", "no")),
        pod("allocating", DENIED + CODE.format("Unavailable", "no"), GPU, FOREIGN),
        pod("allocating", UNHEALTHY.format(FOREIGN), GPU, FOREIGN),
        pod("allocating", UNREGISTERED.format(FOREIGN), GPU, FOREIGN),
    ],
    ids=[
        "open",
        "refused, or called so by a tenant",
        "refused",
        "refused by another plugin for cards",
        "bound by somebody else",
        "bound elsewhere",
        "served before",
        "maybe another plugin",
        "another plugin",
        "another plugin, not there",
    ],
)
def test_what_may_be_the_pods_doing_is_not(given: Pod) -> None:
    assert node_fault(given, (GPU,)) is None


def test_what_a_tenant_wrote_into_the_message_is_not_kubelets_word() -> None:
    forged = f"{GPU} code = Unavailable desc = {DENIED}rpc error: code = Unavailable desc = "
    told = DENIED + CODE.format("FailedPrecondition", forged)
    assert node_fault(pod("failed", told), (GPU,)) is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("1700000000", 1.7e9), ("", 0.0), ("soon", 0.0), ("9" * 40, 0.0)]
)
def test_when_it_was_bound(text: str, seconds: float) -> None:
    given = Pod(uid="u", namespace="d", name="p", annotations={names.POD_BIND_TIME: text})
    assert bound_at(given) == seconds


@pytest.mark.parametrize(
    ("status", "refusal"),
    [
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "why"}, "why"),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, ""),
        ({"phase": "Running", "reason": "UnexpectedAdmissionError", "message": "why"}, ""),
    ],
)
def test_kubelets_refusal_is_read(status: dict[str, Any], refusal: str) -> None:
    assert decode_pod({"metadata": {"name": "p"}, "status": status}).refusal == refusal
