"""The annotations of a resize, whatever they hold."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.resize import (
    MAX_REQUEST,
    MAX_WHY,
    Approval,
    Outcome,
    ResizeState,
    Word,
    decision_id,
    decode_approval,
    decode_request,
    decode_slot,
    decode_state,
    decode_words,
    encode_approval,
    encode_slot,
    encode_state,
    encode_words,
    is_about,
)

APPROVAL = Approval(id="a-1", uid="u", vendor="NVIDIA", grants={"main": "GPU-1,NVIDIA,5,0:;"})


def test_request_names_amounts_by_container() -> None:
    found = decode_request('{"main": {"gpumem": 12000, "gpucores": 50}, "b": {"gpumem": 1}}')
    assert found.containers == {"main": {"gpumem": 12000, "gpucores": 50}, "b": {"gpumem": 1}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "truncated"),
        ("{}", "names no container"),
        ('{"main": {}}', "no amount"),
        ('{"main": {"gpumem": 0}}', ">= 1"),
        ('{"main": {"gpumem": 1.5}}', "float"),
        ('{"main": {"gpumem": true}}', "bool"),
        ('{"main": {"gpumem": "1"}}', "str"),
        ('{"main": {"gpumem": 2147483648}}', "<= 2147483647"),
        ('{"main": {"gpumem": -5}}', ">= 1"),
        ('{"main": [1]}', "array"),
        ('{"a":' * 3000, "longer than 4096 characters"),
        (" " * (MAX_REQUEST + 1), "longer than 4096 characters"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(WireError, match="hami-node") as caught:
        decode_request(text)
    assert why in str(caught.value)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
def test_no_text_breaks_a_reader(text: str) -> None:
    with contextlib.suppress(WireError):
        decode_request(text)
    decode_approval(text, "u")
    decode_state(text)
    decode_words(text)
    assert is_about(decision_id(text, "7"), text)


def test_decision_is_about_one_text_only() -> None:
    assert is_about(decision_id("a", "1"), "a")
    assert not is_about(decision_id("a", "1"), "b")
    assert decision_id("a", "1") != decision_id("a", "2")


def test_approval_is_of_one_pod() -> None:
    text = encode_approval(APPROVAL)
    assert decode_approval(text, "u") == APPROVAL
    assert decode_approval(text, "another") is None
    assert decode_approval(text.replace('"id"', '"more":1,"id"'), "u") is None


def test_state_is_read_as_written_and_its_reason_is_cut() -> None:
    state = ResizeState(id="a-1", state=Outcome.REFUSED, why="w" * 2000)
    found = decode_state(encode_state(state))
    assert found is not None
    assert (found.id, found.state, len(found.why)) == ("a-1", Outcome.REFUSED, MAX_WHY)
    assert encode_state(ResizeState(id="a", state=Outcome.DONE)) == '{"id":"a","state":"done"}'


def test_words_are_read_as_written_and_sorted() -> None:
    word = Word(id="a-1", vendor="NVIDIA", grants="GPU-1,NVIDIA,5,0:;")
    words = {"u2": {"main": word}, "u1": {"b": word, "a": word}}
    assert decode_words(encode_words(words)) == words
    assert encode_words(words) == encode_words(dict(reversed(words.items())))
    assert encode_words({}) == "{}"


def test_slot_is_of_one_container_and_one_vendor() -> None:
    grants = (Grant(uuid=Uuid("GPU-1"), vendor=NVIDIA, memory_mib=5, cores=1),)
    assert decode_slot(encode_slot(grants), "key", NVIDIA) == grants
    for text in ("", ";", "GPU-1,DCU,5,1:;", "GPU-1,NVIDIA,5,1:;GPU-2,NVIDIA,5,1:;", "x,y"):
        with pytest.raises(WireError):
            decode_slot(text, "key", NVIDIA)
