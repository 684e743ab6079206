"""NVIDIA cards in the register annotation, in the form of every generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from hami_node.errors import WireError
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import decode_register, encode_csv7, encode_csv9, encode_json
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.mode import Mode

H100 = Device(
    uuid=Uuid("GPU-1"),
    index=0,
    vendor=NVIDIA,
    model="NVIDIA H100 80GB HBM3",
    numa=0,
    slots=10,
    memory_mib=81920,
    cores=100,
)
MIG = replace(
    H100,
    uuid=Uuid("GPU-2"),
    index=3,
    mode=Mode.MIG,
    numa=1,
    healthy=False,
    detail=MigLayout(
        profiles=(
            MigProfile(
                name="1g.10gb",
                memory_mib=9728,
                cores=15,
                slice_count=1,
                placements=(MigPlacement(start=0, size=1), MigPlacement(start=1, size=1)),
            ),
        ),
        templates=(
            (MigTemplate(name="1g.10gb", memory_mib=9728, cores=14, count=7),),
            (MigTemplate(name="7g.80gb", memory_mib=80384, cores=100, count=1),),
        ),
    ),
)


@pytest.mark.parametrize("text", ["", ":", "[]"])
def test_decode_register_without_cards_is_empty(text: str) -> None:
    assert decode_register(text) == ()


BAD_CSV = [
    pytest.param("GPU-0,1,2,3,A10,0,true", id="no colon"),
    pytest.param("GPU-0,1,2,3,A10,0,true,0:", id="8 fields"),
    pytest.param("GPU-0,1,2,3,A10,0,true,0,mig,x:", id="10 fields"),
    pytest.param("GPU-0,1,2,3,A10,0:", id="6 fields"),
]
BAD_VALUES = [
    pytest.param("GPU-0,x,2,3,A10,0,true:", id="slots"),
    pytest.param("GPU-0,1,12a,3,A10,0,true:", id="letters"),
    pytest.param("GPU-0,1,1_0,3,A10,0,true:", id="underscore"),
    pytest.param("GPU-0,1,0x10,3,A10,0,true:", id="base 16"),
    pytest.param("GPU-0,1, 5,3,A10,0,true:", id="blank"),
    pytest.param("GPU-0,1,2,1.5,A10,0,true:", id="fraction"),
    pytest.param("GPU-0,1,2,3,A10,,true:", id="nothing"),
    pytest.param("GPU-0,1,2,3,A10,0,yes:", id="boolean"),
    pytest.param("GPU-0,1,2,3,A10,0,true,-1,mig:", id="index below 0"),
    pytest.param("GPU-0,1,4294967296,3,A10,0,true:", id="more than 32 bits"),
    pytest.param("GPU-0,\u0661,2,3,A10,0,true:", id="digits of another script"),
]


@pytest.mark.parametrize("text", [*BAD_CSV, *BAD_VALUES])
def test_decode_csv_bad_text_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="node-nvidia-register"):
        decode_register(text)


def test_decode_csv_numa_below_0_is_unknown() -> None:
    (device,) = decode_register("GPU-0,1,2,3,A10,-1,true:")

    assert device.numa is None


def _mig(profiles: list[object]) -> str:
    return json.dumps([{"id": "a", "migProfiles": profiles}])


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{}", id="an object"),
        pytest.param("[", id="cut"),
        pytest.param('[{"id":7}]', id="number as id"),
        pytest.param('[{"count":1.5}]', id="fraction"),
        pytest.param('[{"count":-1}]', id="below 0"),
        pytest.param('[{"devmem":99999999999}]', id="more than 32 bits"),
        pytest.param('[{"health":"true"}]', id="text as boolean"),
        pytest.param("[" * 100_000, id="nested too deeply"),
        pytest.param("[" + ",".join(['{"id":"a"}'] * 257) + "]", id="too many cards"),
        pytest.param(_mig([{"placements": [{"start": 1}] * 300}]), id="too many placements"),
        pytest.param(_mig([{}] * 300), id="too many profiles"),
        pytest.param(
            json.dumps([{"migTemplates": [[{"count": 1}] * 100] * 3}]), id="too many geometries"
        ),
    ],
)
def test_decode_json_bad_text_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="node-nvidia-register"):
        decode_register(text)


def test_encode_forms_are_sorted_by_index_and_uuid() -> None:
    later = replace(H100, uuid=Uuid("GPU-0"), index=1)

    for encode in (encode_json, encode_csv7, encode_csv9):
        text = encode([MIG, later, H100])
        assert text == encode([H100, later, MIG])
        assert text.index("GPU-1") < text.index("GPU-0") < text.index("GPU-2")


def test_encode_csv_separator_in_a_name_does_not_break_the_next_card() -> None:
    odd = replace(H100, model="A,B:C")

    assert len(decode_register(encode_csv7([odd, MIG]))) == 2


def test_encode_json_mig_card_decodes_to_the_same_device() -> None:
    assert decode_register(encode_json([MIG])) == (MIG,)


@pytest.mark.parametrize("form", [encode_json, encode_csv7, encode_csv9])
def test_decode_register_takes_256_cards_and_no_more(
    form: Callable[[Iterable[Device]], str],
) -> None:
    """One node's annotation with 5,800 cards took 4.7 s of a decision about linked cards."""
    cards = [replace(H100, uuid=Uuid(f"GPU-{at}"), index=at) for at in range(257)]
    assert len(decode_register(form(cards[:256]))) == 256
    with pytest.raises(WireError, match="more than 256 cards"):
        decode_register(form(cards))
