"""Places one pod and stores that on it: in /filter, and by the same rules in /bind if need be."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.fleet import NoNode
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.errors import Conflict, KubeError, NotFound, PodTaken, WireError
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.inspection.reasons import Explained, explained, lasting_of
from hami_node.logs import kv
from hami_node.model import Grant, Pod
from hami_node.ports import Fence
from hami_node.vendors.request import request_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A pod that carries its reservation now, and its cards for people.

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
    """Thread-safe."""

    def __init__(self, state: ClusterState, writer: ReservationWriter) -> None:
        """Decide on `state`, write through `writer`."""
        self._state, self._writer = state, writer

    def place(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str],
        fence: Fence,
        *,
        is_binding: bool = False,
    ) -> Stored | NotStored | NoNode | Refused | Busy:
        """Choose one of the candidates and its cards, and write that to the pod.

        Args:
            pod: as the caller describes it.
            request: what it asks for.
            candidates: the nodes to choose from.
            fence: checked before each write.
            is_binding: the caller is the one that binds the pod.

        Raises:
            NotLeading: another replica decides by now; nothing is charged.
        """
        answer = self._state.reserve(pod, request, candidates, is_binding=is_binding)
        if not isinstance(answer, Reserved):
            return answer
        return self._written(pod, answer, fence)

    def why_nowhere(
        self, pod: Pod, request: PodRequest, nodes: Collection[str]
    ) -> Explained | Refused:
        """Why none of these nodes can take the pod."""
        state = self._state
        closed = state.backed_off(pod)
        rejections = state.explain(request, nodes)
        if isinstance(rejections, Refused):
            return rejections
        return explained(
            request,
            {**rejections, **{name: closed[name] for name in nodes if name in closed}},
            state.cards_of,
            state.largest_mib,
            state.why_not_offered,
            lasting_of(state.rules.vendors),
        )

    def _written(self, pod: Pod, reserved: Reserved, fence: Fence) -> Stored | NotStored | Busy:
        """Store the decision; undo it where that fails."""
        state, node = self._state, reserved.placed.node
        annotations = self._writer.annotations_of(pod, reserved, state.node(node))
        try:
            stored = self._writer.write(
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
        cards = _granted(reserved.placed.grants, pod)
        is_exact = reserved.placed.is_exact
        cut = {} if is_exact else {"links": "search cut short"}
        log.info("reserved", extra=kv(pod=pod.key, node=node, cards=cards, **cut))
        return Stored(pod=stored, node=node, cards=cards, is_exact=is_exact)

    def _is_true(self, described: Pod, stored: Pod) -> bool:
        """Whether the caller described the pod correctly: it may have been wrong, or outdated."""
        vendors = self._state.rules.vendors
        try:
            return request_of(described, vendors) == request_of(stored, vendors)
        except WireError:
            return False

    def _withdrawn(self, stored: Pod, fence: Fence) -> NotStored:
        """Release what was reserved for a pod that differs from the caller's description."""
        self._state.release(stored.uid)
        why = f"pod {stored.key} does not ask for what the caller described"
        log.warning("filter_untrue", extra=kv(pod=stored.key, why=why))
        try:
            self._writer.clear(stored, fence)
        except KubeError as e:
            # the sweeper retries
            log.warning("undo_failed", extra=kv(pod=stored.key, error=str(e)))
        return NotStored(why=why, result="untrue")


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
