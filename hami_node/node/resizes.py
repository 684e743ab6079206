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
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.resize import growth_objection, with_container
from hami_node.engine.usage import larger_of
from hami_node.errors import Conflict, HamiError, KubeError, NotFound, RegionError, WireError
from hami_node.logs import kv
from hami_node.model import Container, ContainerGrants, ContainerKind, Pod, Uuid
from hami_node.node.holdings.recorded import answer_of, answer_text
from hami_node.node.state import NodeState
from hami_node.ports import EventNote
from hami_node.record.ledger import Entry, Key, ResizeNote
from hami_node.vendors.on_node.answer import Slice
from hami_node.vendors.on_node.limits import CardLimit, LimitWriter
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.resizing import no_room, with_slots
from hami_node.wire import names
from hami_node.wire.resize import (
    MAX_WORDS,
    Approval,
    Outcome,
    ResizeState,
    Word,
    decision_id,
    decode_approval,
    decode_slot,
    decode_state,
    encode_slot,
    encode_state,
    encode_words,
    is_about,
)
from hami_node.wire.values import annotation_pointer

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
"""Between two passes while there is a resized container, or one that waits."""
TURN_S: Final = 5.0
"""How long a pass waits for a call of kubelet's; then the next one tries again."""
SETTLE_S: Final = 0.3
"""An allocation that was allowed under the old limit is counted by then."""
RESIZED_EVENT: Final = "Resized"
REFUSED_EVENT: Final = "ResizeRefused"
_KEYS: Final = (names.POD_RESIZE, names.POD_RESIZE_APPROVED)


class _NotYetError(HamiError):
    """It can't be carried out now; a later pass tries again."""


class _NotPossibleError(HamiError):
    """It is not carried out; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeVendor:
    """A vendor whose running containers can be resized."""

    protocol: VendorProtocol
    writer: LimitWriter


def resize_vendors(node: NodeState) -> dict[str, ResizeVendor]:
    """The vendors whose running containers can be resized here, by their words."""
    return {
        protocol.cards.word: ResizeVendor(protocol=protocol, writer=owner.limit_writer)
        for owner, protocol in zip(node.vendor_cards, node.served, strict=True)
        if owner.limit_writer is not None and protocol.resize_words is not None
    }


def words_of(entries: Iterable[Entry]) -> str:
    """The node's annotation: what every container holds whose resize is over, or was refused here.

    The extender frees by it.
    """
    words: dict[str, dict[str, Word]] = {}
    for entry in entries:
        if entry.resize is not None and not entry.resize.is_open and entry.container:
            word = Word(id=entry.resize.id, vendor=entry.vendor, grants=encode_slot(entry.grants))
            words.setdefault(entry.pod_uid, {})[entry.container] = word
    return encode_words(words)


# -- a container whose limits change -----------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a container held, what it shall hold, what counts meanwhile.

    Attributes:
        entry: of the ledger; its grants count.
        before: what it held when this began: an open note of the ledger remembers it.
        target: what it shall hold.
    """

    vendor: ResizeVendor
    container: Container
    entry: Entry
    before: ContainerGrants
    target: ContainerGrants

    @property
    def held(self) -> ContainerGrants:
        """What counts now."""
        return self.entry.grants

    @property
    def is_begun(self) -> bool:
        """True where an earlier pass has noted it, and may have written limits."""
        return self.entry.resize is not None and self.entry.resize.is_open

    def begun(self, decision: str) -> _Change:
        """With the larger amounts on its entry: they count until it is over."""
        note = ResizeNote(id=decision, before=self.before)
        return self._with(larger_of(self.held, self.target), note)

    def over(self, decision: str, grants: ContainerGrants, refusal: str = "") -> _Change:
        """With what the container holds in the end."""
        return self._with(grants, ResizeNote(id=decision, refusal=refusal))

    def _with(self, grants: ContainerGrants, note: ResizeNote) -> _Change:
        return replace(self, entry=replace(self.entry, grants=grants, resize=note))

    def less_mib(self) -> dict[Uuid, int]:
        """The cards of which it shall hold less memory than counts now, and how much."""
        pairs = zip(self.held, self.target, strict=True)
        return {new.uuid: new.memory_mib for old, new in pairs if new.memory_mib < old.memory_mib}

    def overused(self, limits: Sequence[CardLimit]) -> str:
        """Where the container uses more than it shall hold, for people; "" where it does not.

        Only a card on which it is to hold less than counts now: elsewhere that is no worse.
        """
        less_mib = self.less_mib()
        for limit in limits:
            wanted = less_mib.get(limit.uuid)
            if wanted is not None and limit.used_mib > wanted:
                return (
                    f"container {self.container.name} uses {limit.used_mib} MiB of card "
                    f"{limit.uuid}, more than the {wanted} MiB it shall have"
                )
        return ""


def _change(
    vendor: ResizeVendor, container: Container, entry: Entry, target: ContainerGrants
) -> _Change:
    """From what the ledger has to `target`.

    An approval may be forged where no policy protects it: it names the very cards that the
    container holds, and amounts that mean a limit.

    Raises:
        _NotPossibleError: it can't be changed so.
    """
    name = container.name
    if container.kind is ContainerKind.INIT or entry.lender != name:
        raise _NotPossibleError(f"container {name} has no reservation of its own")
    if entry.problem:
        raise _NotPossibleError(entry.problem)
    held = before = entry.grants
    if entry.resize is not None and entry.resize.is_open:
        before = entry.resize.before
    if any(grant.part is not None for grant in held):
        raise _NotPossibleError(
            f"container {name} holds a part of a divided card, whose size is fixed"
        )
    if [grant.uuid for grant in target] != [grant.uuid for grant in held]:
        raise _NotPossibleError(f"the approval names other cards than container {name} holds")
    for new, old in zip(target, before, strict=True):
        if not old.memory_mib and new.memory_mib:
            raise _NotPossibleError(f"container {name} has no memory limit that could change")
        is_memory_ok = new.memory_mib > 0 or new.memory_mib == old.memory_mib
        is_cores_ok = 0 < new.cores <= 100 or new.cores == old.cores
        if not (is_memory_ok and is_cores_ok):
            raise _NotPossibleError(f"the approval would lift a limit of container {name}")
    return _Change(vendor=vendor, container=container, entry=entry, before=before, target=target)


# -- the step --------------------------------------------------------------------------------------
class Resizes:
    """A step of the loop; it sleeps while nothing was resized and nobody asks."""

    def __init__(self, node: NodeState) -> None:
        """Nothing is compared yet."""
        self._node, self._vendors = node, resize_vendors(node)
        self._compared_s, self._is_busy = -math.inf, True
        self._suspects: Collection[Key] = ()

    def suspect(self, keys: Collection[Key]) -> None:
        """These containers may have more in force than the ledger counts: compared next."""
        self._suspects = keys
        if keys:
            self._node.wake("resizes")

    def look(self) -> float | None:
        """One pass; seconds until the next one while there is something to keep, else None.

        Limits in force are compared only now and then, but those of suspects at once: whoever can
        edit a pod can wake us all the time.
        """
        if not self._node.recorded.is_set():
            return None
        now_s = self._node.clock.monotonic()
        is_due = now_s - self._compared_s >= INTERVAL_S
        self._compared_s = now_s if is_due else self._compared_s
        if self._node.view.node() is not None:  # else it is not known who decides here
            self._look_at_pods(compares=is_due)
        left_s = self._compared_s + INTERVAL_S - self._node.clock.monotonic()
        return max(left_s, 0.0) if self._is_busy else None

    def _look_at_pods(self, *, compares: bool) -> None:
        """One pass over the pods that ask and the containers that were resized."""
        node = self._node
        noted = {entry.pod_uid for entry in node.ledger.entries() if entry.resize is not None}
        suspects, self._suspects = self._suspects, ()
        noted |= {uid for uid, _, _ in suspects}
        pods = [
            pod
            for pod in node.live.pods()
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
        containers = {container.name: container for container in pod.containers}
        for entry in self._node.ledger.of_pod(pod.uid):
            note, vendor = entry.resize, self._vendors.get(entry.vendor)
            container = containers.get(entry.container)
            is_suspect = entry.key in suspects
            if vendor is None or container is None or (note is None and not is_suspect):
                continue
            if note is None or not note.is_open:
                if compares or is_suspect:
                    self._compare(vendor, container, entry)
            elif entry.container not in wanted:
                # its approval is gone, or was replaced by another, while it was carried out
                with suppress(_NotPossibleError):  # nor can it be put back
                    change = _change(vendor, container, entry, entry.grants)
                    self._refuse(pod, note.id, [change], "its approval was taken back")
        if approval is not None:
            self._report(pod, approval)
        self._explain_absence(pod)

    # -- an approval -------------------------------------------------------------------------------
    def _approval(self, pod: Pod) -> Approval | None:
        """The pod's approval; none where our extender does not decide: somebody else wrote it."""
        text = pod.annotations.get(names.POD_RESIZE_APPROVED)
        return decode_approval(text, pod.uid) if text and self._has_extender() else None

    def _has_extender(self) -> bool:
        node = self._node.view.node()
        return node is not None and names.NODE_READ_BY in node.annotations

    def _is_over(self, pod: Pod, approval: Approval) -> bool:
        ledger = self._node.ledger
        found = [ledger.find(pod.uid, name, approval.vendor) for name in approval.grants]
        notes = [entry.resize if entry is not None else None for entry in found]
        return all(note and note.id == approval.id and not note.is_open for note in notes)

    def _is_decided(self, pod: Pod, approval: Approval) -> bool:
        """Over by the ledger, or by what the pod was told where the ledger has lost it."""
        if self._is_over(pod, approval):
            return True
        state = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
        if state is None or (state.id, state.state) != (approval.id, Outcome.REFUSED):
            return False
        notes = [entry.resize for entry in self._node.ledger.of_pod(pod.uid)]
        return not any(note and note.is_open for note in notes)

    def _carry_out(self, pod: Pod, approval: Approval) -> Collection[str]:
        """Do the next step; the containers that the approval is about, none if it can't be."""
        try:
            changes = self._changes(pod, approval)
        except _NotPossibleError as e:
            self._say(pod, approval.id, Outcome.REFUSED, str(e))
            return ()
        try:
            self._check(pod, changes)
            changes = self._begun(pod, approval, changes)
            if why := self._apply(changes):
                raise _NotPossibleError(why)
            self._finish([change.over(approval.id, change.target) for change in changes])
        except _NotYetError as e:
            self._say(pod, approval.id, Outcome.WAITING, str(e))
        except _NotPossibleError as e:
            self._refuse(pod, approval.id, changes, str(e))
        return approval.grants

    def _changes(self, pod: Pod, approval: Approval) -> list[_Change]:
        """What the approval means for the containers on record.

        Raises:
            _NotPossibleError: the approval does not fit them: the extender did not make it.
        """
        vendor = self._vendors.get(approval.vendor)
        if vendor is None:
            raise _NotPossibleError(f"cards of {approval.vendor} can't be resized on this node")
        containers = {item.name: item for item in pod.containers}
        changes: list[_Change] = []
        for name, text in sorted(approval.grants.items()):
            entry = self._node.ledger.find(pod.uid, name, approval.vendor)
            container = containers.get(name)
            if entry is None or container is None:
                raise _NotPossibleError(f"this node has no record of what container {name} holds")
            try:
                target = decode_slot(text, names.POD_RESIZE_APPROVED, vendor.protocol.cards)
            except WireError as e:
                raise _NotPossibleError(str(e)) from e
            changes.append(_change(vendor, container, entry, target))
        return changes

    def _check(self, pod: Pod, changes: Sequence[_Change]) -> None:
        """Raise _NotPossibleError where the extender does not count it, or nothing limits it."""
        for change in changes:
            name = change.container.name
            held = change.vendor.protocol.held_by(pod).by_container.get(name, ())
            if not _covers(held, change.target):
                raise _NotPossibleError(f"the pod's reservation holds less for container {name}")
        for change in changes:
            part = Slice(pod_uid=pod.uid, container=change.container, grants=change.target)
            if problem := change.vendor.writer.problem(part, answer_of(change.entry)):
                raise _NotPossibleError(problem)

    def _begun(self, pod: Pod, approval: Approval, changes: Sequence[_Change]) -> list[_Change]:
        """Note the larger amounts.

        Raises:
            _NotPossibleError: the cards have no room for them.
            _NotYetError: a call of kubelet's is being answered.
            RecordError: they can't be written.
        """
        node = self._node
        begun = [change.begun(approval.id) for change in changes]
        ends = [change.over(approval.id, change.target).entry for change in changes]
        if not node.one_at_a_time.acquire(timeout=TURN_S):
            raise _NotYetError("a call of kubelet's is being answered")
        try:
            before = held = node.live.holders().get(pod.uid)
            if before is None or held is None:
                raise _NotPossibleError("the pod has ended")
            places = [container.name for container in pod.containers]  # in the order of the grants
            for change in begun:
                held = with_container(held, places.index(change.container.name), change.held)
            usage = node.live.cards(node.cards(), leave_out=pod.uid)
            objection = growth_objection(usage, before, held)
            if objection is not None:
                raise _NotPossibleError(no_room(objection))
            entries = {entry.key: entry for entry in (*node.ledger.entries(), *ends)}
            if len(words_of(entries.values())) > MAX_WORDS:
                raise _NotPossibleError("too many containers of this node were resized")
            node.ledger.put_all([change.entry for change in begun])
        finally:
            node.one_at_a_time.release()
        return begun

    # -- the limits in force -----------------------------------------------------------------------
    def _apply(self, changes: Sequence[_Change]) -> str:
        """Put the targets into force; why they can't stay so, "" if they can.

        Raises:
            _NotYetError: not all could be written, or something else stands there.
        """
        for change in changes:
            self._write(change, change.target)
        is_less = any(change.less_mib() for change in changes)
        if is_less and self._node.clock.wait(self._node.stop, SETTLE_S):
            raise _NotYetError("hami-node is being restarted")
        found = [self._in_force(change) for change in changes]
        reasons = (change.overused(limits) for change, limits in zip(changes, found, strict=True))
        return next(filter(None, reasons), "")

    def _write(self, change: _Change, grants: ContainerGrants) -> None:
        try:
            change.vendor.writer.write(self._slice(change.container, change.entry, grants))
        except RegionError as e:
            raise _NotYetError(f"the usage file of container {change.container.name} {e}") from e

    def _in_force(self, change: _Change) -> tuple[CardLimit, ...]:
        part = self._slice(change.container, change.entry, change.target)
        writer, name = change.vendor.writer, change.container.name
        try:
            found = writer.read(part)
        except RegionError as e:
            raise _NotYetError(f"the usage file of container {name} {e}") from e
        if _limits(found) != _limits(writer.wanted(part)):
            raise _NotYetError(f"container {name} has overwritten its limits")
        return found

    def _compare(self, vendor: ResizeVendor, container: Container, entry: Entry) -> None:
        """Compare the limits in force with the ledger, and write what differs."""
        try:
            is_written = vendor.writer.keep(self._slice(container, entry, entry.grants))
        except (RegionError, _NotYetError) as e:
            log.debug("limits_not_compared", extra=kv(container=entry.name, why=str(e)))
            return
        if is_written:
            fields = kv(container=entry.name, grants=encode_slot(entry.grants))
            log.warning("limits_written_again", extra=fields)
            self._node.metrics.resizes.count("kept")

    def _slice(self, container: Container, entry: Entry, grants: ContainerGrants) -> Slice:
        cards = {card.uuid: card for card in self._node.cards()}
        if missing := [grant.uuid for grant in grants if grant.uuid not in cards]:
            raise _NotYetError(f"card {', '.join(missing)} is not found now")
        return Slice(pod_uid=entry.pod_uid, container=container, grants=grants, cards=cards)

    # -- the end -----------------------------------------------------------------------------------
    def _finish(self, changes: Sequence[_Change]) -> None:
        """Note what the containers hold, and the answers that repeated calls get."""
        entries = []
        for change in changes:
            entry, text = change.entry, ""
            if (answer := answer_of(entry)) is not None:
                part = self._slice(change.container, entry, change.held)
                text = answer_text(change.vendor.writer.answer(answer, part))
            entries.append(replace(entry, answer=text))
        self._node.ledger.put_all(entries)
        self._node.wake("report")

    def _refuse(self, pod: Pod, decision: str, changes: Sequence[_Change], why: str) -> None:
        """Leave everything as it was before, as far as that is possible now."""
        find = self._node.ledger.find
        back = [
            replace(change, entry=find(*change.entry.key) or change.entry, target=change.before)
            for change in changes
        ]
        ends = [change.before for change in back]
        try:
            if any(change.is_begun for change in back) and self._apply(back):
                ends = [change.held for change in back]  # more is used than before: that stays
                for change in back:
                    self._write(change, change.held)
            self._finish(
                [change.over(decision, end, why) for change, end in zip(back, ends, strict=True)]
            )
        except _NotYetError as e:
            self._say(pod, decision, Outcome.WAITING, str(e))

    # -- what the pod is told ----------------------------------------------------------------------
    def _report(self, pod: Pod, approval: Approval) -> None:
        """Write to the pod how it ended, with the reservation as the ledger has it."""
        vendor = self._vendors.get(approval.vendor)
        if vendor is None or not self._is_over(pod, approval):
            return
        held: dict[str, ContainerGrants] = {}
        why = ""
        for entry in self._node.ledger.of_pod(pod.uid):
            note = entry.resize
            if entry.vendor == approval.vendor and note is not None and not note.is_open:
                held[entry.container] = entry.grants
                why = why or (note.refusal if note.id == approval.id else "")
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
        """Write how far a resize is, and with that the reservation; nothing that stands there.

        Never raises: what is not written now is written by a later pass. The patch names what it
        was decided on.
        """
        known = decode_state(pod.annotations.get(names.POD_RESIZE_STATE, ""))
        if known is not None and (known.id, known.state) == (decision, outcome):
            return
        state = ResizeState(id=decision, state=outcome, why=why)
        texts = {names.POD_RESIZE_STATE: encode_state(state), **(reservation or {})}
        tested = (*_KEYS, *(reservation or {}))
        patch: list[Mapping[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            *(
                {"op": "test", "path": annotation_pointer(key), "value": pod.annotations[key]}
                for key in tested
                if key in pod.annotations
            ),
            *(
                {"op": "add", "path": annotation_pointer(key), "value": text}
                for key, text in texts.items()
            ),
        ]
        try:
            self._node.live.patched(self._node.kube.json_patch_pod(pod.namespace, pod.name, patch))
        except KubeError as e:
            is_usual = isinstance(e, Conflict | NotFound)
            level = logging.DEBUG if is_usual else logging.WARNING
            log.log(level, "resize_state_not_written", extra=kv(pod=pod.key, error=str(e)))
            return
        if outcome is not Outcome.WAITING:
            self._announce(pod, state)

    def _announce(self, pod: Pod, state: ResizeState) -> None:
        is_done = state.state is Outcome.DONE
        self._node.metrics.resizes.count("resized" if is_done else "refused")
        message = state.why if is_done else f"the pod is not resized: {state.why}"
        log.info("resize_over", extra=kv(pod=pod.key, state=state.state, why=state.why))
        note = EventNote.about(pod, RESIZED_EVENT if is_done else REFUSED_EVENT, message)
        self._node.notify(replace(note, is_warning=not is_done))


def _covers(held: ContainerGrants, wanted: ContainerGrants) -> bool:
    """True where the extender counts at least what is wanted."""
    have = {grant.uuid: (grant.memory_mib, grant.cores) for grant in held}
    return all(
        grant.memory_mib <= have.get(grant.uuid, (-1, -1))[0]
        and grant.cores <= have.get(grant.uuid, (-1, -1))[1]
        for grant in wanted
    )


def _limits(limits: Sequence[CardLimit]) -> list[tuple[Uuid, int, int]]:
    return [(limit.uuid, limit.memory_mib, limit.cores) for limit in limits]


def _in_words(held: Mapping[str, ContainerGrants]) -> str:
    return "; ".join(
        f"container {name} has "
        + ", ".join(f"{grant.memory_mib} MiB, {grant.cores} % of {grant.uuid}" for grant in grants)
        for name, grants in sorted(held.items())
    )
