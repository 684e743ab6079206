"""POST /filter: choose a pod's node and cards, reserve them, write that onto the pod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from hami_node.engine.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.errors import Conflict, KubeError, NotFound, PodTaken, WireError
from hami_node.extender.counted import reservation_marks
from hami_node.extender.decisions import Busy, Reserved
from hami_node.extender.messages import (
    FilterAnswer,
    FilterArgs,
    decode_filter_args,
    encode_filter_answer,
)
from hami_node.extender.offers import offer_of
from hami_node.extender.reasons import explained
from hami_node.extender.reservations import ReservationWriter
from hami_node.extender.rules import request_of
from hami_node.extender.state import ClusterState
from hami_node.logs import kv
from hami_node.model import Pod, Vendor
from hami_node.ports import EventNote

log = logging.getLogger(__name__)

SUCCEEDED: Final = "FilteringSucceed"
FAILED: Final = "FilteringFailed"
"""Reasons of the Events, as HAMi names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Where results are told.

    Attributes:
        notify: takes an Event; never waits.
        on_result: told how a call ended, for the metric.
        require_lead: raises NotLeading where another replica decides.
    """

    notify: Callable[[EventNote], None]
    on_result: Callable[[str], None] = lambda _: None
    require_lead: Callable[[], None] = lambda: None


class PodFilter:
    """Answers /filter. Thread-safe."""

    def __init__(self, state: ClusterState, writer: ReservationWriter, outlets: Outlets) -> None:
        """Decide on `state`, write through `writer`."""
        self._state, self._writer, self._out = state, writer, outlets

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is no filter call.
            NotLeading: another replica decides.
        """
        self._out.require_lead()
        return encode_filter_answer(self.decide(decode_filter_args(body)))

    def decide(self, args: FilterArgs) -> FilterAnswer:
        """Decide one call.

        Raises:
            NotLeading: another replica decides.
        """
        try:
            request = request_of(args.pod, self._state.rules)
        except WireError as e:
            return self._refused(args, f"the pod can't be served: {e}")
        if request.is_empty:
            self._out.on_result("untouched")
            return _as_given(args)
        if args.node_names is None and args.nodes is not None:
            return self._simulated(args, request)
        if why := self._doubt_left(args.pod):
            return self._not_now(why)
        answer = self._state.reserve(args.pod, request, args.candidates)
        if isinstance(answer, Busy):
            return self._not_now(answer.why)
        if isinstance(answer, Refused):
            return self._refused(args, answer.why)
        if isinstance(answer, NoNode):
            return self._nowhere(args, request)
        return self._written(args.pod, answer)

    def _written(self, pod: Pod, reserved: Reserved) -> FilterAnswer:
        """Store the decision; undo it where that fails."""
        node = self._state.node(reserved.placed.node)
        annotations = self._writer.annotations_of(pod, reserved, node)
        try:
            self._out.require_lead()
            stored = self._writer.write(
                pod, annotations, lambda: self._state.is_current(pod.uid, reserved.token)
            )
        except KubeError as e:
            # After a lost answer the pod may carry it all the same: then it counts for nothing.
            marks = reservation_marks(_carrying(pod, annotations))
            self._state.undo(pod.uid, reserved.token, marks)
            if isinstance(e, PodTaken):
                self._state.learned(e.pod)
            is_gone = isinstance(e, NotFound | Conflict)
            self._out.on_result("pod-gone" if is_gone else "not-stored")
            why = f"the decision could not be stored: {e}"
            self._tell(pod, FAILED, why)
            return FilterAnswer(error=why)
        except BaseException:
            self._state.undo(pod.uid, reserved.token)
            raise
        if not self._state.committed(pod.uid, reserved.token, stored):
            return self._not_now(f"pod {pod.key} went, or a later call decides")
        if not self._is_true(pod, stored):
            return self._withdrawn(stored)
        self._out.on_result("reserved")
        said = _granted(reserved.placed.grants, pod)
        self._tell(pod, SUCCEEDED, f"find fit node({reserved.placed.node}): {said}")
        log.info("reserved", extra=kv(pod=pod.key, node=reserved.placed.node, cards=said))
        return FilterAnswer(node_names=(reserved.placed.node,))

    def _is_true(self, told: Pod, stored: Pod) -> bool:
        """Whether the caller described the pod as it is: anybody in the cluster can call."""
        rules = self._state.rules
        try:
            return request_of(told, rules) == request_of(stored, rules)
        except WireError:
            return False

    def _withdrawn(self, stored: Pod) -> FilterAnswer:
        """Take back what was reserved for a pod that is not as it was described."""
        self._state.release(stored.uid)
        self._out.on_result("untrue")
        why = f"pod {stored.key} asks for something else than the caller said"
        log.warning("filter_untrue", extra=kv(pod=stored.key, why=why))
        try:
            self._writer.clear(stored)
        except KubeError as e:
            log.warning("undo_failed", extra=kv(pod=stored.key, error=str(e)))  # the sweeper tries
        return FilterAnswer(error=why)

    def _doubt_left(self, pod: Pod) -> str:
        """Find out whether a pod was bound, where that is not known; why that can't be told."""
        if not self._state.is_doubtful(pod.uid):
            return ""
        try:
            self._state.settle(pod.uid, self._writer.read(pod))
        except NotFound:
            return ""
        except KubeError as e:
            return f"whether pod {pod.key} was bound can't be told: {e}"
        return ""

    def _not_now(self, why: str) -> FilterAnswer:
        """The scheduler shall try again soon."""
        self._out.on_result("not-now")
        return FilterAnswer(error=why)

    def _nowhere(self, args: FilterArgs, request: PodRequest) -> FilterAnswer:
        rejections = self._state.explain(request, args.candidates)
        if isinstance(rejections, Refused):
            return self._refused(args, rejections.why)
        state = self._state
        found = explained(
            request, rejections, state.cards_of, state.largest_mib, state.why_not_offered
        )
        self._out.on_result("nowhere")
        self._tell(args.pod, FAILED, found.summary)
        return FilterAnswer(failed=found.failed, unresolvable=found.unresolvable)

    def _refused(self, args: FilterArgs, why: str) -> FilterAnswer:
        """The pod itself is wrong: no node will ever do."""
        self._out.on_result("refused")
        self._tell(args.pod, FAILED, why)
        return FilterAnswer(unresolvable=dict.fromkeys(args.candidates, why))

    def _simulated(self, args: FilterArgs, request: PodRequest) -> FilterAnswer:
        """Whole nodes come from callers that only ask "what if": nothing is reserved or written.

        Source: HAMi 2.10 scheduler.go:1156-1199.
        """
        rules = self._state.rules
        fleet = Fleet(rules.engine)
        given = {one.node.name: one.raw for one in args.nodes or ()}
        for one in args.nodes or ():
            offer = offer_of(one.node, rules.names)
            if offer.devices:
                fleet.set_node(
                    one.node.name,
                    offer.devices,
                    cordoned=offer.cordoned,
                    pair_scores=offer.pair_scores,
                )
        answer = fleet.place(request, tuple(given))
        rejections = fleet.explain(request, tuple(given))
        self._out.on_result("simulated")
        if isinstance(answer, Refused) or isinstance(rejections, Refused):
            why = answer.why if isinstance(answer, Refused) else "the pod can't be served"
            return FilterAnswer(nodes=(), unresolvable=dict.fromkeys(given, why))
        chosen: tuple[msgspec.Raw, ...] = ()
        if isinstance(answer, Placed):
            chosen = (given[answer.node],)
        return FilterAnswer(
            nodes=chosen, failed={name: one.text() for name, one in rejections.items()}
        )

    def _tell(self, pod: Pod, reason: str, message: str) -> None:
        note = EventNote(
            kind="Pod",
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            reason=reason,
            message=message,
            is_warning=reason == FAILED,
        )
        self._out.notify(note)


def _as_given(args: FilterArgs) -> FilterAnswer:
    nodes = None if args.nodes is None else tuple(one.raw for one in args.nodes)
    return FilterAnswer(node_names=args.node_names, nodes=nodes)


def _carrying(pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
    """The pod as it would look with these annotations."""
    kept = {**pod.annotations, **annotations}
    return replace(pod, annotations={key: text for key, text in kept.items() if text is not None})


def _granted(grants: PodGrants, pod: Pod) -> str:
    """`c0: GPU-1 3000 MiB 30 %`, for people."""
    parts = []
    for place, held in enumerate(grants.containers):
        for grant in held:
            amount = f"{grant.memory_mib} MiB {grant.cores} %"
            if grant.vendor is Vendor.AWS_NEURON:
                amount = f"{grant.cores.bit_count()} cores"
            parts.append(f"{pod.containers[place].name}: {grant.uuid} {amount}")
    return ", ".join(parts)
