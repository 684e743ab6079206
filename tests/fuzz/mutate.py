"""Turns real text into damaged text: bytes, separators, numbers and JSON members."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

TOKENS = (
    ",", ":", ";", "[", "]", "{", "}", '"', "\\", "-", "_", "=", ".", " ", "\t", "\n", "\r\n",
    "\x00", "\u00a0", "\u0663", "\u2028", "é", "😀", "\ud800", "%s", "NaN", "null", "true", "false",
    ",,", ";;", "::", "[1-0]", "[0-0", "[-1-9]", "[99999999999-0]", ",NVIDIA,", ",AWSNeuron,",
)  # fmt: skip

NUMBERS = (
    "0", "1", "-1", "-0", "+1", "01", "1.5", "1e3", "1e999", "2147483647", "2147483648",
    "4294967296", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
    "9" * 30, "9" * 5000, "0x10", "1_000", "１２", "NaN", "Infinity", "", " 7 ",
)  # fmt: skip

VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 3, 1.5, -0.0, 1e300, 2**31, 2**53, 2**63 - 1, 2**63, 10**30, "",
    "x", "1", "GPU-A", [], {}, [[]], [None], {"": None}, {"start": 0, "size": 1}, "\ud800", "\x00",
)  # fmt: skip

DEEP = 3000
"""Nesting that a recursive decoder must survive."""


class Source:
    """One case's random stream; keeps what it made, so that a failure can be shown."""

    def __init__(self, seed: str) -> None:
        """Start the stream of one case."""
        self.stream = random.Random(seed)
        self.made: list[object] = []

    def text(self, samples: Sequence[str], changes: int = 3) -> str:
        """A sample after 0 to `changes` mutations."""
        text = self.stream.choice(samples)
        for _ in range(self.stream.randint(0, changes)):
            text = self.stream.choice(MUTATIONS)(text, self.stream)
        self.made.append(text)
        return text

    def json(self, samples: Sequence[str], changes: int = 3) -> str:
        """A JSON sample with exchanged members; now and then mutated as text as well."""
        if self.stream.random() < 0.3:
            return self.text(samples, changes)
        sample = self.stream.choice(samples)
        value = json.loads(sample) if sample else None
        for _ in range(self.stream.randint(0, changes)):
            value = _exchange(value, self.stream)
        text = json.dumps(value, ensure_ascii=self.stream.random() < 0.5)
        if self.stream.random() < 0.01:
            text = "[" * DEEP + text
        self.made.append(text)
        return text

    def some(self, samples: Sequence[str]) -> str | None:
        """Often nothing, else a mutated sample."""
        return self.text(samples, 2) if self.stream.random() < 0.4 else None


def _exchange(value: object, stream: random.Random) -> object:
    """Replace, drop or double one random member."""
    if isinstance(value, dict) and value and stream.random() < 0.85:
        key = stream.choice(list(value))
        changed = dict(value)
        if stream.random() < 0.15:
            del changed[key]
        else:
            changed[key] = _exchange(value[key], stream)
        return changed
    if isinstance(value, list) and value and stream.random() < 0.85:
        place = stream.randrange(len(value))
        kind = stream.random()
        if kind < 0.1:
            return [*value, value[place]]
        if kind < 0.2:
            return value[:place]
        return [*value[:place], _exchange(value[place], stream), *value[place + 1 :]]
    if isinstance(value, str) and stream.random() < 0.5:
        return stream.choice(MUTATIONS)(value, stream)
    return stream.choice(VALUES)


def _cut(text: str, stream: random.Random) -> str:
    start = stream.randint(0, len(text))
    return text[:start] + text[start + stream.randint(0, 12) :]


def _truncate(text: str, stream: random.Random) -> str:
    return text[: stream.randint(0, len(text))]


def _insert(text: str, stream: random.Random) -> str:
    place = stream.randint(0, len(text))
    return text[:place] + stream.choice(TOKENS) + text[place:]


def _swap(text: str, stream: random.Random) -> str:
    old, new = stream.choice(TOKENS[:12]), stream.choice(TOKENS)
    return text.replace(old, new, stream.choice((1, 1, -1)))


def _double(text: str, stream: random.Random) -> str:
    start = stream.randint(0, len(text))
    piece = text[start : start + stream.randint(1, 60)]
    return text[:start] + piece * stream.choice((2, 2, 3, 40)) + text[start:]


def _number(text: str, stream: random.Random) -> str:
    """Put a special number where one field was."""
    separator = stream.choice((",", ":", "-", " ", "="))
    fields = text.split(separator)
    fields[stream.randrange(len(fields))] = stream.choice(NUMBERS)
    return separator.join(fields)


def _shuffle(text: str, stream: random.Random) -> str:
    separator = stream.choice((",", ":", ";"))
    fields = text.split(separator)
    stream.shuffle(fields)
    return separator.join(fields)


def _noise(text: str, stream: random.Random) -> str:
    place = stream.randint(0, len(text))
    return text[:place] + chr(stream.randrange(0x2000)) + text[place + 1 :]


MUTATIONS: tuple[Callable[[str, random.Random], str], ...] = (
    _cut, _truncate, _insert, _insert, _swap, _double, _number, _number, _shuffle, _noise,
)  # fmt: skip
