"""The client over real HTTP: what it sends, what it makes of answers, what it raises."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.transport.connection import Timeouts
from hami_node.errors import Conflict, Forbidden, KubeError, NotFound, NotLeading
from hami_node.model import Pod
from hami_node.ports import EventNote
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock, soon
from tests.fakes.http_servers import answering_server, dripping_server
from tests.fakes.waiting import eventually
from tests.unit.cluster.conftest import Connect, Requests, pod

NOTE = EventNote(kind="Pod", namespace="ns", name="p1", uid="u1", reason="Refused", message="full")


def test_read_node_returns_the_decoded_node(kube: KubeClient) -> None:
    assert kube.read_node("n1").annotations == {"theirs": "x"}


def test_read_node_without_such_node_raises_not_found(kube: KubeClient) -> None:
    with pytest.raises(NotFound, match=r"can't get nodes/n2.*404"):
        kube.read_node("n2")


def test_merge_patch_node_keeps_foreign_annotations(kube: KubeClient) -> None:
    assert kube.merge_patch_node("n1", {"ours": "1"}).annotations == {"theirs": "x", "ours": "1"}
    assert kube.merge_patch_node("n1", {"ours": None}).annotations == {"theirs": "x"}


def test_patch_pod_exactly_keeps_foreign_annotations(kube: KubeClient) -> None:
    patched = kube.patch_pod_exactly(kube.read_pod("ns", "p1"), {"ours": "1"})
    assert patched.annotations == {"theirs": "x", "ours": "1"}


def test_json_patch_with_true_test_is_applied(kube: KubeClient) -> None:
    patch = (
        {"op": "test", "path": "/metadata/annotations/theirs", "value": "x"},
        {"op": "replace", "path": "/metadata/annotations/theirs", "value": "y"},
    )
    assert kube.json_patch_node("n1", patch).annotations == {"theirs": "y"}
    assert kube.json_patch_pod("ns", "p1", patch).annotations == {"theirs": "y"}


def test_json_patch_with_false_test_raises_conflict_and_changes_nothing(kube: KubeClient) -> None:
    patch = (
        {"op": "test", "path": "/metadata/annotations/theirs", "value": "z"},
        {"op": "remove", "path": "/metadata/annotations/theirs"},
    )
    with pytest.raises(Conflict):
        kube.json_patch_pod("ns", "p1", patch)
    assert kube.read_pod("ns", "p1").annotations == {"theirs": "x"}


def test_list_pods_of_a_node_leaves_others_out(server: FaultyApiServer, kube: KubeClient) -> None:
    server.create("pods", pod("ns", "p2", "n2"))
    assert [pod.name for pod in kube.list_pods("n1")] == ["p1"]
    assert [pod.name for pod in kube.list_pods()] == ["p1", "p2"]


def test_list_skips_what_cannot_be_decoded(server: FaultyApiServer, kube: KubeClient) -> None:
    server.create("nodes", {"metadata": {"name": "bad"}, "spec": {"unschedulable": "perhaps"}})
    assert [node.name for node in kube.list_nodes()] == ["n1"]


def test_list_is_taken_from_the_servers_cache(server: FaultyApiServer, kube: KubeClient) -> None:
    for number in range(501):  # more than a page: the cache answers in one piece
        server.create("pods", pod("many", f"p{number:04}"))
    assert len(kube.list_pods()) == 502
    assert len(server.requests(verb="list")) == 1


def test_bind_pod_sets_the_node_once(server: FaultyApiServer, kube: KubeClient) -> None:
    server.create("pods", pod("ns", "free"))
    free = kube.read_pod("ns", "free")
    kube.bind_pod(free, "n1", {})
    assert kube.read_pod("ns", "free").node_name == "n1"
    with pytest.raises(Conflict):
        kube.bind_pod(replace(free, resource_version=""), "n1", {})


def test_bind_pod_sets_annotations_with_the_node(server: FaultyApiServer, kube: KubeClient) -> None:
    server.create("pods", pod("ns", "free"))
    server.annotate("pods", "free", {"team": "x", "phase": "old"}, "ns")
    free = kube.read_pod("ns", "free")
    kube.bind_pod(free, "n1", {"phase": "new"})
    annotations = kube.read_pod("ns", "free").annotations
    assert (annotations["team"], annotations["phase"]) == ("x", "new")


def test_bind_pod_in_time_tells_the_api_server_and_does_not_wait_longer(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.create("pods", pod("ns", "free"))
    free = kube.read_pod("ns", "free")
    server.faults.add("create", "pods", "hang", 1)
    began = time.monotonic()
    with pytest.raises(KubeError) as failed:
        kube.bind_pod(free, "n1", {}, 0.3)
    assert failed.value.is_transient
    assert time.monotonic() - began < 5
    server.faults.clear()
    eventually(lambda: [seen.query for seen in server.requests() if seen.subresource])
    asked = [seen.query for seen in server.requests() if seen.subresource]
    assert asked == [{"timeout": "300ms"}]


def test_bind_pod_in_another_version_raises_conflict(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.create("pods", pod("ns", "free"))
    before = kube.read_pod("ns", "free")
    server.annotate("pods", "free", {"team": "x"}, "ns")
    now = kube.read_pod("ns", "free")
    with pytest.raises(Conflict):
        kube.bind_pod(before, "n1", {"phase": "new"})
    assert "phase" not in kube.read_pod("ns", "free").annotations
    kube.bind_pod(now, "n1", {})
    assert server.read("pods", "free", "ns")["spec"]["nodeName"] == "n1"


def test_bind_pod_with_another_uid_raises_conflict(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.create("pods", pod("ns", "free"))
    older = replace(kube.read_pod("ns", "free"), uid="an-older-pod", resource_version="")
    with pytest.raises(Conflict):
        kube.bind_pod(older, "n1", {})
    assert kube.read_pod("ns", "free").node_name == ""


def test_create_event_says_who_what_and_about_whom(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    kube.create_event(NOTE)
    (event,) = server.list("events")
    assert event["metadata"]["namespace"] == "ns"
    assert event["involvedObject"]["uid"] == "u1"
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Refused", "full")
    assert event["source"] == {"component": "hami-node", "host": "n1"}


def test_create_event_cuts_a_message_that_the_server_would_refuse(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    note = EventNote(kind="Pod", namespace="ns", name="p1", uid="u", reason="R", message="é" * 4000)
    kube.create_event(note)
    assert len(server.list("events")[0]["message"].encode()) <= 1024


def test_lease_is_created_read_and_updated_with_its_version(kube: KubeClient) -> None:
    made = kube.create_lease("kube-system", {"metadata": {"name": "l"}, "spec": {"x": 1}})
    with pytest.raises(Conflict):
        kube.create_lease("kube-system", {"metadata": {"name": "l"}})
    assert kube.read_lease("kube-system", "l") == made
    newer = kube.update_lease("kube-system", "l", {**made, "spec": {"x": 2}})
    assert newer["spec"] == {"x": 2}
    with pytest.raises(Conflict):
        kube.update_lease("kube-system", "l", {**made, "spec": {"x": 3}})


def test_list_resource_quotas_returns_all_namespaces(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    for namespace in ("a", "b"):
        server.create("resourcequotas", {"metadata": {"namespace": namespace, "name": "q"}})
    assert len(kube.list_resource_quotas()) == 2


def test_list_limit_ranges_returns_those_of_the_namespace(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    for namespace in ("a", "b"):
        body = {"metadata": {"namespace": namespace, "name": "most"}, "spec": {"of": namespace}}
        server.create("limitranges", body)
    assert [one["spec"] for one in kube.list_limit_ranges("a")] == [{"of": "a"}]


def test_request_sends_any_method_and_path(server: FaultyApiServer, kube: KubeClient) -> None:
    assert b"simulated" in kube.request("GET", "/version")
    kube.request("DELETE", "/api/v1/namespaces/ns/pods/p1")
    assert server.list("pods") == []


def test_every_request_carries_the_user_agent(server: FaultyApiServer, connect_to: Connect) -> None:
    connect_to(component="extender").read_node("n1")
    assert len(server.requests(user_agent="hami-node/")) == 1
    assert server.requests()[0].user_agent.endswith("(extender)")


def test_on_request_gets_verb_resource_and_status(
    server: FaultyApiServer, kube: KubeClient, calls: Requests
) -> None:
    kube.read_node("n1")
    server.fail_next("patch", "pods", 500)
    with pytest.raises(KubeError):
        kube.patch_pod_exactly(P1, {"a": "b"})
    server.fail_next("list", "pods", "reset")
    with pytest.raises(KubeError):
        kube.list_pods()
    assert calls == [("get", "nodes", 200), ("patch", "pods", 500), ("list", "pods", 0)]


def test_a_name_with_a_slash_reaches_the_server_whole(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    with pytest.raises(NotFound):
        kube.read_node("../pods")
    assert [request.name for request in server.requests()] == ["../pods"]


P1 = Pod(uid="", namespace="ns", name="p1")
CALLS: dict[str, tuple[str, str, Callable[[KubeClient], object]]] = {
    "read_node": ("get", "nodes", lambda kube: kube.read_node("n1")),
    "list_nodes": ("list", "nodes", lambda kube: kube.list_nodes()),
    "merge_patch_node": ("patch", "nodes", lambda kube: kube.merge_patch_node("n1", {"a": "b"})),
    "json_patch_node": ("patch", "nodes", lambda kube: kube.json_patch_node("n1", ())),
    "read_pod": ("get", "pods", lambda kube: kube.read_pod("ns", "p1")),
    "list_pods": ("list", "pods", lambda kube: kube.list_pods("n1")),
    "patch_pod_exactly": ("patch", "pods", lambda kube: kube.patch_pod_exactly(P1, {"a": "b"})),
    "json_patch_pod": ("patch", "pods", lambda kube: kube.json_patch_pod("ns", "p1", ())),
    "bind_pod": ("create", "pods", lambda kube: kube.bind_pod(P1, "n1", {})),
    "create_event": ("create", "events", lambda kube: kube.create_event(NOTE)),
    "read_lease": ("get", "leases", lambda kube: kube.read_lease("ns", "l")),
    "list_quotas": ("list", "resourcequotas", lambda kube: kube.list_resource_quotas()),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_call_tells_what_failed_and_whether_it_may_be_repeated(
    server: FaultyApiServer, kube: KubeClient, call: str
) -> None:
    verb, resource, send = CALLS[call]
    for status, kind, is_transient in ((403, Forbidden, False), (503, KubeError, True)):
        server.fail_next(verb, resource, status)
        with pytest.raises(kind, match=f"can't {verb} ") as caught:
            send(kube)
        assert type(caught.value) is kind
        assert (caught.value.status, caught.value.is_transient) == (status, is_transient)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_without_an_answer_is_transient(
    server: FaultyApiServer, connect_to: Connect, call: str
) -> None:
    verb, resource, send = CALLS[call]
    outcomes = ("reset", "hang", "reset-after") if call == "read_node" else ("reset-after",)
    if call == "read_lease":
        server.create("leases", {"metadata": {"namespace": "ns", "name": "l"}})
    if call == "bind_pod":
        server.edit("pods", "p1", lambda pod: pod["spec"].pop("nodeName"), "ns")
    kube = connect_to(read_s=0.15)
    for outcome in outcomes:
        server.fail_next(verb, resource, outcome)
        with pytest.raises(KubeError, match=r"did not answer in time|can't be reached") as caught:
            send(kube)
        assert caught.value.is_transient
        assert caught.value.status == 0


def test_forbidden_names_verb_and_resource(server: FaultyApiServer, kube: KubeClient) -> None:
    server.fail_next("patch", "nodes", 403)
    with pytest.raises(Forbidden, match="service account may patch nodes"):
        kube.merge_patch_node("n1", {"a": "b"})


def test_refused_connection_is_transient_and_over_when_the_server_is_back(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    kube.read_node("n1")
    server.go_down()
    with pytest.raises(KubeError, match=r"can't be reached: Connection refused$") as caught:
        kube.read_node("n1")
    assert caught.value.is_transient
    server.start()
    assert kube.read_node("n1").name == "n1"


def test_reset_connection_says_so_in_plain_words(server: FaultyApiServer, kube: KubeClient) -> None:
    server.fail_next("get", "nodes", "reset")
    with pytest.raises(KubeError, match=r"can't be reached: Connection reset by peer$"):
        kube.read_node("n1")


@pytest.mark.parametrize(
    ("attempts", "outcome", "times", "asked"),
    [
        pytest.param(1, 500, 1, 1, id="no retries"),
        *(pytest.param(3, outcome, 1, 2, id=f"{outcome}") for outcome in (429, 500, "reset")),
        pytest.param(3, 500, 9, 3, id="it lasts"),
        *(pytest.param(3, status, 1, 1, id=f"{status} is final") for status in (403, 404, 409)),
    ],
)
def test_only_transient_failures_are_tried_again_and_only_so_often(
    server: FaultyApiServer,
    kube: KubeClient,
    attempts: int,
    outcome: int | str,
    times: int,
    asked: int,
) -> None:
    server.fail_next("get", "nodes", outcome, times=times)
    with nullcontext() if times < asked else pytest.raises(KubeError):
        assert kube.with_retries(attempts).read_node("n1").name == "n1"
    assert len(server.requests()) == asked


def test_fence_is_checked_before_every_attempt_to_write(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.fail_next("patch", "nodes", 503, times=9)
    checks = []

    def fence() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise NotLeading("the Lease was lost")

    with pytest.raises(NotLeading):
        kube.fenced(fence).with_retries(5).merge_patch_node("n1", {"a": "b"})
    assert len(server.requests()) == 1


def test_fence_lets_reads_pass(server: FaultyApiServer, kube: KubeClient) -> None:
    def fence() -> None:
        raise NotLeading("the Lease was lost")

    assert kube.fenced(fence).read_node("n1").name == "n1"


def test_too_many_requests_carries_the_wait_that_the_server_asked_for(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    server.fail_next("get", "nodes", 429)
    with pytest.raises(KubeError) as caught:
        kube.read_node("n1")
    assert caught.value.retry_after_s == 1.0


def test_rotated_token_is_read_again_when_the_old_one_is_refused(tmp_path: Path) -> None:
    with FaultyApiServer(token="first") as server:
        server.create("nodes", {"metadata": {"name": "n1"}})
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        kube = connect(kubeconfig, component="daemon", clock=RealClock())
        assert kube.read_node("n1").name == "n1"
        server.token = "second"
        server.write_kubeconfig(kubeconfig)
        assert kube.read_node("n1").name == "n1"
        server.token = "third"
        with pytest.raises(Forbidden, match="does not accept our credentials"):
            kube.read_node("n1")
        kube.close()


@pytest.mark.parametrize("is_in_headers", [False, True], ids=["body", "headers"])
@pytest.mark.parametrize("is_the_callers", [False, True], ids=["usual-limit", "callers-deadline"])
def test_an_answer_that_drips_for_ever_is_cut(
    tmp_path: Path, *, is_in_headers: bool, is_the_callers: bool
) -> None:
    with dripping_server(is_in_headers=is_in_headers) as url:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: c}}], "
            f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]}}"
        )
        kube = connect(
            kubeconfig,
            component="daemon",
            clock=RealClock(),
            timeouts=Timeouts(connect_s=1.0, read_s=1.0, total_s=30.0 if is_the_callers else 0.3),
        )
        reader = kube.within(soon(0.3)) if is_the_callers else kube
        with pytest.raises(KubeError, match="in time" if is_in_headers else "not complete"):
            reader.read_node("n1")
        kube.close()


def test_an_answer_that_is_no_object_is_an_error_of_the_server(tmp_path: Path) -> None:
    with answering_server(b"<html>login</html>") as url:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            "{current-context: c, contexts: [{name: c, context: {cluster: c}}], "
            f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]}}"
        )
        kube = connect(kubeconfig, component="daemon", clock=RealClock())
        for send in (
            lambda: kube.read_node("n1"),
            lambda: kube.list_pods(),
            lambda: kube.read_pod("a", "b"),
            lambda: kube.read_lease("a", "b"),
        ):
            with pytest.raises(KubeError, match="sent no"):
                send()
        kube.close()
