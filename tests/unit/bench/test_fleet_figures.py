"""The pure parts of the bench on a fleet: what it counts is what was seen."""

from __future__ import annotations

from tests.bench.fleet import figures, plane
from tests.bench.fleet.paper import pod_body
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
