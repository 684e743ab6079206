"""Places one pod: in /filter, and by the same rules in /bind if need be.

The decision is stored on the pod at once, or stands in memory until the pod's Binding carries it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.fleet import NoNode
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.errors import Conflict, KubeError, NotFound, PodTaken, WireError
from hami_node.extender.state.carried import Carried, can_carry
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.inspection.reasons import Explained, explained, lasting_of
from hami_node.logs import kv
from hami_node.model import Grant, Node, Pod
from hami_node.ports import Fence
from hami_node.vendors.request import request_of

log = logging.getLogger(__name__)

FindPod = Callable[[str, str], Pod | None]
"""Finds a pod by namespace and name in the watch's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A pod that has its reservation now, on itself or in memory, and its cards for people.

    `is_exact` is False where the search for the best linked cards was cut short.
    """

    pod: Pod
    node: str
    cards: str
    is_exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    """The decision could not be stored: `why`, and the outcome for the metric."""

    why: str
    result: str


class PodPlacer:
    """Thread-safe.

    Attributes:
        state: which pod holds what.
        writer: writes reservations.
        find_pod: looks up the watch's cache.
    """

    def __init__(
        self,
        state: ClusterState,
        writer: ReservationWriter,
        find_pod: FindPod,
    ) -> None:
        """Decide on `state`, write through `writer`."""
        self.state, self.writer, self.find_pod = state, writer, find_pod

    def place(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str],
        fence: Fence,
        *,
        is_binding: bool = False,
    ) -> Stored | NotStored | NoNode | Refused | Busy:
        """Choose one of the candidates and its cards; write that to the pod unless it need not be.

        Args:
            pod: as the caller describes it.
            request: what it asks for.
            candidates: the nodes to choose from.
            fence: checked before each write.
            is_binding: the caller is the one that binds the pod.

        Raises:
            NotLeading: another replica decides by now; nothing is charged.
        """
        known = self._known(pod) if is_binding else self._confirmed(pod)
        if not isinstance(known, Pod):
            return known
        if (refusal := self._unfit(pod, known)) is not None:
            return refusal
        answer = self.state.reserve(known, request, candidates, is_binding=is_binding)
        if not isinstance(answer, Reserved):
            return answer
        node = self.state.node(answer.placed.node)
        if node is not None and can_carry(node, known, self.state.rules.vendors):
            if known is not pod:
                self.state.learned(known)  # of what the caller sent nothing is kept
            return self._carried(known, request, answer, node, fence)
        return self._written(pod, answer, fence)

    def why_nowhere(
        self, pod: Pod, request: PodRequest, nodes: Collection[str], answer: NoNode
    ) -> Explained | Refused:
        """Why none of these nodes can take the pod, for which `answer` was found."""
        state = self.state
        closed = state.backed_off()
        rejections = state.explain(request, nodes, answer)
        if isinstance(rejections, Refused):
            return rejections
        return explained(
            request,
            {**rejections, **{name: closed[name] for name in nodes if name in closed}},
            state.cards_of,
            state.largest_mib,
            state.why_not_offered,
            lasting_of(state.rules.vendors),
            state.snapshot(pod, ()).quota,
        )

    def _known(self, pod: Pod) -> Pod:
        """The pod as the API server has shown it, unless the caller's is newer."""
        shown = (self.find_pod(pod.namespace, pod.name), self.state.latest(pod.uid))
        known = [one for one in shown if one is not None and one.uid == pod.uid]
        newest = max(known, key=attrgetter("version"), default=pod)
        return newest if newest.version >= max(pod.version, 1) else pod

    def _confirmed(self, pod: Pod) -> Pod | NotStored | Refused:
        """The pod as the API server has it: read, if only the caller shows it so far."""
        known = self._known(pod)
        if known is not pod:
            return known
        try:
            stored = self.writer.read(pod)
        except NotFound:
            return Refused(why=f"pod {pod.key} was deleted")
        except KubeError as e:
            return NotStored(why=f"pod {pod.key} could not be read: {e}", result="not-stored")
        if stored.uid != pod.uid:
            why = f"pod {pod.key} was replaced by another pod"
            return NotStored(why=why, result="pod-gone")
        return stored

    def _unfit(self, pod: Pod, known: Pod) -> NotStored | Refused | None:
        """Why nothing is reserved for the pod that a caller describes; None if something may be."""
        if known.node_name:
            return Refused(why=f"pod {pod.key} is bound to node {known.node_name}")
        if known.is_being_deleted or known.is_over:
            why = f"pod {pod.key} is being deleted or has ended"
            return NotStored(why=why, result="pod-gone")
        if known is not pod and not self._is_true(pod, known):
            return self._untrue(pod)
        return None

    def _carried(
        self, pod: Pod, request: PodRequest, reserved: Reserved, node: Node, fence: Fence
    ) -> Stored | Busy:
        """Keep the decision in memory: nobody but the pod's Binding has to know it."""
        state = self.state
        try:
            annotations = self.writer.annotations_of(pod, reserved, node)
            carried = Carried(
                annotations={key: value for key, value in annotations.items() if value is not None},
                request=request,
                pod=pod,
            )
            fence()
        except BaseException:
            state.undo(pod.uid, reserved.token)
            raise
        if not state.keep_carried(pod.uid, reserved.token, carried):
            return Busy(f"pod {pod.key} was deleted, or a later call decides")
        return _said(pod, reserved)

    def _written(self, pod: Pod, reserved: Reserved, fence: Fence) -> Stored | NotStored | Busy:
        """Store the decision; undo it where that fails."""
        state, node = self.state, reserved.placed.node
        try:
            annotations = self.writer.annotations_of(pod, reserved, state.node(node))
            stored = self.writer.write(
                pod, annotations, lambda: state.is_current(pod.uid, reserved.token), fence
            )
        except KubeError as e:
            # if only the response was lost, the pod carries a reservation that does not count
            state.undo(pod.uid, reserved.token)
            if isinstance(e, PodTaken):
                state.learned(e.pod)
            is_gone = isinstance(e, NotFound | Conflict)
            why = f"the decision could not be stored: {e}"
            return NotStored(why=why, result="pod-gone" if is_gone else "not-stored")
        except BaseException:
            state.undo(pod.uid, reserved.token)
            raise
        if not state.committed(pod.uid, reserved.token, stored):
            return Busy(f"pod {pod.key} was deleted, or a later call decides")
        if not self._is_true(pod, stored):
            return self._withdrawn(stored, fence)
        return _said(stored, reserved)

    def _is_true(self, described: Pod, stored: Pod) -> bool:
        """Whether the caller described the pod correctly: it may have been wrong, or outdated."""
        vendors = self.state.rules.vendors
        if (described.containers, described.annotations) == (stored.containers, stored.annotations):
            return True
        try:
            return request_of(described, vendors) == request_of(stored, vendors)
        except WireError:
            return False

    def _withdrawn(self, stored: Pod, fence: Fence) -> NotStored:
        """Release what was reserved for a pod that differs from the caller's description."""
        self.state.release(stored.uid)
        try:
            self.writer.clear(stored, fence)
        except KubeError as e:
            # the sweeper retries
            log.warning("undo_failed", extra=kv(pod=stored.key, error=str(e)))
        return self._untrue(stored)

    def _untrue(self, pod: Pod) -> NotStored:
        why = f"pod {pod.key} does not ask for what the caller described"
        log.warning("filter_untrue", extra=kv(pod=pod.key, why=why))
        return NotStored(why=why, result="untrue")


def _said(pod: Pod, reserved: Reserved) -> Stored:
    node, is_exact = reserved.placed.node, reserved.placed.is_exact
    cards = _granted(reserved.placed.grants, pod)
    cut = {} if is_exact else {"links": "search cut short"}
    log.info("reserved", extra=kv(pod=pod.key, node=node, cards=cards, **cut))
    return Stored(pod=pod, node=node, cards=cards, is_exact=is_exact)


def _granted(grants: PodGrants, pod: Pod) -> str:
    """`c0: GPU-1 3000 MiB 30 %`, for messages."""
    return ", ".join(
        f"{pod.containers[i].name}: {grant.uuid} {_amount(grant)}"
        for i, held in enumerate(grants.containers)
        for grant in held
    )


def _amount(grant: Grant) -> str:
    if rules_of(grant.vendor).cores_are_mask:
        return f"{grant.cores.bit_count()} cores"
    return f"{grant.memory_mib} MiB {grant.cores} %"
