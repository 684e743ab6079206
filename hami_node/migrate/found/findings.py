"""What is wrong in the cluster now, and what one should know before the next step. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hami_node.text import some

"""Objects that a sentence names; of the rest it has the number."""


class Level(StrEnum):
    """How much it matters."""

    PROBLEM = "problem"
    """Pods are harmed, or will be: `check` fails."""
    CAUTION = "caution"
    """To be known before the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One of them: where, what is so, and what to do about it.

    `nodes` are all nodes that it is about; `where` names some.
    """

    level: Level
    where: str
    why: str
    cure: str
    nodes: tuple[str, ...] = ()


def problem(where: str, why: str, cure: str) -> Finding:
    """Something that is wrong."""
    return Finding(level=Level.PROBLEM, where=where, why=why, cure=cure)


def caution(where: str, why: str, cure: str) -> Finding:
    """Something to know."""
    return Finding(level=Level.CAUTION, where=where, why=why, cure=cure)


def about_nodes(level: Level, found: Sequence[str], why: str, cure: str) -> Iterable[Finding]:
    """One finding for all these nodes; none where there are none."""
    if found:
        where = f"node{'s' if len(found) > 1 else ''} {some(found)}"
        yield Finding(level=level, where=where, why=why, cure=cure, nodes=tuple(found))
