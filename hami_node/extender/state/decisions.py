"""The state's answers to a pod that asks for cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hami_node.engine.fleet.fleet import Placed
from hami_node.model import Device, Pod, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A decision: node and cards, already charged.

    Attributes:
        token: distinguishes this reservation from later ones of the same pod.
        placed: node and grants.
        devices: the chosen node's cards.
    """

    token: int
    placed: Placed
    devices: Mapping[Uuid, Device]


@dataclass(frozen=True, slots=True)
class Busy:
    """Nothing is decided now; the call may be repeated. `why` is for messages.

    `is_unfinished`: there are more nodes than could be looked at; the next call goes on there.
    """

    why: str
    is_unfinished: bool = False


def unfinished(pod: Pod) -> Busy:
    """The time of a decision was up."""
    return Busy(
        f"pod {pod.key} asks for cards in a way that takes long to look for on so many nodes: "
        "the next attempt goes on where this one was",
        is_unfinished=True,
    )


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A running pod can't be resized as it asks; `why` is for people."""

    why: str
