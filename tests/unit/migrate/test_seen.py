"""Which nodes a DaemonSet wants, whose a workload is, and what odd objects decode to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.migrate.seen import decoding
from hami_node.migrate.seen.objects import NodeChoice, Term
from hami_node.migrate.seen.parts import Maker, image_name, image_tag, plugins_in
from hami_node.migrate.seen.picture import plain_yaml
from tests.fakes.foreign_cluster import daemon_set, hami_objects, node, own_objects, plugin_pod


@pytest.mark.parametrize(
    ("operator", "values", "labels", "is_met"),
    [
        ("In", ("a", "b"), {"k": "b"}, True),
        ("In", ("a",), {}, False),
        ("NotIn", ("a",), {}, True),
        ("NotIn", ("a",), {"k": "a"}, False),
        ("Exists", (), {"k": ""}, True),
        ("DoesNotExist", (), {"k": ""}, False),
        ("Gt", ("3",), {"k": "4"}, True),
        ("Lt", ("3",), {"k": "4"}, False),
        ("Gt", ("x",), {"k": "4"}, False),
        ("Gt", (), {"k": "4"}, False),
        ("Maybe", ("a",), {"k": "a"}, False),
    ],
)
def test_term(
    operator: str, values: tuple[str, ...], labels: Mapping[str, str], is_met: bool
) -> None:
    assert Term(key="k", operator=operator, values=values).holds_for(labels) is is_met


def test_choice_is_the_selector_and_one_alternative() -> None:
    one = (Term(key="pool", operator="In", values=("a",)),)
    other = (Term(key="pool", operator="In", values=("b",)),)
    choice = NodeChoice(selector={"gpu": "on"}, alternatives=(one, other))
    assert choice.takes({"gpu": "on", "pool": "b"})
    assert not choice.takes({"pool": "b"})
    assert not choice.takes({"gpu": "on", "pool": "c"})
    assert NodeChoice().takes({})


@pytest.mark.parametrize(
    ("image", "name", "tag"),
    [
        ("docker.io/projecthami/hami:v2.7.1", "hami", "v2.7.1"),
        ("reg:5000/hami", "hami", ""),
        ("reg:5000/a/hami:v1@sha256:abc", "hami", "v1"),
        ("hami@sha256:abc", "hami", ""),
        ("", "", ""),
    ],
)
def test_image(image: str, name: str, tag: str) -> None:
    assert (image_name(image), image_tag(image)) == (name, tag)


@pytest.mark.parametrize(
    ("maker", "found"),
    [
        (Maker.HAMI, next(o for o in hami_objects() if o["kind"] == "DaemonSet")),
        (Maker.HAMI, daemon_set("vgpu", "ns", image="reg.local/mirror/hami:v2.6.0")),
        (Maker.OURS, own_objects()[0]),
        (Maker.OURS, daemon_set("x", "ns", image="reg.local/hami-node:0.1.0")),
        (Maker.OPERATOR, daemon_set("x", "ns", image="a", owner="ClusterPolicy")),
        (Maker.NVIDIA, daemon_set("x", "ns", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0")),
        (Maker.OTHER, daemon_set("rdma", "ns", image="k8s-rdma-shared-dev-plugin:v1")),
        (
            Maker.NVIDIA,
            daemon_set("x", "ns", image="k8s-device-plugin", folder="/var/lib/k0s/device-plugins/"),
        ),
    ],
)
def test_maker_of_a_plugin(maker: Maker, found: dict[str, object]) -> None:
    (part,) = plugins_in([decoding.workload("DaemonSet", found)])
    assert part.maker is maker


@pytest.mark.parametrize("body", [{}, {"metadata": 3}, {"spec": [], "status": None}, {"a": {}}])
def test_empty_objects_decode(body: dict[str, object]) -> None:
    assert decoding.workload("DaemonSet", body).name == ""
    assert decoding.workload("Deployment", body).wanted == 1
    assert decoding.node(body).is_ready
    assert decoding.pod(body) is not None
    assert decoding.webhooks(body) == ()
    assert decoding.ready_endpoints(body) == 0
    assert not decoding.is_edited(body)


def test_pod_that_has_ended_is_nobody() -> None:
    assert decoding.pod(plugin_pod("x", "n") | {"status": {"phase": "Failed"}}) is None


def test_time_that_is_none_is_not_known() -> None:
    body = plugin_pod("x", "n")
    body["metadata"]["annotations"] = {"hami.io/bind-time": "9" * 400}
    found = decoding.pod(body)
    assert found is not None
    assert found.bound_s is None


def test_node_keeps_only_annotations_of_the_protocol() -> None:
    body = node("n", annotations={"hami.io/a": "1", "hami-node.io/b": "2", "other/c": "3"})
    assert set(decoding.node(body).annotations) == {"hami.io/a", "hami-node.io/b"}


@pytest.mark.parametrize(
    "text", ["{", "!!python/object:os.x {}", "x" * 2_000_000, "[" * 900_000, "a: 1\na: 2"]
)
def test_text_that_could_harm_is_nothing(text: str) -> None:
    assert plain_yaml(text) is None
