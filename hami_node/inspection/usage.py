"""What containers and cards use now, as the daemons' /metrics say it. Pure.

Only the few series that people look at are read, whatever else a page holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

_MIB: Final = 1 << 20
_MEMORY, _CORES = "memory_used_bytes", "core_use_ratio"
_SERIES: Final = re.compile(
    rb"hami_node_(card|container)_(memory_used_bytes|core_use_ratio)\{([^\n]*)\} ([0-9.eE+-]{1,32})"
    rb"(?: [0-9.]+)?",
)
_LABEL: Final = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_MAX_SERIES: Final = 20_000
"""Of a page; a node has 16 cards, and 100 containers on each at most."""


@dataclass(slots=True)
class Use:
    """What is used; None where nobody says."""

    memory_mib: int | None = None
    core_percent: int | None = None

    def add(self, what: str, value: float) -> None:
        """Add to one of both: a pod's containers and a container's parts add up."""
        if what == _MEMORY:
            self.memory_mib = (self.memory_mib or 0) + round(value / _MIB)
        else:
            self.core_percent = (self.core_percent or 0) + round(value * 100)


@dataclass(slots=True)
class Usage:
    """What is used, by card and by pod.

    Attributes:
        cards: by node and UUID, by everybody on the node.
        slices: by namespace, pod, container and UUID.
        pods: by namespace and pod, on all cards.
        unread: why there is nothing from a node, by the node's name.
        note: why nothing is known at all; "" otherwise.
    """

    cards: dict[tuple[str, str], Use] = field(default_factory=dict)
    slices: dict[tuple[str, str, str, str], Use] = field(default_factory=dict)
    pods: dict[tuple[str, str], Use] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def add_page(self, node: str, page: bytes) -> None:
        """Add a daemon's /metrics; a daemon speaks for its own node only."""
        for kind, what, labels, value in _series(page):
            uuid = labels.get("uuid", "")
            if kind == "card":
                self.cards.setdefault((node, uuid), Use()).add(what, value)
                continue
            pod = (labels.get("namespace", ""), labels.get("pod", ""))
            self.pods.setdefault(pod, Use()).add(what, value)
            slice_of = (*pod, labels.get("container", ""), uuid)
            self.slices.setdefault(slice_of, Use()).add(what, value)


def _series(page: bytes) -> Iterator[tuple[str, str, Mapping[str, str], float]]:
    found: Iterable[re.Match[bytes]] = (
        match
        for line in page.split(b"\n")
        if line.startswith(b"hami_node_c") and (match := _SERIES.fullmatch(line.rstrip()))
    )
    for number, match in enumerate(found):
        if number >= _MAX_SERIES:
            return
        kind, what, labels, text = (part.decode("utf-8", "replace") for part in match.groups())
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value < 1e15:
            yield kind, what, dict(_labels(labels)), value


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
