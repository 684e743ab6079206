from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.wire import names
from hami_node.wire.handshake import (
    Handshake,
    HandshakeKind,
    counts_inits,
    decode_handshake,
    encode_read_by,
    encode_reported,
    encode_reported_rfc3339,
    encode_requesting,
)
from hami_node.wire.times import format_dashed, format_go, format_rfc3339, parse_time
from tests.unit.wire.totality import is_total

KEY = "hami.io/node-handshake"
ASKED = encode_requesting(1_000_000.0)


def decode(text: str) -> Handshake:
    return decode_handshake(text, KEY)


def unix(*parts: int) -> float:
    return datetime(*parts, tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]  # six integers


@pytest.mark.parametrize(
    ("text", "kind", "time_s", "is_dotted"),
    [
        pytest.param(
            "Reported 2025-04-17 06:39:20.812216312 +0000 UTC m=+90.842043756",
            HandshakeKind.REPORTED,
            unix(2025, 4, 17, 6, 39, 20) + 0.812216312,
            False,
            id="plugin up to 2.7",
        ),
        pytest.param(
            "Reported 2025-04-17 14:39:20 +0800 CST m=+1.5",
            HandshakeKind.REPORTED,
            unix(2025, 4, 17, 6, 39, 20),
            False,
            id="another zone",
        ),
        pytest.param(
            "Reported_2025.07.15 09:58:39",
            HandshakeKind.REPORTED,
            unix(2025, 7, 15, 9, 58, 39),
            True,
            id="reported, dotted",
        ),
        pytest.param(
            "Requesting_2024.05.20 11:44:46",
            HandshakeKind.REQUESTING,
            unix(2024, 5, 20, 11, 44, 46),
            True,
            id="scheduler 2.4",
        ),
        pytest.param(
            "Requesting_2025-08-07 11:28:25",
            HandshakeKind.REQUESTING,
            unix(2025, 8, 7, 11, 28, 25),
            False,
            id="scheduler since 2.5",
        ),
        pytest.param(
            "Deleted_2025-08-03 19:32:07",
            HandshakeKind.DELETED,
            unix(2025, 8, 3, 19, 32, 7),
            False,
            id="deleted",
        ),
        pytest.param(
            "Deleted_2026.11.21 00:34:42",
            HandshakeKind.DELETED,
            unix(2026, 11, 21, 0, 34, 42),
            True,
            id="deleted, dotted",
        ),
        pytest.param(
            "Reported_2026-11-21T00:35:16Z",
            HandshakeKind.REPORTED,
            unix(2026, 11, 21, 0, 35, 16),
            False,
            id="Neuron",
        ),
        pytest.param("Requesting_", HandshakeKind.REQUESTING, None, False, id="no time"),
        pytest.param("Requesting_soon", HandshakeKind.REQUESTING, None, False, id="no such time"),
        pytest.param(
            "Requesting_2024.13.45 99:99:99", HandshakeKind.REQUESTING, None, True, id="no month 13"
        ),
        pytest.param(
            "Requesting_2024.05-20 11:44:46", HandshakeKind.REQUESTING, None, False, id="mixed"
        ),
    ],
)
def test_decode_handshake_known_spellings(
    text: str, kind: HandshakeKind, time_s: float | None, is_dotted: bool
) -> None:
    found = decode(text)

    assert (found.kind, found.is_dotted) == (kind, is_dotted)
    assert found.time_s == pytest.approx(time_s, abs=1e-5)


@pytest.mark.parametrize(
    ("text", "is_mark"),
    [
        ("Requesting_2024.05.20 11:44:46", True),
        ("Deleted_2024.05.20 11:44:46", True),
        ("Reported_2024.05.20 11:44:46", False),
        ("Requesting_2024-05-20 11:44:46", False),
    ],
)
def test_handshake_dotted_date_of_a_scheduler_is_the_mark_of_2_4(text: str, is_mark: bool) -> None:
    assert decode(text).is_mark_of_2_4 is is_mark


@pytest.mark.parametrize("text", ["", "reported now", "2024-05-20 11:44:46", "X Requesting_"])
def test_decode_handshake_other_words_are_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="node-handshake"):
        decode(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (encode_reported(1744871960.812), "Reported 2025-04-17 06:39:20.812000 +0000 UTC"),
        (encode_reported_rfc3339(1744871960.9), "Reported_2025-04-17T06:39:20Z"),
        (encode_requesting(1744871960), "Requesting_2025-04-17 06:39:20"),
    ],
)
def test_encode_handshake_spellings(text: str, why: str) -> None:
    assert text == why


SECONDS = st.floats(0, 4e9)


@given(SECONDS)
def test_encoded_handshakes_decode_to_the_same_second(unix_s: float) -> None:
    reported = decode(encode_reported(unix_s))

    assert reported == Handshake(kind=HandshakeKind.REPORTED, time_s=reported.time_s)
    assert reported.time_s == pytest.approx(unix_s, abs=1e-3)
    for encode in (encode_reported_rfc3339, encode_requesting):
        found = decode(encode(unix_s)).time_s
        assert found is not None
        assert 0 <= unix_s - found < 1


@given(SECONDS)
def test_formats_parse_back(unix_s: float) -> None:
    whole = float(int(unix_s))

    assert parse_time(format_rfc3339(whole)) == whole
    assert parse_time(format_dashed(whole)) == whole
    assert parse_time(format_go(whole)) == whole


@pytest.mark.parametrize("text", ["0000-01-01 00:00:00", "2024-02-30 00:00:00", "2024-02-03", ""])
def test_parse_time_impossible_date_is_none(text: str) -> None:
    assert parse_time(text) is None


PIECES = st.sampled_from(["Reported", "Requesting_", "Deleted_", "2024", ".", "-", "05", " ", ":"])


@given(st.text() | st.lists(PIECES | st.text(max_size=2)).map("".join))
def test_decode_handshake_any_text_gives_a_value_or_a_wire_error(text: str) -> None:
    assert is_total(decode, text)


@pytest.mark.parametrize(
    ("mark", "handshake", "expected"),
    [
        pytest.param(encode_read_by(ASKED, counts_inits=True), ASKED, True, id="its question"),
        pytest.param(
            encode_read_by(ASKED, counts_inits=True), encode_reported(2e6), True, id="answered"
        ),
        pytest.param(
            encode_read_by(ASKED, counts_inits=True),
            encode_requesting(1_000_001.0),
            False,
            id="another scheduler's question",
        ),
        pytest.param(encode_read_by(ASKED, counts_inits=True), "", False, id="no handshake"),
        pytest.param(encode_read_by(ASKED, counts_inits=False), ASKED, False, id="not yet room"),
        pytest.param(names.READ_BY_EXTENDER, encode_reported(2e6), False, id="older extender"),
        pytest.param("", encode_reported(2e6), False, id="no extender of ours"),
        pytest.param("x" + names.READ_BY_COUNTING_INITS, "Reported", False, id="somebody else"),
    ],
)
def test_init_containers_count_where_the_scheduler_that_asked_last_says_so(
    mark: str, handshake: str, expected: bool
) -> None:
    assert counts_inits(mark, handshake) is expected
