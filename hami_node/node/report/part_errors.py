"""Driver errors that name a part of a card: said to the pod that has it, and counted for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from hami_node.logs import kv
from hami_node.metrics.families import OTHER
from hami_node.model import Pod
from hami_node.node.state import NodeState
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import EventNote, PartError
from hami_node.vendors.divided import DividedCards, PartState, PartView

log = logging.getLogger(__name__)

EVENT: Final = "CardPartError"
PAUSE_S: Final = 600.0
"""Between two Events about one error of one part: a program can cause any number of them."""
MAX_KINDS: Final = 500
"""Errors that are counted apart; those beyond are counted together, as nobody's."""


class PartErrorLabels(NamedTuple):
    """Whose error it was; "" for nobody known."""

    namespace: str
    pod: str
    container: str
    uuid: str
    part: str
    xid: str
    ignored: str


class PartErrors:
    """Finds out whom an error concerns. A step of the loop; any thread may read the counts."""

    def __init__(self, node: NodeState) -> None:
        """Nothing has occurred yet."""
        self._node = node
        self.counts: Mapping[PartErrorLabels, int] = {}
        """How often each error has occurred in each part that exists; and in parts of nobody."""
        self._told_s: dict[PartErrorLabels, float] = {}

    def look(self) -> None:
        """Take what has come since the last look."""
        came = [(owner, owner.backend.part_errors()) for owner in self._node.vendor_cards]
        if not self.counts and not any(errors for _, errors in came):
            return
        pods = {pod.uid: pod for pod in self._node.view.pods()}
        counts, existing = dict(self.counts), {""}  # errors of nobody's parts stay counted
        for owner, errors in came:
            divided = owner.divided()
            existing.update(part.uuid for part in divided.parts)
            for error in errors:
                for labels in self._concerned(owner, error, divided, pods):
                    if labels not in counts and len(counts) >= MAX_KINDS:
                        labels = _labels(error, is_ignored=False)._replace(xid=OTHER)
                    counts[labels] = counts.get(labels, 0) + error.count
        self.counts = {labels: n for labels, n in counts.items() if labels.part in existing}
        self._told_s = {labels: s for labels, s in self._told_s.items() if labels.part in existing}

    def _concerned(
        self, owner: VendorCards, error: PartError, divided: DividedCards, pods: Mapping[str, Pod]
    ) -> Iterator[PartErrorLabels]:
        """Whose error it is; each is told."""
        is_ignored = error.code in owner.harmless_errors
        about = [part for part in divided.parts if _is_about(error, part)]
        for part in about:
            pod = pods.get(part.pod_uid)
            labels = _labels(error, is_ignored=is_ignored, part=part, pod=pod)
            if pod is not None and not is_ignored and self._is_news(labels):
                self._node.notify(_note(error, part, divided, pod))
            yield labels
        if not about:
            labels = _labels(error, is_ignored=is_ignored)
            if self._is_news(labels):
                fields = kv(uuid=error.card, code=error.code, why=error.why)
                log.warning("part_error_of_nobody", extra=fields)
            yield labels

    def _is_news(self, labels: PartErrorLabels) -> bool:
        now_s, last_s = self._node.clock.monotonic(), self._told_s.get(labels)
        if last_s is not None and now_s - last_s < PAUSE_S:
            return False
        if len(self._told_s) >= MAX_KINDS:
            self._told_s.clear()
        self._told_s[labels] = now_s
        return True


def _is_about(error: PartError, part: PartView) -> bool:
    """Numbers are used again, so that the UUID counts too, where both have one."""
    if part.card != error.card or part.state is PartState.LOST or not error.numbers:
        return False
    is_same = not error.uuid or not part.uuid or error.uuid == part.uuid
    return is_same and part.numbers[: len(error.numbers)] == error.numbers


def _labels(
    error: PartError, *, is_ignored: bool, part: PartView | None = None, pod: Pod | None = None
) -> PartErrorLabels:
    return PartErrorLabels(
        namespace=pod.namespace if pod else "",
        pod=pod.name if pod else "",
        container=part.container if part and pod else "",
        uuid=error.card,
        part=part.uuid if part else "",
        xid=str(error.code),
        ignored="true" if is_ignored else "false",
    )


def _note(error: PartError, part: PartView, divided: DividedCards, pod: Pod) -> EventNote:
    index = next(card.index for card in divided.cards if card.uuid == part.card)
    of = f"container {part.container}, {part.kind} {part.uuid} of card {index}"
    return EventNote.about(pod, EVENT, f"{of}: {error.why}")
