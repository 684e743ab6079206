"""POST /preempt: which of the proposed victims make room on a card; that room is then kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hami_node.errors import WireError
from hami_node.extender.caller_limits import check_pod
from hami_node.extender.filter import Outlets
from hami_node.extender.preemption.messages import (
    PreemptionArgs,
    Victims,
    decode_preemption_args,
    encode_preemption_result,
)
from hami_node.extender.preemption.victims import SearchParts, VictimSearch
from hami_node.logs import kv
from hami_node.vendors.request import request_of

log = logging.getLogger(__name__)


class PodPreemption:
    """Answers /preempt. Thread-safe."""

    def __init__(self, parts: SearchParts, outlets: Outlets) -> None:
        """Search with `parts`, report to `outlets`."""
        self._parts, self._out = parts, outlets

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is not a preemption call.
            NotLeading: another replica decides.
        """
        fence = self._out.require_lead()
        args = decode_preemption_args(body)
        try:
            found, result = self._decide(args)
            fence()
        except WireError:
            found, result = {}, "refused"
        self._out.on_result(result)
        return encode_preemption_result(found)

    def _decide(self, args: PreemptionArgs) -> tuple[Mapping[str, Victims], str]:
        check_pod(args.pod)
        request = request_of(args.pod, self._parts.state.rules.vendors)
        if request.is_empty:
            return args.nodes, "untouched"
        if args.pod.never_preempts:
            return {}, "never"
        search = VictimSearch(self._parts, args, request)
        found = search.run()
        sizes = {node: len(victims.uids) for node, victims in found.items()}
        fields = kv(pod=args.pod.key, proposed=len(args.nodes), victims=sizes)
        log.info("preemption", extra=fields)
        if found:
            added = any(len(found[node].uids) > len(args.nodes[node].uids) for node in found)
            return found, "extended" if added else "confirmed"
        return found, "late" if search.is_late else "nowhere"
