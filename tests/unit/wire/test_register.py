"""The forms of a register annotation that HAMi's vendors share, for cards of any vendor."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Device, Uuid, Vendor
from hami_node.wire import register
from hami_node.wire.register import (
    decode_csv_register,
    decode_pair_scores,
    decode_rows,
    device_of,
    encode_csv7,
    encode_csv9,
    encode_json,
    encode_pair_scores,
    is_json,
    json_row,
)
from tests.unit.wire.totality import is_total

ACME = Vendor("Acme")
KEY = "acme.example/register"
SCORES_KEY = "acme.example/scores"
CARD = Device(
    uuid=Uuid("acme-1"), index=0, vendor=ACME, model="Rocket", numa=0, slots=4, memory_mib=1024
)
OTHER = replace(CARD, uuid=Uuid("acme-0"), index=1, numa=None, healthy=False, mode="rented")


def decode_csv(text: str) -> tuple[Device, ...]:
    return decode_csv_register(text, KEY, ACME)


def decode_json(text: str) -> tuple[Device, ...]:
    return tuple(device_of(row, ACME) for row in decode_rows(register.ROWS, text, KEY))


def decode_scores(text: str) -> object:
    return decode_pair_scores(text, SCORES_KEY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("[]", True), (" {", True), ("a,1,2,3,x,0,true:", False), ("", False), ("x[", False)],
)
def test_is_json_is_told_by_the_first_letter(text: str, expected: bool) -> None:
    assert is_json(text) is expected


def test_csv_forms_are_sorted_and_decode_to_the_vendors_cards() -> None:
    seven, nine = encode_csv7([OTHER, CARD]), encode_csv9([OTHER, CARD])

    assert seven == "acme-1,4,1024,100,Rocket,0,true:acme-0,4,1024,100,Rocket,0,false:"
    assert nine == (
        "acme-1,4,1024,100,Rocket,0,true,0,hami-core:acme-0,4,1024,100,Rocket,0,false,1,rented:"
    )
    assert decode_csv(nine) == (CARD, replace(OTHER, numa=0))
    assert decode_csv(seven) == (CARD, replace(OTHER, numa=0, index=0, mode=CARD.mode))


NAMES = st.text(st.characters(codec="utf-8", exclude_characters=",:"), min_size=1, max_size=12)
NUMBERS = st.integers(0, 2**31 - 1)
DEVICES = st.builds(
    Device,
    uuid=NAMES.map(Uuid),
    index=NUMBERS,
    vendor=st.just(ACME),
    model=NAMES,
    mode=st.sampled_from(["hami-core", "mig", "mps"]),
    numa=st.integers(0, 9),
    healthy=st.booleans(),
    slots=NUMBERS,
    memory_mib=NUMBERS,
    cores=NUMBERS,
)


@given(st.lists(DEVICES, min_size=1, max_size=4))
def test_encode_csv9_decodes_to_the_same_devices(devices: list[Device]) -> None:
    ordered = tuple(sorted(devices, key=lambda card: (card.index, card.uuid)))

    assert decode_csv(encode_csv9(devices)) == ordered


def test_csv_type_gets_the_prefix_of_its_vendor() -> None:
    assert encode_csv7([CARD], "ACME-") == "acme-1,4,1024,100,ACME-Rocket,0,true:"


def test_csv_error_names_the_annotation() -> None:
    with pytest.raises(WireError, match=KEY):
        decode_csv("acme-1,x,1024,100,Rocket,0,true:")


def test_json_form_leaves_out_zero_members_and_decodes_to_the_vendors_cards() -> None:
    text = encode_json([OTHER, CARD])

    assert text == (
        '[{"id":"acme-1","count":4,"devmem":1024,"devcore":100,"type":"Rocket",'
        '"mode":"hami-core","health":true},'
        '{"id":"acme-0","index":1,"count":4,"devmem":1024,"devcore":100,"type":"Rocket",'
        '"mode":"rented"}]'
    )
    assert decode_json(text) == (CARD, replace(OTHER, numa=0))


def test_json_numa_below_0_is_unknown() -> None:
    (found,) = decode_json('[{"id":"acme-1","numa":-1}]')

    assert found.numa is None


@pytest.mark.parametrize("text", ["{}", '[{"id":7}]', '[{"devmem":-1}]', '[{"index":2147483648}]'])
def test_json_bad_text_is_a_wire_error_that_names_the_annotation(text: str) -> None:
    with pytest.raises(WireError, match=KEY):
        decode_json(text)


def test_json_members_of_the_vendors_own_are_written_unless_empty() -> None:
    row = json_row(CARD, {"fuel": 3, "crew": []})

    assert row["fuel"] == 3
    assert "crew" not in row
    assert list(row)[-1] == "health"


def test_pair_scores_round_trip_sorted() -> None:
    scores = {Uuid("b"): {Uuid("c"): 50, Uuid("a"): 10}, Uuid("a"): {Uuid("b"): 10}}
    text = encode_pair_scores(scores)

    assert text == '[{"uuid":"a","score":{"b":10}},{"uuid":"b","score":{"a":10,"c":50}}]'
    assert decode_scores(text) == scores


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_pair_scores_nothing_is_no_scores(text: str) -> None:
    assert decode_scores(text) == {}


@pytest.mark.parametrize("text", ["{}", "x", '[{"uuid":1}]', '[{"score":{"a":"b"}}]'])
def test_pair_scores_bad_text_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match=SCORES_KEY):
        decode_scores(text)


@given(st.text() | st.text(alphabet='[]{}",:ACME0123456789-truefalse', max_size=60))
def test_decoders_any_text_gives_a_value_or_a_wire_error(text: str) -> None:
    for decode in (decode_csv, decode_json, decode_scores):
        assert is_total(decode, text)
