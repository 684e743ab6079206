"""What a person sees of a cluster: nodes, cards, holders, waiting pods and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Published data that is invalid: where, and why."""

    where: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """A card and its usage. Memory in MiB.

    Cores are in percent; where cores are granted individually, their number. `why` it is unhealthy
    or closed, as its node says; "" otherwise.
    """

    node: str
    index: int
    uuid: str
    model: str
    vendor: str
    mode: str
    numa: int | None
    is_healthy: bool
    slots: int
    slots_used: int
    memory_mib: int
    memory_used_mib: int
    cores: int
    cores_used: int
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node that has published cards.

    Attributes:
        handshake: its kind, `Reported`, `Requesting` or `Deleted`; "" without a handshake.
        handshake_age_s: its age; None when it has no readable time.
        lock: the pod that holds the node lock, `?` for a lock without an owner; "" when free.
        allocatable: the node's allocatable of cards that are shared by slots, as text; "" for none.
        identity: how the daemon identifies pods; "" when it is not ours or can't.
        limiter: the version of what limits new containers; "" where it is not known.
        is_standalone: its cards are offered in fixed shares, to no scheduler of ours.
        hand_over: how containers get their cards; "" when the daemon is not ours.
    """

    name: str
    is_ready: bool
    cards: int
    is_simulated: bool
    handshake: str
    handshake_age_s: int | None
    lock: str
    allocatable: str
    identity: str
    limiter: str = ""
    hand_over: str
    is_standalone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A container's slice of a card. `index` is None for a card that the node does not have.

    `limiter` is the version of what limits it, by the pod's annotation; "" where it has none.
    `shares` says what a container holds that kubelet gave fixed shares, of cards that only its
    node knows; "" for a slice.
    """

    namespace: str
    pod: str
    container: str
    node: str
    phase: str
    is_served: bool
    limiter: str = ""
    index: int | None = None
    uuid: str = ""
    memory_mib: int = 0
    cores: int = 0
    shares: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView:
    """A pod that requests cards and is not bound to a node.

    Attributes:
        asks: what it requests, in words.
        waits_s: since its creation; None when that can't be read.
        reserved_on: the node with its reservation; "" without a reservation.
        why: the reason in a sentence.
    """

    namespace: str
    pod: str
    asks: str
    waits_s: int | None
    reserved_on: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsView:
    """All cards that nodes offer. Free is what the next pod may get: unhealthy cards don't count.

    Attributes:
        nodes: number of nodes that offer cards.
        open_cards: cards shared by slots that can take another container.
        memory_free_mib: on the open cards.
        largest_mib: the most that a container can get on a single card, which is card
            `largest_index` of `largest_node`; 0 and None when no card is open.
        cores_free: of the vendors whose cores are granted individually, by the name of the cores.
    """

    nodes: int
    cards: int
    open_cards: int
    slots: int
    slots_free: int
    memory_mib: int
    memory_free_mib: int
    largest_mib: int
    largest_node: str
    largest_index: int | None
    cores_free: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything decoded, sorted; `totals` is None if they were not computed."""

    nodes: tuple[NodeView, ...]
    cards: tuple[CardView, ...]
    holders: tuple[HolderView, ...]
    problems: tuple[Problem, ...]
    waiting: tuple[WaitingView, ...] = ()
    totals: TotalsView | None = None
