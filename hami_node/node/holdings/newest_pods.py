"""The newest known state of every pod on this node: the watch's, or our own patch's answer."""

from __future__ import annotations

from typing import Final

from hami_node.model import Pod
from hami_node.ports import Clock, Watched

UNSEEN_S: Final = 300.0
"""How long our own patch of a pod that the watch has never shown counts: longer than a watch can
be dead unnoticed."""


class NewestPods:
    """Not thread-safe: its owner holds a lock.

    The watch may lag behind our own patches, so a pod that we patched counts as we left it until
    the watch shows that or something newer, or goes back: the cluster was restored from a backup.
    """

    def __init__(self, watched: Watched, clock: Clock) -> None:
        """Start without patched pods."""
        self._watched, self._clock = watched, clock
        self._patched: dict[str, tuple[Pod, float]] = {}
        self._seen: dict[str, int] = {}
        """By patched pod, the newest version that the watch has shown."""

    def patched(self, pod: Pod) -> None:
        """Our patch was answered with this pod."""
        self._patched[pod.uid] = (pod, self._clock.monotonic())
        shown = self._watched.pod(pod.namespace, pod.name)
        if shown is not None and shown.uid == pod.uid:
            self._seen[pod.uid] = shown.version

    def shown(self) -> frozenset[str]:
        """The uids of the pods that the watch itself shows."""
        return frozenset(pod.uid for pod in self._watched.pods())

    def all(self) -> tuple[Pod, ...]:
        """Every pod, in no order; of pods with the same name only the newest: no other is left."""
        pods = {pod.uid: pod for pod in self._watched.pods()}
        for uid, (patched, since_s) in list(self._patched.items()):
            shown = pods.get(uid)
            if shown is None:
                is_gone = uid in self._seen or self._clock.monotonic() - since_s > UNSEEN_S
            else:
                is_restored = shown.version < self._seen.get(uid, 0)
                is_gone = is_restored or shown.version >= patched.version
                self._seen[uid] = shown.version
            if is_gone:
                del self._patched[uid]
                self._seen.pop(uid, None)
            else:
                pods[uid] = patched
        by_name: dict[str, Pod] = {}
        for pod in pods.values():
            known = by_name.get(pod.key)
            if known is None or known.version < pod.version:
                by_name[pod.key] = pod
        return tuple(by_name.values())
