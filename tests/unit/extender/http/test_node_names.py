"""Lists of thousands of names, of which a decision asks about one or two."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.extender.caller_limits import MAX_NODES
from hami_node.extender.http.messages import decode_filter_args
from hami_node.extender.http.node_names import FEW_LOOKS, NodeNames, is_plain

POD = {"metadata": {"name": "a", "namespace": "b", "uid": "c"}}
NAMES = st.text('ab.-,"\\é \n[]{}', max_size=4)
VALUES = st.recursive(
    NAMES | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=6,
)


def body_of(names: object) -> bytes:
    return json.dumps({"Pod": POD, "NodeNames": names}).encode()


@given(names=st.lists(NAMES, max_size=6), asked=st.lists(NAMES, max_size=2 * FEW_LOOKS))
def test_names_are_those_of_the_list_however_often_asked(
    names: list[str], asked: list[str]
) -> None:
    found = decode_filter_args(body_of(names)).node_names
    assert found is not None
    of_nodes = [name for name in [*asked, *names] if not set(name) & set(',"\\\n')]
    assert [name in found for name in of_nodes] == [name in names for name in of_nodes]
    assert list(found) == list(dict.fromkeys(names))
    assert len(found) == len(set(names))


@given(value=st.lists(VALUES, max_size=4), is_ascii=st.booleans())
def test_plain_is_only_a_list_of_strings(value: list[object], is_ascii: bool) -> None:
    raw = json.dumps(value, ensure_ascii=is_ascii).encode()
    if is_plain(raw):
        assert value
        assert all(isinstance(name, str) for name in value)
    else:
        assert not (value and all(isinstance(one, str) and one.isalpha() for one in value)) or (
            not raw.isascii() or b"\\" in raw
        )


@given(text=st.text('",[]{}\\a1 ', max_size=12))
def test_whatever_is_plain_and_valid_can_be_decoded(text: str) -> None:
    raw = b'["' + text.encode() + b'"]'
    try:
        value = json.loads(raw)
    except ValueError:
        return
    if is_plain(raw):
        assert list(NodeNames(raw)) == list(dict.fromkeys(value))


@pytest.mark.parametrize(
    "wrong",
    [["a"] * (MAX_NODES + 1), [1], ["a", 1], ["a", ["b"]], {"a": 1}, "a"],
    ids=["many", "number", "mixed", "nested", "object", "text"],
)
def test_what_is_no_list_of_names_is_refused(wrong: object) -> None:
    with pytest.raises(WireError):
        decode_filter_args(body_of(wrong))


def test_absent_names_stay_absent() -> None:
    assert decode_filter_args(json.dumps({"Pod": POD}).encode()).node_names is None
    none = decode_filter_args(body_of([])).node_names
    assert none is not None
    assert not list(none)


def test_thousands_are_not_decoded_for_a_few_looks() -> None:
    names = NodeNames(json.dumps([f"node-{number}" for number in range(5000)]).encode())
    assert len(names) == 5000
    assert "node-4999" in names
    assert "node-499" in names
    assert "node-5000" not in names
    assert not names._names
    assert list(names)[:2] == ["node-0", "node-1"]
    assert "node-4999" in names
