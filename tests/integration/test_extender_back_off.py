"""Nodes that don't serve what is sent there, against the extender's real endpoints and watches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

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


def created(rig: ExtenderRig, name: str, owner: str = "") -> Json:
    body = pod_manifest(name, (Box(memory_mib=100),), {})
    if owner:
        body["metadata"]["ownerReferences"] = [{"uid": owner, "controller": True}]
    return rig.api.create("pods", body)


def asked(rig: ExtenderRig, pod: Json, *nodes: str) -> Json:
    status, answer = post(rig, "/filter", filter_args(pod, list(nodes or NODES)))
    assert status == 200
    return dict(answer)


def sent(rig: ExtenderRig, name: str, *nodes: str, owner: str = "") -> str:
    """Filter and bind a new pod; its node, "" where no node is offered."""
    pod = created(rig, name, owner)
    chosen = "".join(asked(rig, pod, *nodes)["NodeNames"] or ())
    if chosen:
        assert post(rig, "/bind", bind_args(pod, chosen)) == (200, {"Error": ""})
    return chosen


def fail(rig: ExtenderRig, name: str, message: str = UNAVAILABLE) -> None:
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


def closed(rig: ExtenderRig) -> int:
    """As /metrics says: nodes that are closed to everybody."""
    status, page = exchange(rig, "GET", "/metrics")
    assert status == 200
    lines = [line for line in page.splitlines() if "nodes_backed_off{" in line]
    return sum(int(float(line.split()[-1])) for line in lines if 'closed_to="node"' in line)


@shows(
    "E13",
    fault="a node's plugin refuses every pod, so that the node stays the emptiest",
    happens="the next pods go elsewhere; after a while one tries the node, and the others follow "
    "once it is served",
)
def test_a_broken_node_attracts_no_more_pods(rig: ExtenderRig) -> None:
    assert sent(rig, "first", "n0") == "n0"
    fail(rig, "first")
    for number in range(4):
        assert sent(rig, f"next-{number}") not in ("", "n0")
    refused = asked(rig, created(rig, "only-there"), "n0")
    assert "NodeBackedOff" in refused["FailedAndUnresolvableNodes"]["n0"]
    assert closed(rig) == 1
    rig.pass_time(11)
    assert sent(rig, "tries", "n0") == "n0"
    assert sent(rig, "waits", "n0") == ""
    rig.serve("tries")
    rig.settle()
    assert sent(rig, "follows", "n0") == "n0"
    assert closed(rig) == 0


@shows(
    "E13",
    fault="a bad driver is rolled out: every node fails at once, and all but one stay broken",
    happens="every node is left alone, waiting pods are told so, one pod each tries them, and the "
    "node that serves takes the others",
)
def test_when_every_node_fails_pods_go_on_with_the_first_that_is_mended(rig: ExtenderRig) -> None:
    for name in NODES:
        assert sent(rig, f"on-{name}", name) == name
    for name in NODES:
        fail(rig, f"on-{name}")
    answer = asked(rig, created(rig, "waits"))
    assert not answer["NodeNames"]
    assert answer["FailedAndUnresolvableNodes"].keys() == set(NODES)
    assert closed(rig) == len(NODES)
    rig.pass_time(11)
    tried = {sent(rig, f"tries-{number}") for number in range(len(NODES))}
    assert tried == set(NODES), "one pod for each node"
    assert sent(rig, "one-too-many") == ""
    for number in range(len(NODES)):
        pod = rig.find(f"tries-{number}")
        assert pod is not None
        if pod["spec"]["nodeName"] == "n3":
            rig.serve(f"tries-{number}")
        else:
            fail(rig, f"tries-{number}")
    rig.settle()
    assert {sent(rig, f"goes-on-{number}") for number in range(5)} == {"n3"}
    rig.pass_time(11)
    assert closed(rig) == len(NODES) - 1, "twice as long"


@shows(
    "E13",
    fault="a tenant calls its own pods failed, or makes pods that fail, to blind nodes",
    happens="only pods like them are kept away; other owners' pods go there",
)
def test_a_tenant_blinds_no_node_for_others(rig: ExtenderRig) -> None:
    for number, node in enumerate(NODES):
        assert sent(rig, f"bad-{number}", node, owner="bad") == node
        fail(rig, f"bad-{number}", REFUSED)
    assert sent(rig, "bad-again", owner="bad") == ""
    assert sent(rig, "good", "n0", owner="good") == "n0"
    assert closed(rig) == 0


@pytest.mark.parametrize("skew_s", [-86_400, 86_400])
def test_times_that_others_wrote_wrongly_keep_no_node_for_long(
    rig: ExtenderRig, skew_s: int
) -> None:
    assert sent(rig, "first", "n0") == "n0"
    text = str(int(rig.clock.now()) + skew_s)
    rig.api.annotate("pods", "first", {names.POD_BIND_TIME: text}, "default")
    fail(rig, "first")
    assert sent(rig, "next", "n0") == ""
    rig.pass_time(11)
    assert sent(rig, "tries", "n0") == "n0"


def test_watches_that_break_count_nothing_twice(rig: ExtenderRig) -> None:
    assert sent(rig, "first", "n0") == "n0"
    fail(rig, "first")
    rig.pass_time(11)
    for _ in range(3):
        rig.api.expire_watches()
        rig.settle()
    assert sent(rig, "tries", "n0") == "n0"


def test_whole_nodes_of_a_simulation_are_answered_over_http(rig: ExtenderRig) -> None:
    assert sent(rig, "first", "n0") == "n0"
    fail(rig, "first")
    whole: list[Any] = [rig.api.read("nodes", name) for name in ("n0", "n1")]
    template = json.loads(json.dumps(whole[0]))
    template["metadata"] |= {"name": "new", "uid": "uid-new"}
    body = {"Pod": created(rig, "asks"), "Nodes": {"items": [whole[0], template]}}
    status, answer = post(rig, "/filter", body)
    assert status == 200
    assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["new"]
    assert "NodeBackedOff" in answer["FailedAndUnresolvableNodes"]["n0"]
    eventually(lambda: rig.drift() == [], LIMIT_S)
