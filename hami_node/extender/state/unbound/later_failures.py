"""Which reserved pods kube-scheduler gave up after our answer.

kube-scheduler says so in the pod's condition PodScheduled=False, which stays there until the pod
is bound: what counts is a condition that nobody knew of when the pod was reserved. A condition that
stands there already is not written again; nobody can tell such a failure from a pod that waits in
Permit, so the reservation counts until the pod comes back to /filter, is deleted, or is too old.
"""

from __future__ import annotations

from typing import Final

from hami_node.model import Pod
from hami_node.ports import Clock

SETTLING_S: Final = 0.5
"""A condition of the attempt before may be shown late. By then the pod is being bound, and if not,
it is placed again: a release too many costs an attempt, never a card."""


class LaterFailures:
    """By uid, for pods with a reservation that are not bound. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        """Start without reservations."""
        self._clock = clock
        self._known: dict[str, frozenset[str]] = {}
        self._due_s: dict[str, float] = {}

    def reserved(self, *states: Pod) -> None:
        """A reservation begins; what these states of the pod say is older than it."""
        uid = states[0].uid
        self._known[uid] = frozenset(pod.unscheduled for pod in states)
        self._due_s.pop(uid, None)

    def stored(self, pod: Pod) -> None:
        """The reservation was written to the pod, which said this at that moment."""
        if pod.uid in self._known:
            self._known[pod.uid] |= {pod.unscheduled}

    def heard(self, pod: Pod) -> None:
        """A state of a pod that is not bound."""
        known = self._known.get(pod.uid)
        if known is None or not pod.unscheduled or pod.unscheduled in known:
            return
        self._known[pod.uid] = known | {pod.unscheduled}
        self._due_s[pod.uid] = self._clock.monotonic() + SETTLING_S

    def ended(self, uid: str) -> None:
        """The reservation is released or bound, or its pod is gone."""
        self._known.pop(uid, None)
        self._due_s.pop(uid, None)

    def due(self) -> list[str]:
        """The pods whose reservation shall be released now."""
        now_s = self._clock.monotonic()
        return [uid for uid, due_s in self._due_s.items() if due_s <= now_s]
