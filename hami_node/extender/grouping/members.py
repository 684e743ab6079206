"""The pods of every group, as the watch shows them."""

from __future__ import annotations

import threading

from hami_node.model import Pod
from hami_node.wire.pod_group import group_key


class Members:
    """Thread-safe. Pods that have failed or are being deleted are no members."""

    def __init__(self) -> None:
        """Start without pods."""
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, Pod]] = {}

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Apply a change of one pod from the watch."""
        old = "" if before is None else group_key(before)
        is_member = after is not None and after.phase != "Failed" and not after.is_being_deleted
        new = group_key(after) if after is not None and is_member else ""
        if not (old or new):
            return
        with self._lock:
            if before is not None and old in self._pods:
                self._pods[old].pop(before.uid, None)
                if not self._pods[old]:
                    del self._pods[old]
            if after is not None and new:
                self._pods.setdefault(new, {})[after.uid] = after

    def of(self, key: str) -> tuple[Pod, ...]:
        """The members of a group, oldest first."""
        with self._lock:
            found = tuple(self._pods.get(key, {}).values())
        return tuple(sorted(found, key=lambda pod: (pod.creation_time, pod.name)))
