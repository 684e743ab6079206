"""Somebody else who divides this node's cards: MIG Manager, mig-parted, an administrator.

Whoever lays out cards destroys what is in the way. So while somebody does, nothing is made and
nothing destroyed here, and no mode is changed. One instance that comes or goes is no layout: it is
left alone, and its place is not offered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.model import Device, Node, Uuid
from hami_node.ports import Clock
from hami_node.text import shown
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.details import mig_of
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.mig.ownership import Identity, Owned, identity_of, owned_on

QUIET_S: Final = 30.0
"""So long nothing must have changed from outside; mig-parted takes seconds from step to step."""
A_LAYOUT: Final = 2
"""So many changes, each within that time of the one before, are a program at work."""
AT_WORK: Final = ("pending", "rebooting")
NOT_DIVIDED: Final = "all-disabled"
"""GPU Operator's default, which every node with MIG has where nobody has asked for anything."""
NO_LAYOUT: Final = "all-enabled"
"""The wish that goes with instances made on demand: MIG mode on, no instances."""


def _is_manager_gone(labels: Mapping[str, str]) -> bool:
    """What it once wrote is nobody's wish any more."""
    return labels.get(names.LABEL_MIG_MANAGER) == "false"


def layout_wish(labels: Mapping[str, str]) -> str:
    """Why MIG Manager divides the node's cards, not this daemon, by its labels; "" if not."""
    if _is_manager_gone(labels):
        return ""
    state, config = labels.get(names.LABEL_MIG_STATE, ""), labels.get(names.LABEL_MIG_CONFIG, "")
    if state in AT_WORK:
        return (
            f"MIG Manager changes this node's cards ({names.LABEL_MIG_STATE}={state}): wait, or "
            "remove that label where it does not run any more"
        )
    if config in ("", NOT_DIVIDED, NO_LAYOUT):
        return ""
    return (
        f"the label {names.LABEL_MIG_CONFIG}={shown(config)} has MIG Manager divide this node's "
        f"cards: set it to {NO_LAYOUT}, or set {names.LABEL_MIG_MANAGER}=false, or set migstrategy "
        "to offer the instances that it makes"
    )


def mode_wish(labels: Mapping[str, str]) -> str:
    """Why MIG mode is not switched on here, by MIG Manager's labels; "" if it may be.

    Its default does not say that it does anything now. But when it starts again it switches off
    what it finds on, so that switching on would be a quarrel.
    """
    config = labels.get(names.LABEL_MIG_CONFIG, "")
    is_active = names.LABEL_MIG_STATE in labels and not _is_manager_gone(labels)
    if config != NOT_DIVIDED or not is_active:
        return ""
    return (
        f"the label {names.LABEL_MIG_CONFIG}={NOT_DIVIDED} has MIG Manager keep MIG mode off here: "
        f"set it to {NO_LAYOUT}, or set {names.LABEL_MIG_MANAGER}=false"
    )


@dataclass(slots=True)
class _Card:
    """What is remembered of a card.

    Attributes:
        is_enabled: its mode.
        there: all instances that the last scan has found.
        others: those of them that are not ours.
        had: those that are ours, or were.
        lost: the owners of those that are gone and should not be.
    """

    is_enabled: bool = False
    there: frozenset[Identity] = frozenset()
    others: frozenset[Identity] = frozenset()
    had: frozenset[Identity] = frozenset()
    lost: frozenset[tuple[str, str, int]] = frozenset()


@dataclass(slots=True)
class _Labels:
    config: str | None = None
    layout: str = ""
    mode: str = ""


@dataclass(slots=True)
class _Changes:
    """Changes from outside that are not over: how many, the last one's time, and what, for people.

    The time is on the monotonic clock.
    """

    count: int
    at_s: float
    what: str


@dataclass(slots=True)
class _State:
    cards: dict[Uuid, _Card] = field(default_factory=dict)
    labels: _Labels = field(default_factory=_Labels)
    changes: _Changes | None = None


class Outside:
    """Notices who else changes the cards. Any thread may call it."""

    def __init__(self, clock: Clock) -> None:
        """Nothing was seen yet: what is there at first is nobody's change."""
        self._clock = clock
        self._lock = threading.Lock()
        self._state = _State()

    def look(self, cards: Sequence[Device], own: Sequence[PartView]) -> Mapping[Uuid, Owned]:
        """Compare a scan with the one before; whose the instances are, card by card."""
        found = {}
        with self._lock:
            for card in cards:
                mig = mig_of(card)
                if mig is not None:
                    found[card.uuid] = self._look_at(card.uuid, mig, own)
        return found

    def read_labels(self, node: Node) -> None:
        """Take over what MIG Manager's labels say."""
        config = node.labels.get(names.LABEL_MIG_CONFIG, "")
        with self._lock:
            labels = self._state.labels
            if labels.config not in (None, config) and not _is_manager_gone(node.labels):
                self._note(A_LAYOUT, f"the label {names.LABEL_MIG_CONFIG}={shown(config)} is new")
            labels.config = config
            labels.layout, labels.mode = layout_wish(node.labels), mode_wish(node.labels)

    def hands_off(self) -> str:
        """Why nothing may be changed now, for people; "" where it may."""
        with self._lock:
            if self._state.labels.layout:
                return self._state.labels.layout
            changes = self._state.changes
            is_layout = changes is not None and changes.count >= A_LAYOUT and self._left_s() > 0
            return changes.what if changes is not None and is_layout else ""

    def mode_wish(self) -> str:
        """Why no mode may be changed, beyond `hands_off`."""
        with self._lock:
            return self._state.labels.mode

    def next_s(self) -> float | None:
        """Seconds until it may be over without a change that anybody would notice."""
        with self._lock:
            left_s = self._left_s()
            return left_s if left_s > 0 else None

    def _left_s(self) -> float:
        changes = self._state.changes
        return changes.at_s + QUIET_S - self._clock.monotonic() if changes is not None else 0.0

    def _look_at(self, uuid: Uuid, mig: MigCard, own: Sequence[PartView]) -> Owned:
        last = self._state.cards.get(uuid)
        owned = owned_on(uuid, mig.instances, own, last.had if last else frozenset())
        if mig.problem or mig.restriction:
            return owned  # not all are known
        there = frozenset(map(identity_of, mig.instances))
        others = frozenset(map(identity_of, owned.others))
        now = _Card(
            is_enabled=mig.is_enabled,
            there=there,
            others=others,
            had=there - others,
            lost=frozenset(
                (part.pod_uid, part.container, part.position)
                for part in own
                if part.card == uuid and part.state is PartState.LOST
            ),
        )
        if last is not None:
            count, what = _changed(last, now)
            if count:
                self._note(count, f"{what} on card {uuid}")
        self._state.cards[uuid] = now
        return owned

    def _note(self, count: int, what: str) -> None:
        before = self._state.changes
        if before is not None and self._left_s() > 0:
            count += before.count
        text = (
            f"somebody else changes MIG on this node ({what}): nothing is made or destroyed here "
            f"until nothing has changed for {QUIET_S:.0f} s"
        )
        self._state.changes = _Changes(count, self._clock.monotonic(), text)


def _changed(last: _Card, now: _Card) -> tuple[int, str]:
    """How much of the difference this daemon has not done, and what; it never switches MIG off."""
    if last.is_enabled and not now.is_enabled:
        return A_LAYOUT, "MIG mode was switched off"
    if now.lost - last.lost and now.is_enabled:
        return A_LAYOUT, "an instance of this daemon's was destroyed"
    changed = (now.others - last.there) | (last.others - now.there)
    named = ", ".join(sorted(f"GPU instance {each.gpu_instance_id}" for each in changed))
    return len(changed), f"{named} came or went"
