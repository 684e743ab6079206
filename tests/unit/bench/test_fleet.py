"""The pure parts of the benches on a fleet: what is counted, and what has to be the same."""

from __future__ import annotations

from typing import Any

from hami_node.vendors.nvidia import names as nvidia_names
from tests.bench.fleet import figures, plane
from tests.bench.fleet.churn import Act, Fate, churn, differences, held_use, left_behind, shown_use
from tests.bench.fleet.paper import pod_body
from tests.bench.fleet.soak import verdict
from tests.bench.fleet.throughput import Burst, rows
from tests.e2e.audit import Request


def request(verb: str, what: str) -> Request:
    return Request(user="u", agent="a", verb=verb, what=what, code=200)


def burst(kind: str, pods_per_s: float, nodes: int = 10) -> Burst:
    cpu = {"extender": 2.0, "kube-scheduler": 1.0, "kube-apiserver": 3.0}
    return Burst(nodes=nodes, kind=kind, pods_per_s=pods_per_s, latency_ms=(1.0, 2.0), cpu_ms=cpu)


def test_requests_are_counted_by_kind_without_names_lists_and_leases() -> None:
    seen = [
        request("patch", "pods/a"),
        request("patch", "pods/b"),
        request("create", "pods/a/binding"),
        request("create", "events/a.17"),
        request("update", "leases/x"),
        request("list", "pods"),
        request("get", "endpointslices/x"),
    ]
    assert figures.kinds_of(seen) == {"patch pods": 2, "create pods/binding": 1, "create events": 1}


def test_growth_begins_after_the_warm_up_and_one_peak_does_not_count() -> None:
    points = [(float(t), 50.0 if t < 10 else 100.0) for t in range(40)]
    points[35] = (35.0, 900.0)
    assert figures.growth(points, after=10.0) == 0.0
    assert figures.growth(points, after=5.0) == 50.0
    assert figures.growth(points, after=39.5) == 0.0


def test_ratio_stands_beside_the_pods_with_cards_for_each_number_of_nodes() -> None:
    found = rows([burst("plain", 400), burst("cards", 100), burst("plain", 200, nodes=20)][:2])
    assert [row["ours/plain"] for row in found] == ["", 0.25]
    assert [row["pods"] for row in found] == ["plain", "cards"]


def test_kube_scheduler_asks_as_the_manifests_say_but_without_limits_of_its_client() -> None:
    manifest = plane.scheduler_manifest()
    tls = {"caFile": "/ca", "certFile": "/crt", "keyFile": "/key"}
    config = plane.scheduler_config(manifest, "https://x:1", tls=tls, kubeconfig="/k")
    asked, written = config["extenders"][0], manifest["extenders"][0]
    assert (asked["urlPrefix"], asked["tlsConfig"]) == ("https://x:1", tls)
    assert {**asked, "urlPrefix": "", "tlsConfig": ""} == {
        **written,
        "urlPrefix": "",
        "tlsConfig": "",
    }
    assert config["clientConnection"] == {"kubeconfig": "/k", "qps": 2000, "burst": 4000}
    assert config["profiles"] == manifest["profiles"]


def test_plain_pods_and_ours_differ_by_the_cards_only() -> None:
    plain, ours = pod_body("a", has_cards=False), pod_body("a", has_cards=True)
    limits = [pod["spec"]["containers"][0]["resources"].pop("limits") for pod in (plain, ours)]
    assert plain == ours
    assert limits[0].keys() < limits[1].keys()
    assert {key for key in limits[1] if key not in limits[0]} == {
        *("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores")
    }


def pod(node: str, text: str, phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "annotations": {nvidia_names.POD_ALLOCATED: text}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase},
    }


def test_every_pod_is_created_and_deleted_in_order_and_every_fate_is_met() -> None:
    pods = list(churn(rate=20, for_s=60))
    assert len(pods) == 1200
    for steps in pods:
        assert (steps[0].act, steps[-1].act) == (Act.CREATE, Act.DELETE)
        assert [step.at_s for step in steps] == sorted(step.at_s for step in steps)
        assert len({(step.name, step.fate) for step in steps}) == 1
    assert {steps[0].fate for steps in pods} == set(Fate)
    assert [steps[0].at_s for steps in pods] == sorted(steps[0].at_s for steps in pods)


def test_use_by_metrics_and_by_pods_is_the_same_where_state_is_right() -> None:
    labels = '{node="n",uuid="GPU-1"}'
    page = (
        f"hami_node_extender_card_slots_used{labels} 2\n"
        f"hami_node_extender_card_memory_granted_bytes{labels} {3000 * 2**20}\n"
        f"hami_node_extender_card_slots{labels} 10\n"
        'hami_node_extender_card_slots_used{node="n",uuid="GPU-2"} 0\n'
    )
    pods = [
        pod("n", "GPU-1,NVIDIA,1000,5:;"),
        pod("n", "GPU-1,NVIDIA,2000,5:;"),
        pod("n", "GPU-1,NVIDIA,9999,5:;", phase="Failed"),
        pod("", "GPU-1,NVIDIA,9999,5:;"),
    ]
    assert differences(shown_use(page), held_use(pods)) == []
    assert differences(shown_use(page), held_use(pods[:1])) == [
        "GPU-1: memory 3000 in the extender, 1000 by the pods",
        "GPU-1: slots 2 in the extender, 1 by the pods",
    ]


def test_reservation_of_a_pod_that_is_not_placed_is_left_behind() -> None:
    assert left_behind([pod("n", "x"), pod("", "")]) == [f"p: {nvidia_names.POD_ALLOCATED}"]
    assert left_behind([{"metadata": {"name": "p"}, "spec": {}, "status": {}}]) == []


def test_growth_before_the_warm_up_is_over_is_allowed_and_after_it_is_not() -> None:
    early = [(10.0 * i, 50.0 + min(i, 60)) for i in range(360)]
    late = [(10.0 * i, 50.0 + i / 10) for i in range(360)]
    assert verdict(early, 600, [], [])[2] == []
    growth, slope, failed = verdict(late, 600, [], [])
    assert growth > 5
    assert round(slope) == 36
    assert len(failed) == 1
    assert verdict(early, 600, ["wrong"], ["refused"])[2] == ["state: wrong", "error: refused"]
