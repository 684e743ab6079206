"""Who holds instances, as far as the keeper was told, and what people should know of them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from hami_node.vendors.on_node.parts import PartHolder, PartNote, PartsSituation


class Holders:
    """What the last pass was told of pods. Any thread may ask."""

    def __init__(self) -> None:
        """Nothing is known, so nobody's instance may go."""
        self._lock = threading.Lock()
        self._situation = PartsSituation()
        self._pods: dict[str, tuple[str, str]] = {}

    def learn(self, situation: PartsSituation, uids: Iterable[str]) -> None:
        """Take over what a pass was told; names are remembered for `uids` and for holders."""
        now = {each.pod_uid: (each.namespace, each.pod) for each in situation.holders or ()}
        kept = set(uids)
        with self._lock:
            self._situation = situation
            self._pods = {uid: key for uid, key in self._pods.items() if uid in kept} | now

    def is_over(self, uid: str) -> bool:
        """True where a pod has certainly ended and nobody has it on record, asked now."""
        with self._lock:
            situation = self._situation
        return situation.holders is not None and not situation.is_held(uid)

    def has(self, uid: str) -> bool:
        """True where a container of the pod was on record at the last pass."""
        with self._lock:
            holders = self._situation.holders
        return any(each.pod_uid == uid for each in holders or ())

    def all(self) -> tuple[PartHolder, ...]:
        """The containers on record; () where they are not known."""
        with self._lock:
            return self._situation.holders or ()

    def pod_of(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod; None where they are not known."""
        with self._lock:
            return self._pods.get(uid)

    def name_of(self, uid: str) -> str:
        """What people call a pod."""
        pod = self.pod_of(uid)
        return f"pod {pod[0]}/{pod[1]}" if pod else f"the pod with uid {uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    reason: str
    message: str
    pod_uid: str


class Notes:
    """What people should know, each thing once."""

    def __init__(self, holders: Holders) -> None:
        """Nothing has been said."""
        self._holders = holders
        self._lock = threading.Lock()
        self._told: dict[Hashable, str] = {}
        self._new: list[_Said] = []

    def tell(self, key: Hashable, reason: str, message: str, pod_uid: str = "") -> None:
        """Say it, unless the last thing said of that key has the same reason."""
        with self._lock:
            if self._told.get(key) != reason:
                self._told[key] = reason
                self._new.append(_Said(reason=reason, message=message, pod_uid=pod_uid))

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These are over: what is said of them next is new."""
        with self._lock:
            for key in keys:
                self._told.pop(key, None)

    def told(self) -> tuple[Hashable, ...]:
        """Everything that something was said of."""
        with self._lock:
            return tuple(self._told)

    def take(self) -> tuple[PartNote, ...]:
        """What is new. It is said of the node where the pod's name is not known."""
        with self._lock:
            new, self._new = self._new, []
        return tuple(map(self._note, new))

    def _note(self, said: _Said) -> PartNote:
        pod = self._holders.pod_of(said.pod_uid)
        if pod is not None:
            return PartNote(
                reason=said.reason,
                message=said.message,
                namespace=pod[0],
                pod=pod[1],
                pod_uid=said.pod_uid,
            )
        of_whom = f"{self._holders.name_of(said.pod_uid)}, " if said.pod_uid else ""
        return PartNote(reason=said.reason, message=f"{of_whom}{said.message}")
