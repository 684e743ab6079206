"""Nodes that don't serve what is sent there, against the extender's real endpoints and watches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.extender.state.node_back_off import LONGEST_S
from hami_node.simulate.store import Json
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_http.calls import bind_args, exchange, filter_args, post
from tests.integration.extender_rig import LIMIT_S, ExtenderRig, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(120)
NODES = ("n0", "n1", "n2", "n3", "n4", "n5")
UNAVAILABLE = (
    "Pod was rejected: Allocate failed due to rpc error: code = Unavailable desc = the driver does "
    "not answer, which is unexpected"
)
REFUSED = UNAVAILABLE.replace("Unavailable", "FailedPrecondition")


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    rig = ExtenderRig()
    for name in NODES:
        rig.write_node(name, has_identity=True)
    rig.start()
    rig.settle()
    yield rig
    rig.close()


def created(rig: ExtenderRig, name: str) -> Json:
    return rig.api.create("pods", pod_manifest(name, (Box(memory_mib=100),), {}))


def asked(rig: ExtenderRig, pod: Json, *nodes: str) -> Json:
    status, answer = post(rig, "/filter", filter_args(pod, list(nodes or NODES)))
    assert status == 200
    return dict(answer)


def sent(rig: ExtenderRig, name: str, *nodes: str) -> str:
    """Filter and bind a new pod; its node, "" where no node is offered."""
    pod = created(rig, name)
    chosen = "".join(asked(rig, pod, *nodes)["NodeNames"] or ())
    if chosen:
        assert post(rig, "/bind", bind_args(pod, chosen)) == (200, {"Error": ""})
    return chosen


def refuse(rig: ExtenderRig, name: str, message: str = UNAVAILABLE) -> None:
    """The daemon owes the phase, kubelet writes its status: both arrive, in some order."""

    def change(body: Json) -> None:
        body["metadata"]["annotations"][names.POD_BIND_PHASE] = names.PHASE_FAILED
        body["status"] = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": message,
        }

    rig.edit(name, change)
    rig.settle()


def close(rig: ExtenderRig, *nodes: str) -> None:
    """So many faults that the wait which begins is longer than a test on a slow machine takes."""
    for number in range(7):
        if number:
            rig.pass_time(LONGEST_S)
        for node in nodes:
            assert sent(rig, f"{number}-on-{node}", node) == node
        for node in nodes:
            refuse(rig, f"{number}-on-{node}")


def closed(rig: ExtenderRig) -> int:
    """As /metrics says: nodes that get no pods."""
    status, page = exchange(rig, "GET", "/metrics")
    assert status == 200
    lines = [line for line in page.splitlines() if "nodes_backed_off{" in line]
    return sum(int(float(line.split()[-1])) for line in lines)


def marks(rig: ExtenderRig) -> dict[str, str]:
    """The nodes that were written because they are open again, with what was written."""
    found = {name: rig.api.read("nodes", name)["metadata"].get("labels") or {} for name in NODES}
    return {
        name: str(of[names.OPENED_NODE]) for name, of in found.items() if names.OPENED_NODE in of
    }


@shows(
    "E13",
    fault="a node's plugin does not answer, so that the node stays the emptiest",
    happens="the next pods go elsewhere; waits until more are sent there double, up to a minute",
)
def test_a_broken_node_attracts_no_more_pods(rig: ExtenderRig) -> None:
    close(rig, "n0")
    for number in range(4):
        assert sent(rig, f"next-{number}") not in ("", "n0")
    assert closed(rig) == 1
    rig.pass_time(LONGEST_S)
    assert closed(rig) == 0
    assert sent(rig, "last", "n0") == "n0"
    assert not marks(rig), "no pod has missed it"


@shows(
    "E13",
    fault="pods find the only node closed, and nothing else happens in the cluster afterwards",
    happens="once the node is open again it is written once, upon which kube-scheduler takes up "
    "every pod that waits",
)
def test_pods_that_a_closed_node_kept_waiting_are_taken_up_when_it_opens(rig: ExtenderRig) -> None:
    close(rig, "n0")
    for number in range(20):
        answer = asked(rig, created(rig, f"waits-{number}"), "n0")
        assert "NodeBackedOff" in answer["FailedAndUnresolvableNodes"]["n0"]
    rig.pass_time(LONGEST_S)
    eventually(lambda: list(marks(rig)) == ["n0"], LIMIT_S)
    written = marks(rig)
    assert sent(rig, "next", "n0") == "n0"
    rig.pass_time(LONGEST_S)
    rig.settle()
    assert marks(rig) == written


@shows(
    "E13",
    fault="a bad driver is rolled out: every node fails at once, and all but one stay broken",
    happens="every node is left alone, waiting pods are told so, and they go on with the first "
    "that can serve",
)
def test_when_every_node_fails_pods_go_on_with_the_first_that_is_mended(rig: ExtenderRig) -> None:
    close(rig, *NODES)
    rig.api.annotate("nodes", "n3", {names.NODE_HAND_OVER: f"{names.HAND_OVER_REFUSED}no driver"})
    rig.settle()
    answer = asked(rig, created(rig, "waits"))
    assert not answer["NodeNames"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(NODES)
    assert closed(rig) == len(NODES)
    rig.api.annotate("nodes", "n3", {names.NODE_HAND_OVER: "envvar UUID"})
    rig.settle()
    assert sent(rig, "goes-on") == "n3"
    eventually(lambda: list(marks(rig)) == ["n3"], LIMIT_S)


@shows(
    "E13",
    fault="a tenant calls its own pods failed, or makes pods that the plugin refuses, to blind "
    "nodes",
    happens="no node is closed by what a plugin refuses",
)
def test_a_tenant_blinds_no_node(rig: ExtenderRig) -> None:
    for number, node in enumerate(NODES):
        assert sent(rig, f"bad-{number}", node) == node
        refuse(rig, f"bad-{number}", REFUSED)
        assert sent(rig, f"good-{number}", node) == node
    assert closed(rig) == 0
