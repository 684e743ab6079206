"""`hami-node verify` over a simulated API server: all right, not allowed, or failing."""

from __future__ import annotations

import pytest

from tests.fakes.installed import Installed
from tests.unit.verify.calling import call, findings, states


def test_a_right_installation_is_green(cluster: Installed) -> None:
    done = call(cluster)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[-1] == "nothing is wrong"
    found = findings(cluster)
    assert {one["state"] for one in found} == {"ok"}
    assert {one["check"] for one in found} == {
        "settings",
        "certificate",
        "daemon",
        "extender",
        "kube-scheduler",
        "runtime class",
        "leader",
        "endpoints",
        "webhook",
        "policies",
        "cards",
        "kubelet",
        "handshake",
        "limiter",
        "collision",
    }


@pytest.mark.parametrize(
    ("resource", "checks"),
    [
        ("nodes", {"parts"}),
        ("pods", {"parts"}),
        ("deployments", {"parts"}),
        ("leases", {"leader"}),
        ("endpointslices", {"endpoints", "webhook"}),
        ("secrets", {"certificate"}),
        ("configmaps", {"settings", "leader"}),
        ("services", {"webhook"}),
        ("runtimeclasses", {"runtime class"}),
        ("mutatingwebhookconfigurations", {"webhook"}),
        ("validatingadmissionpolicies", {"policies"}),
    ],
)
def test_what_may_not_be_read_is_not_checked_and_no_failure(
    cluster: Installed, resource: str, checks: set[str]
) -> None:
    for verb in ("get", "list"):
        cluster.server.faults.add(verb, resource, 403, 10_000)
    found = findings(cluster)
    unchecked = states(found, "skip")
    assert checks <= {check for check, _ in unchecked}, found
    assert all("not checked: no right to read " in what for _, what in unchecked)
    assert states(found, "wrong") == []


def test_who_may_read_nothing_is_not_told_that_nothing_is_wrong(cluster: Installed) -> None:
    for verb in ("get", "list"):
        cluster.server.faults.add(verb, "*", 403, 10_000)
    done = call(cluster)
    assert (done.exit_code, done.output.splitlines()[-1]) == (3, "nothing could be checked")


def test_gap_is_said_in_the_last_line(cluster: Installed) -> None:
    cluster.server.faults.add("list", "daemonsets", 403, 1)
    done = call(cluster)
    assert (done.exit_code, done.output.splitlines()[-1]) == (
        0,
        "nothing wrong was found; 1 to look at",
    )


def test_without_a_right_to_nodes_the_pods_there_are_checked(cluster: Installed) -> None:
    cluster.server.faults.add("list", "nodes", 403, 1)
    what = "DaemonSet hami-node: 2 pods Ready of an unknown number of nodes"
    assert ("daemon", what) in states(findings(cluster), "ok")


def test_empty_namespace_says_so(cluster: Installed) -> None:
    (bad,) = states(findings(cluster, "--namespace", "gpu"), "wrong")[:1]
    assert bad == ("parts", "nothing of hami-node is in namespace gpu")


def test_one_node_only(cluster: Installed) -> None:
    cluster.annotate("gpu-1", {"hami-node.io/limiter": None})
    assert call(cluster, "--node", "gpu-0").exit_code == 0
    assert call(cluster, "--node", "gpu-1").exit_code == 1
    assert ("kubelet", "kubelet of 1 node counts what is registered") in states(
        findings(cluster, "--node", "gpu-1"), "ok"
    )


def test_node_that_does_not_exist_is_said(cluster: Installed) -> None:
    done = call(cluster, "--node", "gpu-9")
    assert (done.exit_code, done.stderr) == (1, "error: there is no node gpu-9\n")


def test_unreachable_api_server_ends_at_once_with_3(cluster: Installed) -> None:
    cluster.server.go_down()
    done = call(cluster)
    assert done.exit_code == 3
    assert "can't be reached" in done.stderr


def test_kind_that_fails_is_not_checked_and_ends_with_3(cluster: Installed) -> None:
    cluster.server.faults.add("list", "validatingadmissionpolicies", 500, 10)
    found = findings(cluster)
    assert [check for check, _ in states(found, "skip")] == ["policies"]
    assert call(cluster).exit_code == 3


def test_hanging_api_server_is_given_up_in_time(cluster: Installed) -> None:
    cluster.server.faults.add("get", "*", "hang", 10_000)
    done = call(cluster, "--timeout", "5")
    assert done.exit_code == 3, done.output
    assert "not checked" in done.output
