"""Serve exactly the reserved slice: claim the container, check, prepare, commit; else refuse.

One call at a time on the whole node: kubelet admits one pod at a time, and two concurrent calls
could be granted the same memory. The order survives a kill at any point: the files, then the
ledger, then the pod's patch, then the response. If the response is lost and kubelet asks again,
the ledger has it. Everything ends by the call's deadline; what else there is to write is owed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from hami_node.clock import Deadline
from hami_node.engine.check import check_reservation, is_covered
from hami_node.engine.compat import Compat
from hami_node.engine.objection import Objection
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import (
    AllocationError,
    GrantMismatch,
    HamiError,
    NoPendingPod,
    WireError,
)
from hami_node.logs import kv
from hami_node.model import Ask, Device, Uuid
from hami_node.node.allocate.pod_writer import REFUSED_EVENT, PodWriter
from hami_node.node.cards.inventory import uuid_of
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.recorded import answer_text, grants_text
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.identity import CHOICE_S, Identity
from hami_node.node.identity.init_borrowing import lenders, lent
from hami_node.node.identity.refusals import RECREATE, sentence
from hami_node.ports import Clock
from hami_node.record.bounded import BoundedWork
from hami_node.record.ledger import Entry, Ledger
from hami_node.vendors.answer import ContainerResponse, Responder, Slice
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import asks_of, wishes_of

log = logging.getLogger(__name__)

UNLIMITED_EVENT: Final = "LimiterDisabled"
FILES_S: Final = 3.0
"""How long making a container's files may take, of the 10 s that kubelet waits."""


@dataclass(slots=True, kw_only=True)
class _Claim:
    """One call in progress: who it is for, once that is known, and what the ledger has of it."""

    candidate: Candidate | None = None
    entry: Entry | None = None
    result: str = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateRules:
    """The settings of an Allocate. They change with the configuration, all at once.

    Attributes:
        vendor: whose cards are asked for.
        vendors: all vendors, for a pod's asks and wishes.
    """

    vendor: VendorProtocol
    vendors: tuple[VendorProtocol, ...]
    compat: Compat


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorParts:
    """The dependencies of an allocator.

    Attributes:
        cards: the cards of the resource.
        usage: of these cards by the served containers of all pods but that with the given uid.
        resource: kubelet's name of it.
        one_at_a_time: held during each call, shared by the whole node.
        on_result: called with ok, repeated or refused, and the seconds it took.
    """

    identity: Identity
    live: LiveUse
    ledger: Ledger
    cards: Callable[[], tuple[Device, ...]]
    usage: Callable[[str], Mapping[Uuid, DeviceUsage]]
    writer: PodWriter
    responder: Responder
    rules: Callable[[], AllocateRules]
    clock: Clock
    resource: str
    one_at_a_time: threading.Lock
    on_result: Callable[[str, float], None] = lambda *_: None


class PodAllocator:
    """Answers kubelet for one resource. Its lock is held over I/O on purpose: see above."""

    def __init__(self, parts: AllocatorParts) -> None:
        """Use these parts."""
        self._parts = parts
        self._identity, self._live, self._writer = parts.identity, parts.live, parts.writer
        self._clock, self._one_at_a_time = parts.clock, parts.one_at_a_time
        self._files = BoundedWork(FILES_S, f"the folder with the files for {parts.resource}")

    def allocate(
        self, device_ids: Sequence[Sequence[str]], deadline: Deadline
    ) -> list[ContainerResponse]:
        """One response per container, in order.

        Raises:
            AllocationError: refused; the text is for the user.
        """
        if len(device_ids) > 1:
            # kubelet's list would show the first container as unserved to the second, too
            raise AllocationError(
                f"this call is for {len(device_ids)} containers at once, which no kubelet known to "
                f"hami-node makes: {RECREATE}"
            )
        with self._turn(deadline):
            return [self._serve(ids, deadline) for ids in device_ids]

    def renew(self) -> None:
        """We have registered again: kubelet may be another one than before."""
        self._identity.renew()

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """IDs on the reserved cards first, so that kubelet, scheduler and container agree.

        Raises:
            HamiError: the pod under admission is unknown.
        """
        with self._turn(deadline.at_most(CHOICE_S)):
            grants = self._identity.find_next(size, must, deadline).grants
        wanted = [grant.uuid for grant in grants]
        chosen = list(must)[:size]
        missing = list(wanted)
        for name in chosen:
            if uuid_of(name) in missing:
                missing.remove(uuid_of(name))
        free = [name for name in available if name not in chosen]
        for uuid in missing:
            pick = next((name for name in free if uuid_of(name) == uuid), None)
            if pick is not None and len(chosen) < size:
                chosen.append(pick)
                free.remove(pick)
        return (chosen + free)[:size]

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        """Wait for other calls on this node.

        Raises:
            AllocationError: they take too long.
        """
        if not self._one_at_a_time.acquire(timeout=deadline.left_s()):
            raise AllocationError(f"hami-node is still busy with another call: {RECREATE}")
        try:
            yield
        finally:
            self._one_at_a_time.release()

    def _serve(self, device_ids: Sequence[str], deadline: Deadline) -> ContainerResponse:
        rules = self._parts.rules()
        with self._claim(device_ids) as claim:
            candidate = claim.candidate = self._identity.find(device_ids, deadline)
            if candidate.problem:
                raise NoPendingPod(f"{candidate.name}: {candidate.problem}: {RECREATE}")
            ask = _ask(candidate, rules)
            if candidate.is_repeat:
                return self._repeat(claim, candidate, ask, rules, deadline)
            # A call that was not answered may have left an entry.
            word = rules.vendor.cards.word
            self._parts.ledger.remove(candidate.pod.uid, candidate.container.name, word)
            if candidate.is_borrowing:
                candidate = self._borrow(candidate, ask)
            self._check(candidate, ask, rules, deadline)
            response = self._respond(candidate, deadline)
            entry = self._entry(candidate, device_ids, response)
            self._parts.ledger.put(entry, deadline)
            claim.entry = entry
            self._writer.commit(candidate, deadline)
            self._identity.was_answered(candidate)
            claim.result = "ok"
        return response

    def _repeat(
        self,
        claim: _Claim,
        candidate: Candidate,
        ask: Ask,
        rules: AllocateRules,
        deadline: Deadline,
    ) -> ContainerResponse:
        """What the container was given before, to the byte, unless its files are gone since."""
        objection = is_covered(self._parts.usage(candidate.pod.uid), candidate.grants, ask)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection, rules.vendor.meanings))
        response = self._respond(candidate, deadline)  # its files may have been removed
        answer = candidate.answer
        if (
            answer is not None
            and answer != response
            and not self._files.do(partial(_has_its_files, answer), deadline)
        ):
            log.warning("answer_outdated", extra=kv(container=candidate.name))
            answer = None
        self._identity.was_answered(candidate)
        claim.result = "repeated"
        return answer or response

    def _entry(
        self, candidate: Candidate, device_ids: Sequence[str], response: ContainerResponse
    ) -> Entry:
        pod, vendor = candidate.pod, candidate.vendor
        grants, parts = grants_text(vendor, candidate.grants)
        return Entry(
            pod_uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=candidate.container.name,
            kind=candidate.container.kind.value,
            vendor=vendor.cards.word,
            resource=self._parts.resource,
            device_ids=tuple(sorted(device_ids)),
            grants=grants,
            parts=parts,
            lender=candidate.lender,
            answer=answer_text(response),
            limiter=response.limiter_version,
            time_s=self._clock.now(),
        )

    @contextmanager
    def _claim(self, device_ids: Sequence[str]) -> Iterator[_Claim]:
        """Mark the pod failed and free its lock on any error; report how it went."""
        claim = _Claim()
        began_s = self._clock.monotonic()
        try:
            yield claim
        except HamiError as e:
            self._refuse(claim, e)
            if isinstance(e, AllocationError):
                raise
            raise AllocationError(f"{_name(claim)}{e}: {RECREATE}") from e
        except Exception as e:  # any bug: kubelet gets a sentence, the pod its phase
            log.exception("allocate_broken")
            refusal = AllocationError(
                f"{_name(claim)}internal error in hami-node ({type(e).__name__}), see its log: "
                f"{RECREATE}"
            )
            self._refuse(claim, refusal)
            raise refusal from e
        finally:
            took_s = self._clock.monotonic() - began_s
            self._parts.on_result(claim.result, took_s)
            log.info(
                "allocate",
                extra=kv(
                    result=claim.result,
                    container=claim.candidate.name if claim.candidate else None,
                    devices=len(device_ids),
                    took_ms=round(took_s * 1e3, 1),
                ),
            )

    # -- check -------------------------------------------------------------------------------------
    def _borrow(self, candidate: Candidate, ask: Ask) -> Candidate:
        """Take the ask from the first app container whose grants cover it.

        Raises:
            GrantMismatch: no app container's grants cover it.
        """
        held = candidate.held.by_container
        cards = {card.uuid: card for card in self._parts.cards()}
        for lender in lenders(held, candidate.pod, ask.count):
            loan = lent(held[lender], ask, cards)
            if loan is not None:
                return replace(candidate, lender=lender, loan=loan)
        raise GrantMismatch(
            f"{candidate.name}: the scheduler reserved nothing for this init container, and no app "
            f"container's reservation covers what it asks for: ask for no more than the app "
            "containers do, then delete and recreate the pod"
        )

    def _check(
        self, candidate: Candidate, ask: Ask, rules: AllocateRules, deadline: Deadline
    ) -> None:
        """Check the reservation against the container's own limits and the cards' live use."""
        objection = self._objection(candidate, ask, rules)
        if objection is not None and self._identity.notice_ended(deadline):
            objection = self._objection(candidate, ask, rules)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection, rules.vendor.meanings))

    def _objection(self, candidate: Candidate, ask: Ask, rules: AllocateRules) -> Objection | None:
        pod = candidate.pod
        return check_reservation(
            self._parts.usage(pod.uid),
            candidate.grants,
            ask,
            wishes_of(pod.annotations, rules.vendors),
            rules.compat,
            own=self._live.of_pod(pod, rules.vendor),
        )

    def _respond(self, candidate: Candidate, deadline: Deadline) -> ContainerResponse:
        """The response, once the container's files are there.

        Raises:
            HamiError: it can't be limited, or the disk does not answer in time.
        """
        part = Slice(
            pod_uid=candidate.pod.uid,
            container=candidate.container,
            grants=candidate.grants,
            cards={card.uuid: card for card in self._parts.cards()},
        )
        responder = self._parts.responder
        response, warning = self._files.do(
            lambda: (responder.respond(part), responder.warning(part)), deadline
        )
        if candidate.is_repeat:
            return response
        if warning:
            self._writer.notify(candidate.pod, UNLIMITED_EVENT, warning)
        return response

    def _refuse(self, claim: _Claim, error: HamiError) -> None:
        """Note the refusal for the pod, unless the pod is unknown or was served before."""
        candidate, entry = claim.candidate, claim.entry
        name = candidate.name if candidate is not None else None
        log.warning("allocate_refused", extra=kv(container=name, error=str(error)))
        if entry is not None:
            self._parts.ledger.remove(*entry.key)
        if isinstance(error, NoPendingPod):
            for pod in error.candidates:
                self._writer.notify(pod, REFUSED_EVENT, str(error))
        if candidate is not None and not candidate.is_repeat:
            self._identity.was_refused(candidate.pod)
            self._writer.fail(candidate.pod, str(error))


def _has_its_files(answer: ContainerResponse) -> bool:
    """Where a mounted file is missing, the runtime would make a folder: no limit, silently."""
    return all(Path(mount.host_path).exists() for mount in answer.mounts)


def _name(claim: _Claim) -> str:
    return f"{claim.candidate.name}: " if claim.candidate is not None else ""


def _ask(candidate: Candidate, rules: AllocateRules) -> Ask:
    """What the container's own limits ask for.

    Raises:
        GrantMismatch: a limit has a value that can't be read.
    """
    try:
        asks = asks_of(candidate.container, rules.vendors)
    except WireError as e:
        raise GrantMismatch(f"{candidate.name}: {e}") from e
    for ask in asks:
        if ask.vendor is rules.vendor.cards:
            return ask
    raise GrantMismatch(f"{candidate.name}: it asks for no {rules.vendor.counted[0]}")
