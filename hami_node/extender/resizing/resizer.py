"""Decides about requests to resize running pods, one after another, while this replica leads.

What happens to a request (`is_undecided` says which is one):

| the pod | the decision | written, in one patch of exactly this version of the pod |
|---|---|---|
| asks for what can't be | refused | the state, with the reason |
| asks for what its cards or its quota lack | refused | the state, with the reason |
| asks for more than a LimitRange allows | refused | the state, with the reason |
| asks while resizing is off | refused | the state, with the reason |
| asks for what there is room for | approved | the approval; the larger reservation; no state |
| has a refused request and asks no more | forgotten | neither state nor approval |

The larger amounts count from before the patch on, and go on counting while it is unknown whether it
was stored. What an approval frees counts until the pod's node says that it is free.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.errors import Conflict, KubeError, NotFound, NotLeading, WireError
from hami_node.extender.filter import Outlets
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, NoRoom
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import EventNote, Fence
from hami_node.vendors.resizing import (
    Resizing,
    above_maximum,
    is_ready,
    is_undecided,
    is_withdrawn,
    resizing_of,
    with_larger,
)
from hami_node.wire import names
from hami_node.wire.resize import (
    MAX_APPROVAL,
    Approval,
    Outcome,
    ResizeState,
    decision_id,
    decode_request,
    encode_approval,
    encode_slot,
    encode_state,
)

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "ResizeRefused"
RETRY_S: Final = 5.0
"""Between two looks at requests that can't be decided yet."""

MAX_AT_ONCE: Final = 64
"""Decisions in one pass; then the namespaces' turns begin again."""

Annotations = Mapping[str, str | None]


class Resizer:
    """`pod_changed` is told by the watch; `run` is a thread's body."""

    def __init__(self, state: ClusterState, kube: KubeClient, outlets: Outlets) -> None:
        """Decide on `state`, write through `kube`; results are `approved` or `refused`."""
        self._state, self._kube, self._out = state, kube, outlets
        self._lock = threading.Lock()
        self._open: dict[str, Pod] = {}
        self._failures: Counter[str] = Counter()  # by pod: whose writes fail goes last
        self._wake = threading.Event()

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Apply a change of one pod from the watch; returns at once."""
        pod = after or before
        if pod is None:
            return
        is_open = after is not None and not after.is_over and _concerns(after)
        if not is_open and pod.uid not in self._open:
            return
        with self._lock:
            if is_open:
                self._open[pod.uid] = pod
            else:
                self._open.pop(pod.uid, None)
        if is_open:
            self._wake.set()

    def wake(self) -> None:
        """Make `run` check its stop event."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Decide until stopped and woken. Replicas that do not lead only keep the list."""
        while not stop.is_set():
            self._wake.wait(RETRY_S if self._open else None)
            if stop.wait(0.05):  # a request and its pod's state often change together
                return
            self._wake.clear()
            self.decide_all()

    def decide_all(self) -> None:
        """One pass over all open requests."""
        with self._lock:
            waiting = tuple(self._open.values())
        newest = [self._state.latest(pod.uid) or pod for pod in waiting]
        self._failures = Counter({pod.uid: self._failures[pod.uid] for pod in newest})
        pods = _in_turns([pod for pod in newest if self._is_due(pod)], self._failures)
        if len(pods) > MAX_AT_ONCE:
            self._wake.set()
        for pod in pods[:MAX_AT_ONCE]:
            try:
                self._decide(pod, self._out.require_lead())
                self._failures[pod.uid] = 0
            except NotLeading:
                return
            except KubeError as e:
                log.warning("resize_not_written", extra=kv(pod=pod.key, error=str(e)))
                if e.is_transient:
                    self._failures[pod.uid] += 1
                    self._wake.clear()  # later: the API server would refuse the others, too
                    return
            except Exception:  # a bug must not end the decisions about other pods
                log.exception("resize_broken", extra=kv(pod=pod.key))

    def _is_due(self, pod: Pod) -> bool:
        return is_withdrawn(pod) or is_ready(pod, self._state.rules.vendors)

    def _decide(self, pod: Pod, fence: Fence) -> None:
        if is_withdrawn(pod):
            gone = (names.POD_RESIZE_STATE, names.POD_RESIZE_APPROVED)
            self._write(pod, dict.fromkeys(gone), fence)
            return
        decision = decision_id(pod.annotations[names.POD_RESIZE], pod.resource_version)
        try:
            request = decode_request(pod.annotations[names.POD_RESIZE])
            wanted = resizing_of(pod, request, self._state.rules.vendors)
            why = self._why_not_there(pod) or self._above_maximum(pod, wanted)
        except WireError as e:
            self._refuse(pod, decision, str(e), fence)
            return
        if why:
            self._refuse(pod, decision, why, fence)
            return
        answer = self._state.resize(pod, wanted)
        if isinstance(answer, NoRoom):
            self._refuse(pod, decision, answer.why, fence)
        elif not isinstance(answer, Busy):
            self._approve(pod, decision, wanted, fence)

    def _above_maximum(self, pod: Pod, wanted: Resizing) -> str:
        """Kubernetes keeps LimitRanges when a pod is created, and nobody later."""
        return above_maximum(pod, wanted, self._kube.list_limit_ranges(pod.namespace))

    def _why_not_there(self, pod: Pod) -> str:
        if not self._state.rules.can_resize:
            return "resizing is off in this cluster, by the setting resize"
        node = self._state.node(pod.node_name)
        if node is not None and names.NODE_RESIZED not in node.annotations:
            return (
                f"the device plugin of node {node.name} can't resize: it takes hami-node's daemon, "
                "of this version or later"
            )
        return ""

    def _approve(self, pod: Pod, decision: str, wanted: Resizing, fence: Fence) -> None:
        vendor = wanted.vendor
        approval = Approval(
            id=decision,
            uid=pod.uid,
            vendor=vendor.cards.word,
            grants={name: encode_slot(grants) for name, grants in wanted.grants.items()},
        )
        reserved, text = with_larger(pod, wanted), encode_approval(approval)
        if reserved is None or len(text) > MAX_APPROVAL:
            why = "its reservation does not match its containers"
            self._refuse(pod, decision, why if reserved is None else "it is too large", fence)
            return
        texts: Annotations = {
            names.POD_RESIZE_APPROVED: text,
            names.POD_RESIZE_STATE: None,
            vendor.keys.grants.allocated: reserved,
        }
        try:
            self._write(pod, texts, fence)
        except (Conflict, NotFound, NotLeading):
            self._state.take_back_resize(pod.uid)
            raise
        except KubeError as e:
            if not e.is_transient:
                self._state.take_back_resize(pod.uid)
            raise  # else it may have been stored: the next try finds out
        log.info("resize_approved", extra=kv(pod=pod.key, grants=dict(approval.grants)))
        self._out.on_result("approved")

    def _refuse(self, pod: Pod, decision: str, why: str, fence: Fence) -> None:
        self._state.take_back_resize(pod.uid)
        state = encode_state(ResizeState(id=decision, state=Outcome.REFUSED, why=why))
        self._write(pod, {names.POD_RESIZE_STATE: state}, fence)
        log.info("resize_refused", extra=kv(pod=pod.key, why=why))
        self._out.on_result("refused")
        note = EventNote.about(pod, REFUSED_EVENT, f"the pod is not resized: {why}")
        self._out.notify(replace(note, is_routine=True))

    def _write(self, pod: Pod, annotations: Annotations, fence: Fence) -> None:
        """Write exactly this version of the pod: whatever else changes it comes first."""
        fence()
        self._state.learned(self._kube.fenced(fence).patch_pod_exactly(pod, annotations))


def _in_turns(pods: Sequence[Pod], failures: Mapping[str, int]) -> list[Pod]:
    """The first of each namespace, then the second of each: nobody waits behind a crowd.

    Nor behind a pod whose own write fails, as where a webhook for its namespace is down.
    """
    places: Counter[str] = Counter()
    ranked = []
    for pod in pods:
        ranked.append((failures.get(pod.uid, 0), places[pod.namespace], pod))
        places[pod.namespace] += 1
    return [pod for *_, pod in sorted(ranked, key=lambda item: item[:2])]


def _concerns(pod: Pod) -> bool:
    """True for a pod with something to decide, now or later."""
    return is_undecided(pod) or is_withdrawn(pod)
