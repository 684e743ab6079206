"""POST /filter: choose a pod's node and cards, reserve them, write the reservation to the pod."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.fleet.fleet import NoNode
from hami_node.engine.place import PodRequest, Refused
from hami_node.errors import KubeError, NotLeading, WireError
from hami_node.extender.binding.sending import settle_late
from hami_node.extender.caller_limits import check_pod
from hami_node.extender.http.messages import (
    FilterAnswer,
    FilterArgs,
    decode_filter_args,
    encode_filter_answer,
)
from hami_node.extender.placing import NotStored, PodPlacer
from hami_node.extender.simulating import simulated
from hami_node.extender.state.decisions import Busy
from hami_node.model import Pod
from hami_node.ports import EventNote, Fence
from hami_node.text import cut
from hami_node.vendors.request import request_of

SUCCEEDED: Final = "FilteringSucceed"
FAILED: Final = "FilteringFailed"
"""Reasons of the Events, as HAMi names them."""
REFUSED: Final = "PodRefused"
"""The reason of a pod that no node will ever take, for the metric."""
UNFINISHED: Final = "Unfinished"
"""The same of a pod for which no node was found in the time of a decision."""
LONGEST_WHY: Final = 500
"""Characters of what is said of each of thousands of nodes."""
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
        on_cut: called for a choice of linked cards whose search was cut short.
        on_wait: takes a pod and why most nodes can't take it; "" once a node was chosen.
        require_lead: raises NotLeading where another replica decides; what it returns raises that
            once this replica's present term is over.
    """

    notify: Callable[[EventNote], None]
    on_result: Callable[[str], None] = lambda _: None
    on_cut: Callable[[], None] = lambda: None
    on_wait: Callable[[Pod, str], None] = lambda _pod, _why: None
    require_lead: Callable[[], Fence] = lambda: lambda: None


class PodFilter:
    """Answers /filter. Thread-safe."""

    def __init__(self, placer: PodPlacer, outlets: Outlets) -> None:
        """Decide by `placer`, report to `outlets`."""
        self._placer, self._state, self._out = placer, placer.state, outlets

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        An internal failure gives the pod an Event before it is raised.

        Raises:
            WireError: the body is not a filter call.
            NotLeading: another replica decides.
        """
        fence = self._out.require_lead()
        args = decode_filter_args(body)
        try:
            return encode_filter_answer(self._decide(args, fence))
        except NotLeading:
            raise
        except Exception:
            self._out.on_result("failed")
            self._notify(args.pod, FAILED, INTERNAL_FAILURE)
            raise

    def _decide(self, args: FilterArgs, fence: Fence) -> FilterAnswer:
        try:
            check_pod(args.pod)
            request = request_of(args.pod, self._state.rules.vendors)
        except WireError as e:
            return self._refused(args, f"the pod can't be served: {e}")
        if request.is_empty:
            self._out.on_result("untouched")
            return _as_given(args)
        if args.node_names is None and args.nodes is not None:
            self._out.on_result("simulated")
            return simulated(self._state, args, request)
        if why := self._unsettled(args.pod, fence):
            return self._not_now(why)
        return self._placed(args, request, fence)

    def _placed(self, args: FilterArgs, request: PodRequest, fence: Fence) -> FilterAnswer:
        answer = self._placer.place(args.pod, request, args.candidates, fence)
        if isinstance(answer, Busy):
            if answer.is_unfinished:
                self._unfinished(args.pod, answer.why)
            return self._not_now(answer.why, "unfinished" if answer.is_unfinished else "not-now")
        if isinstance(answer, Refused):
            return self._refused(args, answer.why)
        if isinstance(answer, NoNode):
            return self._nowhere(args, request, answer)
        if isinstance(answer, NotStored):
            self._out.on_result(answer.result)
            self._notify(args.pod, FAILED, answer.why)
            return FilterAnswer(error=answer.why)
        self._out.on_result("reserved")
        if not answer.is_exact:
            self._out.on_cut()
        self._out.on_wait(args.pod, "")
        self._notify(args.pod, SUCCEEDED, f"find fit node({answer.node}): {answer.cards}")
        return FilterAnswer(node_names=(answer.node,))

    def _unsettled(self, pod: Pod, fence: Fence) -> str:
        """Find out whether a pod was bound, if that is unknown; the reason why it can't be."""
        if not self._state.may_arrive(pod.uid):
            return ""
        try:
            settle_late(self._state, self._placer.writer, pod, fence)
        except KubeError as e:
            return f"whether pod {pod.key} was bound is unknown: {e}"
        return ""

    def _not_now(self, why: str, result: str = "not-now") -> FilterAnswer:
        """Let the scheduler try again soon."""
        self._out.on_result(result)
        return FilterAnswer(error=why)

    def _unfinished(self, pod: Pod, why: str) -> None:
        """It may take some attempts more: the pod waits."""
        self._out.on_wait(pod, UNFINISHED)
        self._notify(pod, FAILED, why)

    def _nowhere(self, args: FilterArgs, request: PodRequest, answer: NoNode) -> FilterAnswer:
        found = self._placer.why_nowhere(args.pod, request, args.candidates, answer)
        if isinstance(found, Refused):
            return self._refused(args, found.why)
        kept = self._kept(args, {*found.failed, *found.unresolvable})
        summary = found.summary
        if kept:
            summary += (
                f"; on {len(kept)} nodes the room is kept for pods that evicted others for it"
            )
        self._out.on_result("nowhere")
        self._out.on_wait(args.pod, found.reason)
        self._notify(args.pod, FAILED, summary)
        return FilterAnswer(failed={**found.failed, **kept}, unresolvable=found.unresolvable)

    def _kept(self, args: FilterArgs, others: Collection[str]) -> dict[str, str]:
        """By node: for whom the room is kept that the pod would have, where nothing else is short.

        A node without a reason is one that kube-scheduler never preempts.
        """
        with self._state.books.held() as books:
            owners = books.kept.owners(args.pod.uid, args.pod.priority)
        return {
            name: f"the room is kept for pod {owners[name]}, for which others were evicted"
            for name in args.candidates
            if name in owners and name not in others
        }

    def _refused(self, args: FilterArgs, why: str) -> FilterAnswer:
        """The pod itself is invalid: no node will ever fit."""
        why = cut(why, LONGEST_WHY)
        self._out.on_result("refused")
        self._out.on_wait(args.pod, REFUSED)
        self._notify(args.pod, FAILED, why)
        return FilterAnswer(unresolvable=dict.fromkeys(args.candidates, why))

    def _notify(self, pod: Pod, reason: str, message: str) -> None:
        note, is_routine = EventNote.about(pod, reason, message), message != INTERNAL_FAILURE
        self._out.notify(replace(note, is_warning=reason == FAILED, is_routine=is_routine))


def _as_given(args: FilterArgs) -> FilterAnswer:
    nodes = None if args.nodes is None else tuple(item.raw for item in args.nodes)
    return FilterAnswer(node_names=args.node_names, nodes=nodes)
