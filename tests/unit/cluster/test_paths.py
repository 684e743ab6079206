"""Paths: a name is one segment, whatever stands in it; a kind is never a name."""

from __future__ import annotations

import pytest

from hami_node.cluster.paths import lease_path, node_path, pod_path, resource_of, segment
from hami_node.errors import NotFound


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/nodes/n1", "nodes"),
        ("/api/v1/namespaces/ns/pods/p1/binding", "pods"),
        ("/api/v1/namespaces/ns", "namespaces"),
        ("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l?x=/a/b", "leases"),
        ("/version", "version"),
        ("/api/v1", ""),
        ("/", ""),
    ],
)
def test_resource_of_is_never_a_name(path: str, resource: str) -> None:
    assert resource_of(path) == resource


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_segment_refuses_names_that_would_mean_another_path(name: str) -> None:
    with pytest.raises(NotFound):
        segment(name)


def test_paths_quote_names() -> None:
    assert node_path("a/b?c#d e%") == "/api/v1/nodes/a%2Fb%3Fc%23d%20e%25"
    assert pod_path("ns", "p") == "/api/v1/namespaces/ns/pods/p"
    assert pod_path("ns") == "/api/v1/namespaces/ns/pods"
    assert lease_path("ns", "l") == "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
