"""The state's answers to a pod that asks for cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hami_node.engine.fleet.fleet import Placed
from hami_node.model import Device, Uuid


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
    """Nothing is decided now; the call may be repeated. `why` is for messages."""

    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A running pod can't be resized as it asks; `why` is for people."""

    why: str
