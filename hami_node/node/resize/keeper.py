"""Carries out approved resizes, step by step, so that a kill between any two loses nothing.

What each pass finds of a pod, and what it does; the next pass finds the result:

| the ledger's note | the pod's approval | the pass |
|---|---|---|
| none, or of another decision | new | checks the cards' live use; notes the larger amounts: open |
| none | refused before: the note was lost | nothing |
| open | any | writes the limits, reads them back; where more is used: those before |
| open, the limits are in force | any | notes what the container holds from now on: over |
| open | gone, not possible, or about other containers | back to what was before: over |
| over | of this decision | writes state and reservation to the pod |
| over | any | compares the limits in force with the ledger, and writes what differs |
| none | any | the same, for a container in whose file another limit was seen |

So a limit in force is never larger than what the ledger counts: more is noted before it is written,
less afterwards. Limits that can't be written yet are tried again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from hami_node.engine.resize import growth_objection, with_container
from hami_node.engine.usage import PodGrants
from hami_node.errors import HamiError, WireError
from hami_node.logs import kv
from hami_node.model import Container, ContainerGrants, Pod
from hami_node.node.holdings.recorded import answer_of, answer_text
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.resize.enforcer import Enforcer, NotYet, resize_vendors
from hami_node.node.resize.pod_notes import PodNotes
from hami_node.node.resize.step import Step, step_of
from hami_node.node.resize.words import words_of
from hami_node.record.ledger import Entry, Key
from hami_node.vendors.resizing import no_room, with_slots
from hami_node.wire import names
from hami_node.wire.resize import (
    MAX_WORDS,
    Approval,
    Outcome,
    ResizeState,
    decision_id,
    decode_approval,
    decode_slot,
    decode_state,
    is_about,
)

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""Between two passes while there is a resized container, or one that waits."""
TURN_S: Final = 5.0
"""How long a pass waits for a call of kubelet's; then the next one tries again."""
_KEYS: Final = (names.POD_RESIZE, names.POD_RESIZE_APPROVED)


class _NotPossibleError(HamiError):
    """It is not carried out; the text is for people."""


class ResizeKeeper:
    """A step of the loop; it sleeps while nothing was resized and nobody asks."""

    def __init__(
        self,
        parts: NodeParts,
        cluster: ClusterParts,
        *,
        is_loaded: Callable[[], bool],
        on_settled: Callable[[], None],
    ) -> None:
        """Wire the sources.

        `is_loaded`: whether the ledger has been read; `on_settled` is called after it has changed.
        """
        self._parts, self._cluster, self._watched = parts, cluster, cluster.view
        self._is_loaded, self._on_settled = is_loaded, on_settled
        self._vendors = resize_vendors(parts)
        self._live, self._ledger, self._notes = cluster.live, cluster.ledger, PodNotes(cluster)
        self._limits = Enforcer(self._vendors, parts.cards, parts.clock)
        self._stop, self._compared_s = parts.stop, -math.inf
        self._is_busy = True
        self._suspects: Collection[Key] = ()

    def suspect(self, keys: Collection[Key]) -> None:
        """These containers may have more in force than the ledger counts: compared next."""
        self._suspects = keys

    def look_if_due(self) -> float | None:
        """One pass; seconds until the next one while there is something to keep, else None."""
        if not self._is_loaded():
            return None
        now_s = self._parts.clock.monotonic()
        is_due = now_s - self._compared_s >= INTERVAL_S
        self._compared_s = now_s if is_due else self._compared_s
        self.look(compares=is_due)
        left_s = self._compared_s + INTERVAL_S - self._parts.clock.monotonic()
        return max(left_s, 0.0) if self._is_busy else None

    def look(self, *, compares: bool = True) -> None:
        """One pass over the pods that ask and the containers that were resized.

        Without `compares` limits in force are not compared, but those of suspects: whoever can
        edit a pod can wake us all the time.
        """
        if self._watched.node() is None:
            return  # who decides here is not known
        noted = {entry.pod_uid for entry in self._ledger.entries() if entry.resize is not None}
        suspects, self._suspects = self._suspects, ()
        noted |= {uid for uid, _, _ in suspects}
        pods = [
            pod
            for pod in self._live.pods()
            if pod.uid in noted or any(key in pod.annotations for key in _KEYS)
        ]
        self._is_busy = bool(pods)
        for pod in pods:
            if pod.is_over:
                continue
            try:
                self._keep(pod, suspects, compares=compares)
            except HamiError as e:
                log.warning("resize_tried_again", extra=kv(pod=pod.key, error=str(e)))
            except Exception:  # a bug must not stop the others
                log.exception("resize_broken", extra=kv(pod=pod.key))

    def _keep(self, pod: Pod, suspects: Collection[Key], *, compares: bool) -> None:
        approval = self._approval(pod)
        wanted: Collection[str] = ()
        if approval is not None and not self._is_decided(pod, approval):
            wanted = self._carry_out(pod, approval)
        for entry in self._ledger.of_pod(pod.uid):
            is_noted = entry.resize is not None or entry.key in suspects
            if not is_noted or entry.vendor not in self._vendors:
                continue
            container = next((c for c in pod.containers if c.name == entry.container), None)
            if container is None:
                continue
            if entry.resize is None or not entry.resize.is_open:
                is_due = compares or entry.key in suspects
                if is_due and self._limits.keep(entry, container):
                    self._cluster.metrics.resizes.count("kept")
            elif entry.container not in wanted:
                self._roll_back(pod, entry, container)
        if approval is not None:
            self._report(pod, approval)
        self._explain_absence(pod)

    # -- an approval -------------------------------------------------------------------------------
    def _approval(self, pod: Pod) -> Approval | None:
        """The pod's approval; none where our extender does not decide: somebody else wrote it."""
        text = pod.annotations.get(names.POD_RESIZE_APPROVED)
        return decode_approval(text, pod.uid) if text and self._has_extender() else None

    def _has_extender(self) -> bool:
        node = self._watched.node()
        return node is not None and names.NODE_READ_BY in node.annotations

    def _is_over(self, pod: Pod, approval: Approval) -> bool:
        found = [self._ledger.find(pod.uid, name, approval.vendor) for name in approval.grants]
        notes = [entry.resize if entry is not None else None for entry in found]
        return all(note and note.id == approval.id and not note.is_open for note in notes)

    def _is_decided(self, pod: Pod, approval: Approval) -> bool:
        """Over by the ledger, or by what the pod was told where the ledger has lost it."""
        if self._is_over(pod, approval):
            return True
        state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
        if state is None or (state.id, state.state) != (approval.id, Outcome.REFUSED):
            return False
        notes = [entry.resize for entry in self._ledger.of_pod(pod.uid)]
        return not any(note and note.is_open for note in notes)

    def _carry_out(self, pod: Pod, approval: Approval) -> Collection[str]:
        """Do the next step; the containers that the approval is about, none if it can't be."""
        try:
            steps = self._steps(pod, approval)
        except _NotPossibleError as e:
            self._say(pod, approval.id, Outcome.REFUSED, str(e))
            return ()
        try:
            self._check(pod, steps)
            steps = self._begun(pod, approval, steps)
            if why := self._limits.apply(steps, self._stop):
                raise _NotPossibleError(why)
            self._finish([step.over(approval.id, step.target) for step in steps])
        except NotYet as e:
            self._say(pod, approval.id, Outcome.WAITING, str(e))
        except _NotPossibleError as e:
            self._refuse(pod, approval.id, steps, str(e))
        return approval.grants

    def _steps(self, pod: Pod, approval: Approval) -> list[Step]:
        """What the approval means for the containers on record.

        Raises:
            _NotPossibleError: the approval does not fit them: the extender did not make it.
        """
        vendor = self._vendors.get(approval.vendor)
        if vendor is None:
            raise _NotPossibleError(f"cards of {approval.vendor} can't be resized on this node")
        containers = {item.name: item for item in pod.containers}
        steps: list[Step] = []
        for name, text in sorted(approval.grants.items()):
            entry = self._ledger.find(pod.uid, name, approval.vendor)
            container = containers.get(name)
            if entry is None or container is None:
                raise _NotPossibleError(f"this node has no record of what container {name} holds")
            try:
                target = decode_slot(text, names.POD_RESIZE_APPROVED, vendor.protocol.cards)
            except WireError as e:
                raise _NotPossibleError(str(e)) from e
            step = step_of(vendor.protocol, container, entry, target)
            if isinstance(step, str):
                raise _NotPossibleError(step)
            steps.append(step)
        return steps

    def _check(self, pod: Pod, steps: Sequence[Step]) -> None:
        """Raise _NotPossibleError where the extender does not count it, or nothing limits it."""
        for step in steps:
            held = step.vendor.held_by(pod).by_container.get(step.container.name, ())
            if not _covers(held, step.target):
                name = step.container.name
                raise _NotPossibleError(f"the pod's reservation holds less for container {name}")
        if problem := self._limits.problem(steps):
            raise _NotPossibleError(problem)

    def _begun(self, pod: Pod, approval: Approval, steps: Sequence[Step]) -> list[Step]:
        """Note the larger amounts.

        Raises:
            _NotPossibleError: the cards have no room for them.
            RecordError: they can't be written.
        """
        begun = [step.begun(approval.id) for step in steps]
        over = [step.over(approval.id, step.target) for step in steps]
        with self._turn():
            before = self._live.holders().get(pod.uid)
            if before is None:
                raise _NotPossibleError("the pod has ended")
            objection = growth_objection(
                self._live.cards(self._parts.cards(), leave_out=pod.uid),
                before,
                _with_steps(pod, before, begun),
            )
            if objection is not None:
                raise _NotPossibleError(no_room(objection))
            if len(words_of(_replaced(self._ledger.entries(), over))) > MAX_WORDS:
                raise _NotPossibleError("too many containers of this node were resized")
            self._ledger.put_all([step.entry for step in begun])
        return begun

    # -- the end -----------------------------------------------------------------------------------
    def _finish(self, steps: Sequence[Step]) -> None:
        """Note what the containers hold, and the answers that repeated calls get."""
        entries = []
        for step in steps:
            answer = answer_of(step.entry)
            text = "" if answer is None else answer_text(self._limits.answer(step, answer))
            entries.append(replace(step.entry, answer=text))
        self._ledger.put_all(entries)
        self._on_settled()

    def _refuse(self, pod: Pod, decision: str, steps: Sequence[Step], why: str) -> None:
        """Leave everything as it was before, as far as that is possible now."""
        back = [step.back() for step in self._as_noted(steps)]
        ends = [step.before for step in back]
        try:
            if any(step.is_begun for step in back) and self._limits.apply(back, self._stop):
                ends = [step.held for step in back]  # more is used than before: that stays
                for step in back:
                    self._limits.write(step, step.held)
            self._finish(
                [step.over(decision, end, why) for step, end in zip(back, ends, strict=True)]
            )
        except NotYet as e:
            self._say(pod, decision, Outcome.WAITING, str(e))

    def _as_noted(self, steps: Sequence[Step]) -> list[Step]:
        """The steps with their entries as the ledger has them by now."""
        entries = [self._ledger.find(*step.entry.key) or step.entry for step in steps]
        return [replace(step, entry=entry) for step, entry in zip(steps, entries, strict=True)]

    def _roll_back(self, pod: Pod, entry: Entry, container: Container) -> None:
        """An approval that is gone, or was replaced by another, while it was carried out."""
        vendor, note = self._vendors[entry.vendor].protocol, entry.resize
        step = step_of(vendor, container, entry, entry.grants)
        if note is not None and isinstance(step, Step):
            self._refuse(pod, note.id, [step], "its approval was taken back")

    def _report(self, pod: Pod, approval: Approval) -> None:
        """Write to the pod how it ended, with the reservation as the ledger has it."""
        vendor = self._vendors.get(approval.vendor)
        if vendor is None or not self._is_over(pod, approval):
            return
        own = [item for item in self._ledger.of_pod(pod.uid) if item.vendor == approval.vendor]
        noted = [item for item in own if item.resize is not None and not item.resize.is_open]
        held = {item.container: item.grants for item in noted}
        notes = [item.resize for item in noted if item.resize is not None]
        why = next((note.refusal for note in notes if note.id == approval.id and note.refusal), "")
        texts: dict[str, str] = {}
        if reservation := with_slots(vendor.protocol, pod, held):
            texts[vendor.protocol.keys.grants.allocated] = reservation
        outcome = Outcome.REFUSED if why else Outcome.DONE
        self._say(pod, approval.id, outcome, why or _in_words(held), texts)

    def _explain_absence(self, pod: Pod) -> None:
        """Where no extender of ours decides, nobody would ever answer the request."""
        text = pod.annotations.get(names.POD_RESIZE)
        if text is None or self._has_extender() or pod.phase != "Running":
            return
        state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
        if state is not None and is_about(state.id, text):
            return
        decision = decision_id(text, pod.resource_version)
        why = "that takes hami-node's extender, and another scheduler places the pods of this node"
        self._say(pod, decision, Outcome.REFUSED, why)

    def _say(
        self,
        pod: Pod,
        decision: str,
        outcome: Outcome,
        why: str,
        reservation: Mapping[str, str] | None = None,
    ) -> None:
        self._notes.tell(pod, ResizeState(id=decision, state=outcome, why=why), reservation)

    # -- what is there -----------------------------------------------------------------------------
    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._cluster.one_at_a_time.acquire(timeout=TURN_S):
            raise NotYet("a call of kubelet's is being answered")
        try:
            yield
        finally:
            self._cluster.one_at_a_time.release()


def _covers(held: ContainerGrants, wanted: ContainerGrants) -> bool:
    """True where the extender counts at least what is wanted."""
    have = {grant.uuid: (grant.memory_mib, grant.cores) for grant in held}
    return all(
        grant.memory_mib <= have.get(grant.uuid, (-1, -1))[0]
        and grant.cores <= have.get(grant.uuid, (-1, -1))[1]
        for grant in wanted
    )


def _with_steps(pod: Pod, held: PodGrants, steps: Sequence[Step]) -> PodGrants:
    """What the pod holds with these steps; both are in the order of its containers."""
    places = [container.name for container in pod.containers]
    for step in steps:
        held = with_container(held, places.index(step.container.name), step.held)
    return held


def _replaced(entries: Sequence[Entry], steps: Sequence[Step]) -> list[Entry]:
    new = {step.entry.key: step.entry for step in steps}
    return [new.get(entry.key, entry) for entry in entries]


def _in_words(held: Mapping[str, ContainerGrants]) -> str:
    return "; ".join(
        f"container {name} has "
        + ", ".join(f"{grant.memory_mib} MiB, {grant.cores} % of {grant.uuid}" for grant in grants)
        for name, grants in sorted(held.items())
    )
