"""The pods of every group, as the watch shows them, and what each asks for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from hami_node.engine.place import PodRequest
from hami_node.model import Pod
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.wire.pod_group import group_key

MAX_LISTED: Final = 500_000
"""Cards that the remembered requests name, over all members; each takes about 125 bytes."""


class Members:
    """Thread-safe. Pods that have failed or are being deleted are no members."""

    def __init__(self, vendors: Sequence[VendorProtocol]) -> None:
        """Start without pods, which ask for cards of these vendors."""
        self._vendors, self._lock = vendors, threading.Lock()
        self._pods: dict[str, dict[str, Pod]] = {}
        self._requests: dict[str, tuple[Pod, PodRequest]] = {}
        self._listed = 0

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Apply a change of one pod from the watch."""
        old = "" if before is None else group_key(before)
        is_member = after is not None and after.phase != "Failed" and not after.is_being_deleted
        new = group_key(after) if after is not None and is_member else ""
        if not (old or new):
            return
        with self._lock:
            if before is not None:
                self._forget(before.uid)
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

    def request_of(self, pod: Pod) -> PodRequest:
        """What a member asks for: each call about a group asks that of all its members.

        Remembered while the watch shows the pod like this.

        Raises:
            WireError: it can't be served.
        """
        with self._lock:
            known = self._requests.get(pod.uid)
        if known is not None and known[0] is pod:
            return known[1]
        request = request_of(pod, self._vendors)
        with self._lock:
            if self._pods.get(group_key(pod), {}).get(pod.uid) is pod:
                self._remember(pod, request)
        return request

    def _remember(self, pod: Pod, request: PodRequest) -> None:
        self._forget(pod.uid)
        listed = _listed(request)
        if not listed or self._listed + listed <= MAX_LISTED:
            self._requests[pod.uid] = pod, request
            self._listed += listed

    def _forget(self, uid: str) -> None:
        if (known := self._requests.pop(uid, None)) is not None:
            self._listed -= _listed(known[1])


def _listed(request: PodRequest) -> int:
    uuids = [wishes.uuids for _, wishes in request.wishes.cards]
    return sum(len(each.use or ()) + len(each.nouse or ()) for each in uuids)
