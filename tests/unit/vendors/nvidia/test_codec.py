"""NVIDIA cards in the register annotation, in the form of every generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

CSV7 = (
    "GPU-00552014,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    "GPU-0fc3eda5,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,false:"
)
CSV9 = (
    "GPU-3d8e41ef,10,143771,100,NVIDIA-NVIDIA H20-3e,1,true,3,hami-core:"
    "GPU-40c0923a,10,258787,500,NVIDIA-NVIDIA H20-3e,0,true,1,mig:"
)
JSON = (
    '[{"id":"GPU-00552014","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA A10","numa":1,'
    '"mode":"hami-core","health":true,"devicepairscore":{}},'
    '{"id":"GPU-0fc3eda5","index":1,"count":10,"devmem":32768,"devcore":100,"type":"NVIDIA A10"}]'
)


def test_decode_register_7_fields_have_index_0_and_hami_core() -> None:
    first, second = decode_register(CSV7)

    assert first == Device(
        uuid=Uuid("GPU-00552014"),
        index=0,
        vendor=NVIDIA,
        model="NVIDIA-Tesla V100-PCIE-32GB",
        numa=0,
        slots=10,
        memory_mib=32768,
    )
    assert (second.index, second.numa, second.healthy, second.mode) == (0, 1, False, "hami-core")


def test_decode_register_9_fields_keep_order_index_and_mode() -> None:
    devices = decode_register(CSV9)

    assert [(device.index, device.mode, device.cores) for device in devices] == [
        (3, "hami-core", 100),
        (1, "mig", 500),
    ]


def test_decode_register_json_missing_members_are_zero_and_mode_is_hami_core() -> None:
    first, second = decode_register(JSON)

    assert (first.index, first.numa, first.healthy) == (0, 1, True)
    assert (second.index, second.numa, second.healthy, second.mode) == (1, 0, False, "hami-core")


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


@pytest.mark.parametrize(
    ("spelling", "is_healthy"),
    [("1", True), ("t", True), ("TRUE", True), ("0", False), ("F", False), ("False", False)],
)
def test_decode_csv_health_reads_every_spelling(spelling: str, is_healthy: bool) -> None:
    (device,) = decode_register(f"GPU-0,1,2,3,A10,0,{spelling}:")

    assert device.healthy is is_healthy


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


def test_encode_json_leaves_out_zero_false_and_empty_members() -> None:
    text = encode_json([replace(H100, numa=None, healthy=False)])

    assert text == (
        '[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,'
        '"type":"NVIDIA H100 80GB HBM3","mode":"hami-core"}]'
    )


def test_encode_json_mig_card_has_profiles_templates_and_index() -> None:
    (row,) = json.loads(encode_json([MIG]))

    assert row["index"] == 3
    assert row["migProfiles"] == [
        {
            "name": "1g.10gb",
            "memoryMB": 9728,
            "core": 15,
            "sliceCount": 1,
            "placements": [{"start": 0, "size": 1}, {"start": 1, "size": 1}],
        }
    ]
    assert [len(geometry) for geometry in row["migTemplates"]] == [1, 1]
    assert "health" not in row


def test_encode_forms_are_sorted_by_index_and_uuid() -> None:
    later = replace(H100, uuid=Uuid("GPU-0"), index=1)

    for encode in (encode_json, encode_csv7, encode_csv9):
        text = encode([MIG, later, H100])
        assert text == encode([H100, later, MIG])
        assert text.index("GPU-1") < text.index("GPU-0") < text.index("GPU-2")


def test_encode_csv_puts_nvidia_before_the_model() -> None:
    assert encode_csv7([H100]) == "GPU-1,10,81920,100,NVIDIA-NVIDIA H100 80GB HBM3,0,true:"
    assert encode_csv9([MIG]) == "GPU-2,10,81920,100,NVIDIA-NVIDIA H100 80GB HBM3,1,false,3,mig:"


def test_encode_csv_separator_in_a_name_does_not_break_the_next_card() -> None:
    odd = replace(H100, model="A,B:C")

    assert len(decode_register(encode_csv7([odd, MIG]))) == 2


NAMES = st.text(st.characters(codec="utf-8", exclude_characters=",:"), min_size=1, max_size=12)
NUMBERS = st.integers(0, 2**31 - 1)
DEVICES = st.builds(
    Device,
    uuid=NAMES.map(Uuid),
    index=NUMBERS,
    vendor=st.just(NVIDIA),
    model=NAMES,
    mode=st.sampled_from(Mode),
    numa=st.integers(0, 9),
    healthy=st.booleans(),
    slots=NUMBERS,
    memory_mib=NUMBERS,
    cores=NUMBERS,
)


@given(st.lists(DEVICES, max_size=4))
def test_encode_json_decodes_to_the_same_devices(devices: list[Device]) -> None:
    ordered = tuple(sorted(devices, key=lambda card: (card.index, card.uuid)))

    assert decode_register(encode_json(devices)) == ordered


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
