"""POST /preempt: which of the proposed victims make room on a card; that room is then kept.

The victims are noted on the pod, so that the next leader keeps the room as well.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hami_node.errors import KubeError, NotFound, PodTaken, WireError
from hami_node.extender.caller_limits import check_pod
from hami_node.extender.filter import Outlets
from hami_node.extender.preemption.messages import (
    PreemptionArgs,
    Victims,
    decode_preemption_args,
    encode_preemption_result,
)
from hami_node.extender.preemption.victims import SearchParts, VictimSearch
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Fence
from hami_node.vendors.request import request_of

log = logging.getLogger(__name__)


class PodPreemption:
    """Answers /preempt. Thread-safe."""

    def __init__(self, parts: SearchParts, writer: ReservationWriter, outlets: Outlets) -> None:
        """Search with `parts`, note with `writer`, report to `outlets`."""
        self._parts, self._writer, self._out = parts, writer, outlets

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is not a preemption call.
            NotLeading: another replica decides.
        """
        fence = self._out.require_lead()
        args = decode_preemption_args(body)
        try:
            found, result = self._decide(args, fence)
            fence()
        except WireError:
            found, result = {}, "refused"
        self._out.on_result(result)
        return encode_preemption_result(found)

    def _decide(self, args: PreemptionArgs, fence: Fence) -> tuple[Mapping[str, Victims], str]:
        check_pod(args.pod)
        request = request_of(args.pod, self._parts.state.rules.vendors)
        if request.is_empty:
            return args.nodes, "untouched"
        if args.pod.never_preempts:
            return {}, "never"
        if (awaited := self._awaited(args)) is not None:
            return awaited, "awaited"
        search = VictimSearch(self._parts, args, request)
        found = search.run()
        sizes = {node: len(victims.uids) for node, victims in found.items()}
        fields = kv(pod=args.pod.key, proposed=len(args.nodes), victims=sizes)
        log.info("preemption", extra=fields)
        if found and not self._is_noted(args.pod, found, fence):
            return {}, "gone"
        if found:
            added = any(len(found[node].uids) > len(args.nodes[node].uids) for node in found)
            return found, "extended" if added else "confirmed"
        return found, "late" if search.is_late else "nowhere"

    def _awaited(self, args: PreemptionArgs) -> Mapping[str, Victims] | None:
        """The answer for a pod whose victims of before have still to end: nobody else has to."""
        with self._parts.state.books.held() as books:
            node = books.kept.awaited(args.pod.uid)
            leaving = books.pods.leaving(node)
        if not node:
            return None
        victims = args.nodes.get(node, Victims(uids=()))
        return {node: victims} if victims.uids and leaving.issuperset(victims.uids) else {}

    def _is_noted(self, pod: Pod, found: Mapping[str, Victims], fence: Fence) -> bool:
        """Note the victims on the pod; False if there is no such pod to be placed any more."""
        try:
            victims = {node: each.uids for node, each in found.items()}
            self._writer.note_victims(pod, victims, fence)
        except (PodTaken, NotFound):
            return False
        except KubeError as e:
            then = "this replica keeps their room, the next one may not"
            log.warning("victims_not_noted", extra=kv(pod=pod.key, error=str(e), then=then))
        return True
