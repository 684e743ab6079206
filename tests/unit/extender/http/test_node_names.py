"""Lists of names that come again and again."""

from __future__ import annotations

import json

import pytest

from hami_node.errors import WireError
from hami_node.extender.caller_limits import MAX_NODES
from hami_node.extender.http.messages import decode_filter_args
from hami_node.extender.http.node_names import MAX_BYTES, REMEMBERED, NodeNames

POD = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}}


def body_of(names: object) -> bytes:
    return json.dumps({"Pod": POD, "NodeNames": names}).encode()


def test_equal_bytes_are_the_same_tuple_and_others_are_not() -> None:
    first = decode_filter_args(body_of(["n1", "n2", "n1"])).node_names
    assert first == ("n1", "n2")
    assert decode_filter_args(body_of(["n1", "n2", "n1"])).node_names is first
    assert decode_filter_args(body_of(["n1", "n2"])).node_names is not first
    assert decode_filter_args(body_of(["n1", "n3", "n1"])).node_names == ("n1", "n3")


def test_only_the_last_few_are_remembered() -> None:
    names = NodeNames()
    for number in range(REMEMBERED + 1):
        names.keep(b"%d" % number, [str(number)])
    assert names.find(b"0") is None
    assert [names.find(b"%d" % number) for number in range(1, REMEMBERED + 1)] == [
        (str(number),) for number in range(1, REMEMBERED + 1)
    ]


def test_huge_list_is_not_remembered() -> None:
    names, raw = NodeNames(), b"x" * (MAX_BYTES + 1)
    assert names.keep(raw, ["a"]) == ("a",)
    assert names.find(raw) is None


@pytest.mark.parametrize(
    "wrong", [["a"] * (MAX_NODES + 1), [1], {"a": 1}, "a"], ids=["many", "number", "object", "text"]
)
def test_what_is_refused_is_refused_again(wrong: object) -> None:
    for _ in range(2):
        with pytest.raises(WireError):
            decode_filter_args(body_of(wrong))


def test_absent_names_stay_absent() -> None:
    for _ in range(2):
        assert decode_filter_args(json.dumps({"Pod": POD}).encode()).node_names is None
        assert decode_filter_args(body_of([])).node_names == ()
