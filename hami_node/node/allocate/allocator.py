"""Serve exactly the reserved slice: claim the container, check, prepare, commit; else refuse.

One call at a time on the whole node: kubelet admits one pod at a time, and two concurrent calls
could be granted the same memory. The order survives a kill at any point: parts of divided cards,
the files, then the ledger, then the pod's patch, then the response. If the response is lost and
kubelet asks again, the ledger has it. Everything ends by the call's deadline; what else there is to
write is found missing, and written, by the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from hami_node.clock import Deadline
from hami_node.engine.compat import COMPATS
from hami_node.errors import (
    AllocationError,
    BackendError,
    DeviceLost,
    GrantMismatch,
    HamiError,
    NodeUnfit,
    NoPendingPod,
    PodTooLarge,
    RecordError,
)
from hami_node.logs import kv
from hami_node.model import Ask
from hami_node.node.allocate.divided import PartMaker, is_about
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.pod_writer import REFUSED_EVENT, PodWriter
from hami_node.node.allocate.shares import ShareTerms
from hami_node.node.allocate.terms import AllocateRules, CardState, ReservedTerms, Terms
from hami_node.node.holdings.recorded import answer_text
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.identity import CHOICE_S, Identity
from hami_node.node.identity.refusals import RECREATE, sentence
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.resource import NodeResource
from hami_node.node.vendor_cards import VendorCards
from hami_node.record.bounded import BoundedWork
from hami_node.record.ledger import Entry
from hami_node.vendors.on_node.answer import ContainerResponse, Slice
from hami_node.vendors.spec import protocol_of, protocols_of

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


class PodAllocator:
    """Answers kubelet for one resource. Its lock is held over I/O on purpose: see above."""

    def __init__(
        self,
        parts: NodeParts,
        cluster: ClusterParts,
        owner: VendorCards,
        resource: NodeResource,
        locks: LockKeeper,
    ) -> None:
        """Serve a resource of the owner's cards."""
        self._parts, self._cluster, self._owner, self._resource = parts, cluster, owner, resource
        self._ledger, self._clock = cluster.ledger, parts.clock
        settings = parts.settings()
        vendor = protocol_of(resource.vendor, settings)
        self._identity = Identity(
            cluster,
            vendor,
            resource.name,
            node_name=settings.node_name,
            lock_owner=locks.owner_now,
        )
        self._writer = PodWriter(cluster, locks)
        state = CardState(parts, cluster.live, resource)
        self._terms: Terms = (
            ShareTerms(state, vendor, self._writer)
            if vendor.is_fixed(resource.name)
            else ReservedTerms(state, self._identity, self._writer)
        )
        self._files = BoundedWork(FILES_S, f"the folder with the files for {resource.name}")
        self._maker = PartMaker(owner, resource.name, cluster.live)

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
        """The device IDs that kubelet should take.

        Raises:
            HamiError: the pod under admission is unknown.
        """
        with self._turn(deadline.at_most(CHOICE_S)):
            return self._terms.prefer(available, must, size, deadline)

    def _rules(self) -> AllocateRules:
        """As the settings in force have them, all at once."""
        now = self._parts.settings()
        return AllocateRules(
            vendor=protocol_of(self._resource.vendor, now),
            vendors=protocols_of(self._parts.vendors, now),
            compat=COMPATS[now.compat.value],
        )

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        """Wait for other calls on this node.

        Raises:
            AllocationError: they take too long.
        """
        if not self._cluster.one_at_a_time.acquire(timeout=deadline.left_s()):
            raise AllocationError(f"hami-node is still busy with another call: {RECREATE}")
        try:
            yield
        finally:
            self._cluster.one_at_a_time.release()

    def _serve(self, device_ids: Sequence[str], deadline: Deadline) -> ContainerResponse:
        rules = self._rules()
        with self._claim(device_ids) as claim:
            candidate = claim.candidate = self._identity.find(device_ids, deadline)
            if candidate.problem:
                raise NoPendingPod(f"{candidate.name}: {candidate.problem}: {RECREATE}")
            ask = self._terms.ask(candidate, rules)
            candidate = claim.candidate = self._terms.granted(candidate, ask, device_ids)
            if candidate.is_repeat:
                return self._repeat(claim, candidate, ask, rules, deadline)
            # A call that was not answered may have left an entry.
            word = rules.vendor.cards.word
            self._ledger.remove(candidate.pod.uid, candidate.container.name, word)
            self._check(candidate, ask, rules, deadline)
            granted = self._granted(candidate, deadline)
            candidate = claim.candidate = replace(candidate, made=granted.made)
            response = self._respond(candidate, granted, deadline)
            entry = self._entry(candidate, device_ids, response)
            self._ledger.put(entry, deadline)
            claim.entry = entry
            self._terms.commit(candidate, deadline, response.limiter_version)
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
        objection = self._terms.repeat_objection(candidate, ask)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection, rules.vendor.meanings))
        granted = self._granted(candidate, deadline)
        response = self._respond(candidate, granted, deadline)  # its files may have been removed
        answer = candidate.answer
        if (
            answer is not None
            and answer != response
            and not (
                is_about(answer, granted.made)
                and self._files.do(partial(_has_its_files, answer), deadline)
            )
        ):
            log.warning("answer_outdated", extra=kv(container=candidate.name))
            answer = None
        if answer is None:
            self._note_answer(candidate, rules, response, deadline)
        self._identity.was_answered(candidate)
        claim.result = "repeated"
        return answer or response

    def _note_answer(
        self,
        candidate: Candidate,
        rules: AllocateRules,
        response: ContainerResponse,
        deadline: Deadline,
    ) -> None:
        """From now on the container has this answer. Raises RecordError."""
        ledger, word = self._ledger, rules.vendor.cards.word
        entry = ledger.find(candidate.pod.uid, candidate.container.name, word)
        if entry is not None:
            answer, limiter = answer_text(response), response.limiter_version
            ledger.put(replace(entry, answer=answer, limiter=limiter), deadline)

    def _entry(
        self, candidate: Candidate, device_ids: Sequence[str], response: ContainerResponse
    ) -> Entry:
        pod, vendor = candidate.pod, candidate.vendor
        return Entry(
            pod_uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=candidate.container.name,
            kind=candidate.container.kind,
            vendor=vendor.cards.word,
            resource=self._resource.name,
            device_ids=tuple(sorted(device_ids)),
            grants=candidate.grants,
            lender=candidate.lender,
            answer=answer_text(response),
            limiter=response.limiter_version,
            is_aligned=self._resource.is_aligned(),
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
            is_nodes = isinstance(e, BackendError | RecordError) and not isinstance(
                e, DeviceLost | PodTooLarge
            )
            refusal_of = NodeUnfit if is_nodes else AllocationError
            raise refusal_of(f"{_name(claim)}{e}: {RECREATE}") from e
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
            self._resource.update_hints(self._ledger.entries())  # before the next one is admitted
            self._cluster.metrics.count_allocate(claim.result, took_s)
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
    def _check(
        self, candidate: Candidate, ask: Ask, rules: AllocateRules, deadline: Deadline
    ) -> None:
        """Check the reservation against the container's own limits and the cards' live use."""
        objection = self._terms.objection(candidate, ask, rules)
        if objection is not None and self._identity.notice_ended(deadline):
            objection = self._terms.objection(candidate, ask, rules)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection, rules.vendor.meanings))

    def _granted(self, candidate: Candidate, deadline: Deadline) -> Slice:
        """What the container gets, once the parts of cards that it names exist.

        Raises:
            AllocationError: one of them can't be made.
        """
        granted = Slice(
            pod_uid=candidate.pod.uid,
            container=candidate.container,
            grants=candidate.grants,
            cards={card.uuid: card for card in self._resource.inventory.cards},
        )
        return self._maker.with_made(granted, candidate, deadline)

    def _respond(
        self, candidate: Candidate, granted: Slice, deadline: Deadline
    ) -> ContainerResponse:
        """The response, once the container's files are there.

        Raises:
            HamiError: it can't be limited, or the disk does not answer in time.
        """
        responder = self._owner.responder
        response, warning = self._files.do(
            lambda: (responder.respond(granted), responder.warning(granted)), deadline
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
            self._ledger.remove(*entry.key)
        if isinstance(error, NoPendingPod):
            for pod in error.candidates:
                self._writer.notify(pod, REFUSED_EVENT, str(error))
        if candidate is not None and not candidate.is_repeat:
            self._identity.was_refused(candidate.pod)
            self._terms.refuse(candidate.pod, str(error))


def _has_its_files(answer: ContainerResponse) -> bool:
    """Where a mounted file is missing, the runtime would make a folder: no limit, silently."""
    return all(Path(mount.host_path).exists() for mount in answer.mounts)


def _name(claim: _Claim) -> str:
    return f"{claim.candidate.name}: " if claim.candidate is not None else ""
