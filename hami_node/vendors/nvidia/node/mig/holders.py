"""Who holds instances, as far as the keeper was told, and what people should know of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from hami_node.vendors.nvidia.node.mig.reconcile import Instance
from hami_node.vendors.on_node.parts import PartHolder, PartNote, PartsSituation


class Holders:
    """What the last pass was told of pods. One thread learns, any may ask."""

    def __init__(self) -> None:
        """Nothing is known, so nobody's instance may go."""
        self._situation = PartsSituation()
        self._pods: dict[str, tuple[str, str]] = {}

    def learn(self, situation: PartsSituation, uids: Iterable[str]) -> None:
        """Take over what a pass was told; names are remembered for `uids` and for holders."""
        now = {each.pod_uid: (each.namespace, each.pod) for each in situation.holders or ()}
        kept = set(uids)
        self._pods = {uid: key for uid, key in self._pods.items() if uid in kept} | now
        self._situation = situation

    @property
    def are_known(self) -> bool:
        """False while it is not known which containers hold anything."""
        return self._situation.holders is not None

    def is_over(self, uid: str) -> bool:
        """True where a pod has certainly ended and nobody has it on record, asked now."""
        situation = self._situation
        return situation.holders is not None and not situation.is_held(uid)

    def is_live(self, instance: Instance) -> bool:
        """True for what a container was given whose pod has not certainly ended, asked now."""
        return bool(instance.given) and not self.is_over(instance.owner.pod_uid)

    def is_wanted(self, instance: Instance) -> bool:
        """The same, and also for what a container had on record at the last pass."""
        uid = instance.owner.pod_uid
        is_held = any(each.pod_uid == uid for each in self.all())
        return bool(instance.given) and (is_held or not self.is_over(uid))

    def all(self) -> tuple[PartHolder, ...]:
        """The containers on record; () where they are not known."""
        return self._situation.holders or ()

    def pod_of(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod; None where they are not known."""
        return self._pods.get(uid)

    def name_of(self, uid: str) -> str:
        """What people call a pod."""
        pod = self.pod_of(uid)
        return f"pod {pod[0]}/{pod[1]}" if pod else f"the pod with uid {uid}"


class _Said(NamedTuple):
    reason: str
    message: str
    pod_uid: str


class Notes:
    """What people should know, each thing once. Any thread may say it."""

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
                self._new.append(_Said(reason, message, pod_uid))

    def is_told(self, key: Hashable, reason: str) -> bool:
        """True where this was the last thing said of that key."""
        with self._lock:
            return self._told.get(key) == reason

    def keep_only(self, is_kept: Callable[[Hashable], bool]) -> None:
        """What is said of all others next is new."""
        with self._lock:
            self._told = {key: reason for key, reason in self._told.items() if is_kept(key)}

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
