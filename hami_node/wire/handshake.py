"""The handshake annotation: a word and a time, in the spellings of every generation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.errors import WireError
from hami_node.wire import names
from hami_node.wire.times import format_dashed, format_go, format_rfc3339, parse_time


class HandshakeKind(StrEnum):
    """Who wrote last: the node (`Reported`) or a scheduler (the others)."""

    REPORTED = "Reported"
    REQUESTING = "Requesting"
    DELETED = "Deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A decoded handshake.

    Attributes:
        kind: the word.
        time_s: Unix seconds, None when the time can't be read. Schedulers write their local
            time without a zone; it is taken as UTC.
        is_dotted: the date is written `2006.01.02`; from a scheduler the mark of HAMi 2.4.
    """

    kind: HandshakeKind
    time_s: float | None = None
    is_dotted: bool = False

    @property
    def is_mark_of_2_4(self) -> bool:
        """True when only a scheduler of HAMi 2.4 writes such a text."""
        return self.is_dotted and self.kind is not HandshakeKind.REPORTED


LATE_S: Final = 90.0
"""A node whose last handshake is older than this is late, wherever people look: its daemon reports
every 30 s (55 at most), and schedulers give a silent node up after 60 to 90 s."""
_FORM: Final = re.compile(r"(Reported|Requesting|Deleted)[ _]?(.*)", re.DOTALL)
_DOTTED: Final = re.compile(r"\d{4}\.\d\d\.\d\d ", re.ASCII)


def decode_handshake(text: str, key: str) -> Handshake:
    """Read a handshake value.

    Raises:
        WireError: it begins with none of the three words.
    """
    found = _FORM.fullmatch(text)
    if not found:
        raise WireError(key, text, "not a handshake")
    word, rest = found.groups()
    return Handshake(
        kind=HandshakeKind(word),
        time_s=parse_time(rest),
        is_dotted=_DOTTED.match(rest) is not None,
    )


def encode_reported(unix_s: float) -> str:
    """What HAMi's daemons write: `Reported 2006-01-02 15:04:05.123456 +0000 UTC`."""
    return f"{names.HANDSHAKE_REPORTED} {format_go(unix_s)}"


def encode_reported_rfc3339(unix_s: float) -> str:
    """The same with a time that machines agree on: `Reported_2006-01-02T15:04:05Z`."""
    return f"{names.HANDSHAKE_REPORTED}_{format_rfc3339(unix_s)}"


def encode_requesting(unix_s: float) -> str:
    """What the extender writes: `Requesting_2006-01-02 15:04:05`, the form since HAMi 2.5."""
    return f"{names.HANDSHAKE_REQUESTING}{format_dashed(unix_s)}"


def encode_read_by(question: str, *, counts_inits: bool) -> str:
    """The mark that the extender writes with a question, see `counts_inits`."""
    return names.READ_BY_COUNTING_INITS + question if counts_inits else names.READ_BY_EXTENDER


def counts_inits(read_by: str, handshake: str) -> bool:
    """True where the scheduler of a node counts init containers as long as their pod lives.

    The mark names the question that it was written with. A question that it does not name is that
    of another scheduler, which leaves the mark as it is: HAMi's, or an older extender of ours.
    """
    question = read_by.removeprefix(names.READ_BY_COUNTING_INITS)
    is_answered = handshake.startswith(names.HANDSHAKE_REPORTED)
    return question != read_by and (is_answered or handshake == question)


def encode_deleted(unix_s: float) -> str:
    """What the extender writes when it gives up a silent node: `Deleted_2006-01-02 15:04:05`."""
    return f"{names.HANDSHAKE_DELETED}{format_dashed(unix_s)}"
