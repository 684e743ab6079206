from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.extender.caller_limits import MAX_NODES
from hami_node.extender.http.messages import (
    FilterAnswer,
    decode_bind_args,
    decode_filter_args,
    encode_error,
    encode_filter_answer,
)
from tests.fakes.pods import Box, pod_body

POD = pod_body("p", (Box(),), node="")
BIND = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n1"}
NAMES = st.text('ab.-,"\\é \n[]{}', max_size=4)
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def body(**members: Any) -> bytes:
    return json.dumps(members).encode()


def test_names_are_read_once_and_in_order() -> None:
    args = decode_filter_args(body(Pod=POD, NodeNames=["b", "a", "b"]))
    assert args.pod.key == "default/p"
    assert list(args.candidates) == ["b", "a"]
    assert args.nodes is None


@pytest.mark.parametrize("key", ["NodeNames", "nodenames", "nodeNames", "NODENAMES"])
def test_members_are_read_in_any_case(key: str) -> None:
    assert list(decode_filter_args(body(pod=POD, **{key: ["a"]})).node_names or ()) == ["a"]


def test_whole_nodes_keep_what_came() -> None:
    node = {"metadata": {"name": "n1"}, "unknown": [1, 2]}
    args = decode_filter_args(body(Pod=POD, Nodes={"items": [node]}, NodeNames=None))
    assert args.node_names is None
    assert args.candidates == ("n1",)
    answer = encode_filter_answer(FilterAnswer(nodes=[node.raw for node in args.nodes or ()]))
    assert json.loads(answer)["Nodes"]["items"] == [node]


@pytest.mark.parametrize(
    ("given_body", "member"),
    [
        pytest.param(b"", "body", id="nothing"),
        pytest.param(b"{", "body", id="truncated"),
        pytest.param(b"[]", "body", id="a list"),
        pytest.param(b"\xff\xfe", "body", id="no text"),
        pytest.param(b"[" * 100_000, "body", id="deep"),
        pytest.param(body(), "Pod", id="no pod"),
        pytest.param(body(Pod=None), "Pod", id="null"),
        pytest.param(body(Pod={"metadata": {"name": "p"}}), "Pod", id="a pod without a uid"),
        pytest.param(body(Pod=POD, NodeNames="n1"), "NodeNames", id="names are a text"),
        pytest.param(body(Pod=POD, NodeNames=[1]), "NodeNames", id="names are numbers"),
        pytest.param(body(Pod=POD, Nodes=[]), "Nodes", id="nodes are a list"),
    ],
)
def test_bad_filter_call_names_the_member(given_body: bytes, member: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_filter_args(given_body)
    assert caught.value.key == member


@pytest.mark.parametrize("missing", BIND)
@pytest.mark.parametrize("value", ["", None, 7])
def test_bad_bind_call_names_the_member(missing: str, value: object) -> None:
    with pytest.raises(WireError) as caught:
        decode_bind_args(body(**(BIND | {missing: value})))
    assert caught.value.key == missing


def test_bind_call_is_read() -> None:
    args = decode_bind_args(body(**BIND))
    assert (args.key, args.uid, args.node) == ("default/p", "u", "n1")


@given(st.dictionaries(st.sampled_from(["Pod", "Nodes", "NodeNames", "PodUID", "Node"]), VALUES))
def test_any_json_raises_only_wire_error(members: dict[str, Any]) -> None:
    for decode in (decode_filter_args, decode_bind_args):
        with suppress(WireError):
            decode(body(**members))


def test_answer_has_the_keys_of_kube_scheduler() -> None:
    answer = json.loads(encode_filter_answer(FilterAnswer(node_names=("n1",), failed={"n2": "x"})))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {"n2": "x"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_bind_answer_is_an_error_or_none() -> None:
    assert msgspec.json.decode(encode_error("why")) == {"Error": "why"}


# -- lists of names --------------------------------------------------------------------------------
def named(names: object) -> bytes:
    return body(Pod=POD, NodeNames=names)


@given(names=st.lists(NAMES, max_size=6), asked=st.lists(NAMES, max_size=8))
def test_names_are_those_of_the_list_however_often_asked(
    names: list[str], asked: list[str]
) -> None:
    found = decode_filter_args(named(names)).node_names
    assert found is not None
    of_nodes = [name for name in [*asked, *names] if not set(name) & set(',"\\\n')]
    assert [name in found for name in of_nodes] == [name in names for name in of_nodes]
    assert list(found) == list(dict.fromkeys(names))
    assert len(found) == len(set(names))


@pytest.mark.parametrize(
    "wrong",
    [["a"] * (MAX_NODES + 1), [1], ["a", 1], ["a", ["b"]], {"a": 1}, "a"],
    ids=["many", "number", "mixed", "nested", "object", "text"],
)
def test_what_is_no_list_of_names_is_refused(wrong: object) -> None:
    with pytest.raises(WireError):
        decode_filter_args(named(wrong))


def test_absent_names_stay_absent() -> None:
    assert decode_filter_args(body(Pod=POD)).node_names is None
    none = decode_filter_args(named([])).node_names
    assert none is not None
    assert not list(none)
