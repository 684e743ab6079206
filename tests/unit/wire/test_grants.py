from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Grant, Uuid, Vendor
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants, encode_grants
from tests.unit.wire.totality import is_total

A = Grant(uuid=Uuid("A"), vendor=NVIDIA, memory_mib=4000, cores=30)
B = Grant(uuid=Uuid("B"), vendor=NVIDIA, memory_mib=1000, cores=0)
KEY = "hami.io/vgpu-devices-to-allocate"


def decode(text: str) -> tuple[ContainerGrants, ...]:
    return decode_grants(text, KEY, NVIDIA)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        pytest.param("A,NVIDIA,4000,30:;", ((A,),), id="one"),
        pytest.param("A,NVIDIA,4000,30:B,NVIDIA,1000,0:;", ((A, B),), id="two cards"),
        pytest.param("A,NVIDIA,4000,30:;B,NVIDIA,1000,0:;", ((A,), (B,)), id="two containers"),
        pytest.param(";A,NVIDIA,4000,30:;", ((), (A,)), id="leading empty"),
        pytest.param("A,NVIDIA,4000,30:;;B,NVIDIA,1000,0:;", ((A,), (), (B,)), id="empty between"),
        pytest.param("A,NVIDIA,4000,30:;;", ((A,), ()), id="grown by one"),
        pytest.param("A,NVIDIA,4000,30:;,,0,0:;", ((A,), ()), id="2.4's empty slot"),
        pytest.param(
            ",,0,0:;A,NVIDIA,4000,30:;,,0,0:;", ((), (A,), ()), id="2.4's empty slots around"
        ),
        pytest.param("A,NVIDIA,4000,30", ((A,),), id="no separators at the end"),
        pytest.param("A,NVIDIA,4000,30,extra:;", ((A,),), id="fifth field"),
        pytest.param("garbage;", ((),), id="text without a comma"),
        pytest.param("", (), id="nothing"),
        pytest.param(";", ((),), id="one empty"),
        pytest.param(";;", ((), ()), id="two empty"),
    ],
)
def test_decode_grants_spellings(text: str, slots: tuple[ContainerGrants, ...]) -> None:
    assert decode(text) == slots


def test_decode_grants_foreign_vendor_and_mig_suffix_are_kept_as_written() -> None:
    ((dcu, mig),) = decode("D,DCU,1,2:A[2-0],NVIDIA,3,4:;")

    assert (dcu.vendor, dcu.uuid) == ("DCU", "D")
    assert (mig.vendor, mig.uuid) == (NVIDIA, "A[2-0]")
    assert isinstance(mig.vendor, Vendor)


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("A,NVIDIA", id="two fields"),
        pytest.param("A,NVIDIA,1000", id="three fields"),
        pytest.param("A,NVIDIA,x,30", id="letters as memory"),
        pytest.param("A,NVIDIA,,30", id="no memory"),
        pytest.param("A,NVIDIA,1000,", id="no cores"),
        pytest.param("A,NVIDIA,-1,30", id="memory below 0"),
        pytest.param("A,NVIDIA,1000,-30", id="cores below 0"),
        pytest.param("A,NVIDIA,1e3,30", id="exponent"),
        pytest.param("A,NVIDIA,99999999999,30", id="more than 32 bits"),
        pytest.param(",NVIDIA,1000,30", id="no card"),
        pytest.param("A,,1000,30", id="no vendor"),
    ],
)
def test_decode_grants_bad_entry_makes_the_whole_text_bad(entry: str) -> None:
    with pytest.raises(WireError, match="vgpu-devices-to-allocate"):
        decode(f"A,NVIDIA,1,2:;{entry}:;")


def test_encode_grants_ends_every_slot() -> None:
    assert encode_grants([(A, B), (), (B,)]) == (
        "A,NVIDIA,4000,30:B,NVIDIA,1000,0:;;B,NVIDIA,1000,0:;"
    )
    assert encode_grants([]) == ""


WORDS = st.text(st.characters(codec="utf-8", exclude_characters=",:;"), min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**31 - 1)
GRANTS = st.builds(
    Grant,
    uuid=WORDS.map(Uuid),
    vendor=st.sampled_from([NVIDIA, "AWSNeuron"]),
    memory_mib=NUMBERS,
    cores=NUMBERS,
)
SLOTS = st.lists(st.lists(GRANTS, max_size=3).map(tuple), max_size=4).map(tuple)


@given(SLOTS)
def test_encode_grants_decodes_to_the_same_slots(slots: tuple[ContainerGrants, ...]) -> None:
    assert decode(encode_grants(slots)) == slots


@given(SLOTS)
def test_encode_grants_decoded_again_does_not_grow(slots: tuple[ContainerGrants, ...]) -> None:
    text = encode_grants(slots)

    assert encode_grants(decode(text)) == text


@given(st.text() | st.text(alphabet="A,:;0123456789-xNVIDIA", max_size=60))
def test_decode_grants_any_text_gives_a_value_or_a_wire_error(text: str) -> None:
    assert is_total(decode, text)


@given(SLOTS, st.integers(min_value=0), st.characters())
def test_decode_grants_one_changed_character_never_gives_a_zero_that_was_not_there(
    slots: tuple[ContainerGrants, ...], place: int, character: str
) -> None:
    text = encode_grants(slots)
    at = place % (len(text) + 1)
    changed = text[:at] + character + text[at + 1 :]
    try:
        found = decode(changed)
    except WireError:
        return

    assert "0" in changed or all(
        grant.memory_mib and grant.cores for slot in found for grant in slot
    )
