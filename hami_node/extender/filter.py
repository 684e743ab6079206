"""POST /filter: choose a pod's node and cards, reserve them, write the reservation to the pod."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.errors import Conflict, KubeError, NotFound, NotLeading, PodTaken, WireError
from hami_node.extender.http.messages import (
    FilterAnswer,
    FilterArgs,
    decode_filter_args,
    encode_filter_answer,
)
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.counted_pod import reservation_marks
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.inspection.reasons import explained, lasting_of
from hami_node.logs import kv
from hami_node.model import Grant, Pod
from hami_node.ports import EventNote
from hami_node.vendors.offer import offer_of
from hami_node.vendors.request import request_of

log = logging.getLogger(__name__)

SUCCEEDED: Final = "FilteringSucceed"
FAILED: Final = "FilteringFailed"
"""Reasons of the Events, as HAMi names them."""
INTERNAL_FAILURE: Final = (
    "no node was chosen because of an internal error of the extender; its log has the details "
    "(extender_request_failed), and the scheduler tries again"
)
"""The Event of a pod whose filter call failed unexpectedly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlets:
    """Where results go.

    Attributes:
        notify: takes an Event; never blocks.
        on_result: takes the outcome of a call, for the metric.
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

        An internal failure gives the pod an Event before it is raised.

        Raises:
            WireError: the body is not a filter call.
            NotLeading: another replica decides.
        """
        self._out.require_lead()
        args = decode_filter_args(body)
        try:
            return encode_filter_answer(self.decide(args))
        except NotLeading:
            raise
        except Exception:
            self._out.on_result("failed")
            self._notify(args.pod, FAILED, INTERNAL_FAILURE)
            raise

    def decide(self, args: FilterArgs) -> FilterAnswer:
        """Decide one call.

        Raises:
            NotLeading: another replica decides.
        """
        try:
            request = request_of(args.pod, self._state.rules.vendors)
        except WireError as e:
            return self._refused(args, f"the pod can't be served: {e}")
        if request.is_empty:
            self._out.on_result("untouched")
            return _as_given(args)
        if args.node_names is None and args.nodes is not None:
            return self._simulated(args, request)
        if why := self._unsettled(args.pod):
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
            # If only the response was lost, the pod carries the reservation: it must not count.
            carrying = _carrying(pod, annotations)
            marks = reservation_marks(carrying, self._state.rules.vendors)
            self._state.undo(pod.uid, reserved.token, marks)
            if isinstance(e, PodTaken):
                self._state.learned(e.pod)
            is_gone = isinstance(e, NotFound | Conflict)
            self._out.on_result("pod-gone" if is_gone else "not-stored")
            why = f"the decision could not be stored: {e}"
            self._notify(pod, FAILED, why)
            return FilterAnswer(error=why)
        except BaseException:
            self._state.undo(pod.uid, reserved.token)
            raise
        if not self._state.committed(pod.uid, reserved.token, stored):
            return self._not_now(f"pod {pod.key} was deleted, or a later call decides")
        if not self._is_true(pod, stored):
            return self._withdrawn(stored)
        self._out.on_result("reserved")
        cards = _granted(reserved.placed.grants, pod)
        self._notify(pod, SUCCEEDED, f"find fit node({reserved.placed.node}): {cards}")
        log.info("reserved", extra=kv(pod=pod.key, node=reserved.placed.node, cards=cards))
        return FilterAnswer(node_names=(reserved.placed.node,))

    def _is_true(self, described: Pod, stored: Pod) -> bool:
        """Whether the caller described the pod correctly: anybody in the cluster can call."""
        vendors = self._state.rules.vendors
        try:
            return request_of(described, vendors) == request_of(stored, vendors)
        except WireError:
            return False

    def _withdrawn(self, stored: Pod) -> FilterAnswer:
        """Release what was reserved for a pod that differs from the caller's description."""
        self._state.release(stored.uid)
        self._out.on_result("untrue")
        why = f"pod {stored.key} does not ask for what the caller described"
        log.warning("filter_untrue", extra=kv(pod=stored.key, why=why))
        try:
            self._writer.clear(stored)
        except KubeError as e:
            # the sweeper retries
            log.warning("undo_failed", extra=kv(pod=stored.key, error=str(e)))
        return FilterAnswer(error=why)

    def _unsettled(self, pod: Pod) -> str:
        """Find out whether a pod was bound, if that is unknown; the reason why it can't be."""
        if not self._state.is_doubtful(pod.uid):
            return ""
        try:
            self._state.settle(pod.uid, self._writer.read(pod))
        except NotFound:
            return ""
        except KubeError as e:
            return f"whether pod {pod.key} was bound is unknown: {e}"
        return ""

    def _not_now(self, why: str) -> FilterAnswer:
        """Let the scheduler try again soon."""
        self._out.on_result("not-now")
        return FilterAnswer(error=why)

    def _nowhere(self, args: FilterArgs, request: PodRequest) -> FilterAnswer:
        rejections = self._state.explain(request, args.candidates)
        if isinstance(rejections, Refused):
            return self._refused(args, rejections.why)
        state = self._state
        found = explained(
            request,
            rejections,
            state.cards_of,
            state.largest_mib,
            state.why_not_offered,
            lasting_of(state.rules.vendors),
        )
        self._out.on_result("nowhere")
        self._notify(args.pod, FAILED, found.summary)
        return FilterAnswer(failed=found.failed, unresolvable=found.unresolvable)

    def _refused(self, args: FilterArgs, why: str) -> FilterAnswer:
        """The pod itself is invalid: no node will ever fit."""
        self._out.on_result("refused")
        self._notify(args.pod, FAILED, why)
        return FilterAnswer(unresolvable=dict.fromkeys(args.candidates, why))

    def _simulated(self, args: FilterArgs, request: PodRequest) -> FilterAnswer:
        """Callers that send whole nodes only simulate: nothing is reserved or written.

        Source: HAMi 2.10 scheduler.go:1156-1199.
        """
        rules = self._state.rules
        fleet = Fleet(rules.engine)
        nodes = args.nodes or ()
        given = {item.node.name: item.raw for item in nodes}
        for item in nodes:
            offer = offer_of(item.node, rules.vendors, node_labels=rules.node_labels)
            if offer.devices:
                fleet.set_node(
                    item.node.name,
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
            nodes=chosen,
            failed={name: item.text() for name, item in rejections.items() if not item.never},
            unresolvable={
                name: f"{item.text()}: {item.never}"
                for name, item in rejections.items()
                if item.never
            },
        )

    def _notify(self, pod: Pod, reason: str, message: str) -> None:
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
    nodes = None if args.nodes is None else tuple(item.raw for item in args.nodes)
    return FilterAnswer(node_names=args.node_names, nodes=nodes)


def _carrying(pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
    """The pod as it would look with these annotations."""
    kept = {**pod.annotations, **annotations}
    return replace(pod, annotations={key: text for key, text in kept.items() if text is not None})


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
