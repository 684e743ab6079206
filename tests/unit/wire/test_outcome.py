"""How the serving of a pod's cards ended: what kubelet and the plugin say, and what tenants may."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.model import Container, Pod
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.outcome import SERVED, Fault, bound_at, outcome_of

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


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (pod("failed"), Fault.REFUSED),
        (pod("failed", DENIED + CODE.format("FailedPrecondition", "no")), Fault.REFUSED),
        (pod("allocating", DENIED + CODE.format("Unknown", "no")), Fault.REFUSED),
        (pod("allocating", DENIED + CODE.format("Unavailable", "no")), Fault.UNAVAILABLE),
        (
            pod("failed", "Pod was rejected: " + DENIED + CODE.format("Unavailable", "no")),
            Fault.UNAVAILABLE,
        ),
        (
            pod(
                "allocating",
                f"{DENIED}no healthy devices present; cannot allocate unhealthy devices {GPU}, "
                "which is unexpected",
            ),
            Fault.UNHEALTHY,
        ),
        (
            pod("allocating", f"{DENIED}requested number of devices unavailable for {GPU}. R"),
            Fault.REFUSED,
        ),
    ],
)
def test_the_fault_of_a_refusal(given: Pod, fault: Fault) -> None:
    found = outcome_of(given, (GPU,))
    assert found is not None
    assert found.fault is fault


@pytest.mark.parametrize(
    "given",
    [
        pod("allocating"),
        pod("failed", node="other"),
        pod("allocating", DENIED + CODE.format("Unavailable", "no"), GPU, FOREIGN),
        pod(
            "allocating",
            f"{DENIED}no healthy devices present; cannot allocate unhealthy devices {FOREIGN}, x",
            GPU,
            FOREIGN,
        ),
    ],
    ids=["open", "bound elsewhere", "maybe another plugin", "another plugin"],
)
def test_what_says_nothing_about_our_cards(given: Pod) -> None:
    assert outcome_of(given, (GPU,)) is None


def test_what_a_tenant_wrote_into_the_message_is_not_kubelets_word() -> None:
    forged = f"{GPU} code = Unavailable desc = {DENIED}rpc error: code = Unavailable desc = "
    told = DENIED + CODE.format("FailedPrecondition", forged)
    found = outcome_of(pod("failed", told), (GPU,))
    assert found is not None
    assert found.fault is Fault.REFUSED


def test_success_is_success_whatever_else_failed_later() -> None:
    assert outcome_of(pod("success", DENIED + "x"), (GPU,)) == SERVED


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
    owners = [{"uid": "no"}, {"uid": "yes", "controller": True}]
    read = decode_pod({"metadata": {"name": "p", "ownerReferences": owners}, "status": status})
    assert (read.refusal, read.owner) == (refusal, "yes")
