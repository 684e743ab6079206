"""The node lock: an annotation that HAMi's schedulers hold from bind to the end of Allocate.

Every write tests what it replaces, so that a lock that changed owner in between is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hami_node.errors import Conflict, LockHeld
from hami_node.logs import kv
from hami_node.model import Node
from hami_node.ports import Clock, Kube
from hami_node.wire.lock import LockOwner, decode_lock, encode_lock
from hami_node.wire.names import NODE_LOCK
from hami_node.wire.values import annotation_pointer

log = logging.getLogger(__name__)

EXPIRY_S: Final = 300.0
"""As in HAMi: a lock older than this has expired."""
_TRIES: Final = 5  # kubelet and the reporter write the node as well
_POINTER: Final = annotation_pointer(NODE_LOCK)
_REMOVE: Final = {"op": "remove", "path": _POINTER}

IsGone = Callable[[str, str], bool]
"""Whether the pod (namespace, name) no longer needs its lock: deleted, over, or served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock:
    """A lock on a node: its exact text, its decoded owner, and whether it has expired."""

    text: str
    owner: LockOwner
    is_expired: bool


class NodeLock:
    """Reads, acquires and releases node locks. Thread-safe; remembers when it first saw a value."""

    def __init__(
        self, kube: Kube, clock: Clock, expiry_s: float = EXPIRY_S, *, quiet_s: float = 0.0
    ) -> None:
        """Use this API.

        Args:
            kube: the API.
            clock: the time.
            expiry_s: a lock that is older has expired.
            quiet_s: how long a lock stays whose pod no longer needs it, seconds from when we
                first saw that: its owner may be about to remove it, whoever holds it then.
        """
        self._kube, self._clock, self._expiry_s = kube, clock, expiry_s
        self._quiet_s = quiet_s
        self._mutex = threading.Lock()
        self._gone_since_s: dict[str, tuple[str, float]] = {}
        self._first_seen_s: dict[str, tuple[str, float]] = {}

    def read(self, node: Node) -> HeldLock | None:
        """The lock on a node; None when there is none.

        A lock whose time can't be read, or is in the future, counts from when we first saw it.
        """
        text = node.annotations.get(NODE_LOCK)
        with self._mutex:
            if text is None:
                self._first_seen_s.pop(node.name, None)
                self._gone_since_s.pop(node.name, None)
                return None
            seen = self._first_seen_s.get(node.name)
            if seen is None or seen[0] != text:
                seen = self._first_seen_s[node.name] = (text, self._clock.monotonic())
        owner = decode_lock(text)
        age_s = self._clock.monotonic() - seen[1]
        if owner.time_s is not None:
            age_s = max(age_s, self._clock.now() - owner.time_s)
        return HeldLock(text=text, owner=owner, is_expired=age_s > self._expiry_s)

    def release(
        self, node_name: str, namespace: str, pod: str, *, seen: Node | None = None
    ) -> bool:
        """Release the lock if this pod holds it; True when we removed it.

        No lock, or another pod's lock, is no error and stays as it is.

        Args:
            node_name: the node with the lock.
            namespace: of the pod that was served.
            pod: its name.
            seen: the node from a watch: saves a read when it has this pod's lock.

        Raises:
            KubeError: the API server can't be reached, or the lock keeps changing.
        """
        node = seen if seen is not None and self._is_held_by(seen, namespace, pod) else None
        for _ in range(_TRIES):
            node = node or self._kube.read_node(node_name)
            held = self.read(node)
            if held is None or not held.owner.is_pod(namespace, pod):
                return False
            if self._remove(node, held):
                return True
            node = None
        raise Conflict(f"the lock of node {node_name} changes faster than it can be released", 409)

    def acquire(
        self, node_name: str, namespace: str, pod: str, is_gone: IsGone, *, seen: Node | None = None
    ) -> str:
        """Acquire the lock for a pod and return its text; a lock that this pod holds stays.

        A lock that has expired, or whose pod `is_gone`, is taken over.

        Raises:
            LockHeld: another pod holds it; the message names the pod and the longest time.
            KubeError: the API server can't be reached, or the node keeps changing.
        """
        node = seen
        for _ in range(_TRIES):
            is_read = node is None
            node = node or self._kube.read_node(node_name)
            held = self.read(node)
            if held is not None and held.owner.is_pod(namespace, pod) and not held.is_expired:
                return held.text
            if held is not None and not self._is_free_to_take(node_name, held, is_gone):
                if not is_read:
                    node = None  # a watch may be late: refuse only after a read
                    continue
                raise LockHeld(self._who_holds(node_name, held))
            text = encode_lock(self._clock.now(), namespace, pod)
            if self._write(node, held, text):
                return text
            node = None
        raise Conflict(f"node {node_name} changes faster than its lock can be acquired", 409)

    def clear_stale(self, node: Node, is_gone: IsGone) -> bool:
        """Remove a lock that has expired or whose pod no longer needs it; True when we did.

        Raises:
            KubeError: the API server can't be reached.
        """
        held = self.read(node)
        if held is None or not self._is_free_to_take(node.name, held, is_gone):
            return False
        return self._remove(node, held)

    def remove_exactly(self, node_name: str, text: str) -> bool:
        """Remove the lock if this is its text; False when it was removed or replaced before.

        Raises:
            KubeError: the API server can't be reached.
        """
        patch = ({"op": "test", "path": _POINTER, "value": text}, _REMOVE)
        try:
            self._kube.json_patch_node(node_name, patch)
        except Conflict as e:
            if e.status == 409:
                raise  # the server was busy with the node; nothing was tested
            return False
        return True

    def _is_held_by(self, node: Node, namespace: str, pod: str) -> bool:
        text = node.annotations.get(NODE_LOCK)
        return text is not None and decode_lock(text).is_pod(namespace, pod)

    def _is_free_to_take(self, node: str, held: HeldLock, is_gone: IsGone) -> bool:
        """A lock without an owner, or a malformed lock, counts as held until it expires."""
        if held.is_expired:
            return True
        owner = held.owner
        is_over = bool(owner.name) and is_gone(owner.namespace, owner.name)
        now_s = self._clock.monotonic()
        with self._mutex:
            if not is_over:
                self._gone_since_s.pop(node, None)
                return False
            known = self._gone_since_s.get(node)
            if known is None or known[0] != held.text:
                known = self._gone_since_s[node] = (held.text, now_s)
        return now_s - known[1] >= self._quiet_s

    def _who_holds(self, node_name: str, held: HeldLock) -> str:
        owner = held.owner
        who = (
            f"pod {owner.namespace}/{owner.name}"
            if owner.name
            else f"an unknown owner: {held.text!r}"
        )
        return f"node {node_name} is locked by {who}; a lock expires after {self._expiry_s:.0f} s"

    def _remove(self, node: Node, held: HeldLock) -> bool:
        """Remove exactly this text; False when it was replaced."""
        patch = ({"op": "test", "path": _POINTER, "value": held.text}, _REMOVE)
        try:
            self._kube.json_patch_node(node.name, patch)
        except Conflict:
            return False
        if held.is_expired:
            log.info("stale_lock_removed", extra=kv(node=node.name, lock=held.text))
        return True

    def _write(self, node: Node, held: HeldLock | None, text: str) -> bool:
        """Replace `held` (or nothing) by our text; False when the node changed.

        JSON patch can't test for absence, so a free lock is acquired at the node's exact version.
        """
        if held is not None:
            test: dict[str, object] = {"op": "test", "path": _POINTER, "value": held.text}
        else:
            test = {
                "op": "test",
                "path": "/metadata/resourceVersion",
                "value": node.resource_version,
            }
        patch = [test]
        if not node.annotations:
            patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
        patch.append({"op": "add", "path": _POINTER, "value": text})
        try:
            self._kube.json_patch_node(node.name, patch)
        except Conflict:
            return False
        return True
