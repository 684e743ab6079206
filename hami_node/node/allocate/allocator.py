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
from hami_node.engine.ranking import BINPACK
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
from hami_node.model import Pod
from hami_node.node.allocate.commit import PodWriter
from hami_node.node.allocate.divided import PartMaker, is_about
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.refusals import RECREATE, sentence
from hami_node.node.allocate.terms import Candidate, Reserved, Rules, Shares, Terms
from hami_node.node.allocate.which import CHOICE_S, READ_S, Identity
from hami_node.node.cards.preference import choose_ids
from hami_node.node.holdings.recorded import answer_of, answer_text
from hami_node.node.holdings.settler import notice_ended
from hami_node.node.resource import NodeResource
from hami_node.node.state import NodeState
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import EventNote
from hami_node.record.bounded import BoundedWork
from hami_node.record.ledger import Entry
from hami_node.vendors.on_node.answer import ContainerResponse, Slice
from hami_node.vendors.spec import protocol_of, protocols_of

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "AllocationRefused"
UNLIMITED_EVENT: Final = "LimiterDisabled"
FILES_S: Final = 3.0
"""How long making a container's files may take, of the 10 s that kubelet waits."""
MAX_REFUSED: Final = 1024
"""How many refused pods are remembered."""


@dataclass(slots=True, kw_only=True)
class _Claim:
    """One call in progress: who it is for, once that is known, and what the ledger has of it."""

    candidate: Candidate | None = None
    entry: Entry | None = None
    result: str = "refused"

    @property
    def name(self) -> str | None:
        """Of the container."""
        return self.candidate.name if self.candidate is not None else None


class PodAllocator:
    """Answers kubelet for one resource. Its lock is held over I/O on purpose: see above."""

    def __init__(
        self,
        node: NodeState,
        owner: VendorCards,
        resource: NodeResource,
        locks: LockKeeper,
    ) -> None:
        """Serve a resource of the owner's cards."""
        self._node, self._owner, self._resource = node, owner, resource
        self._ledger, self._clock, self._locks = node.ledger, node.clock, locks
        settings = node.settings()
        vendor = protocol_of(resource.vendor, settings)
        terms = Shares if vendor.is_fixed(resource.name) else Reserved
        self._terms: Terms = terms(node, resource, vendor)
        self._identity = Identity(
            node,
            self._terms,
            resource.name,
            node_name=settings.node_name,
            lock_owner=locks.owner_now,
            life=lambda: resource.lifecycle.registrations,
        )
        self._writer = PodWriter(node, vendor, locks)
        self._files = BoundedWork(FILES_S, f"the folder with the files for {resource.name}")
        self._maker = PartMaker(owner, resource.name, node.live)

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

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """The device IDs that kubelet should take.

        Those on the reserved cards come first, so that kubelet, scheduler and container agree. Of
        fixed shares distinct cards where there are enough, linked; else the fullest first, whatever
        the node's policy: an empty card can still be cut into shares of another size.

        Raises:
            HamiError: the pod under admission is unknown.
        """
        with self._turn(deadline.at_most(CHOICE_S)):
            choice = self._resource.choice()
            if not self._terms.is_reserved:
                choice = replace(choice, policy=BINPACK)
                return choose_ids(available, must, size, choice=choice)
            grants = self._identity.find_next(size, must, deadline).grants
            reserved = [grant.uuid for grant in grants]
            return choose_ids(available, must, size, reserved=reserved, choice=choice)

    @contextmanager
    def _turn(self, deadline: Deadline) -> Iterator[None]:
        """Wait for other calls on this node.

        Raises:
            AllocationError: they take too long.
        """
        if not self._node.one_at_a_time.acquire(timeout=deadline.left_s()):
            raise AllocationError(f"hami-node is still busy with another call: {RECREATE}")
        try:
            yield
        finally:
            self._node.one_at_a_time.release()

    def _rules(self) -> Rules:
        """As the settings in force have them, all at once."""
        now = self._node.settings()
        return Rules(
            vendor=protocol_of(self._resource.vendor, now),
            vendors=protocols_of(self._node.vendors, now),
            compat=COMPATS[now.compat.value],
        )

    # -- one call ----------------------------------------------------------------------------------
    def _serve(self, device_ids: Sequence[str], deadline: Deadline) -> ContainerResponse:
        rules = self._rules()
        with self._claim(device_ids) as claim:
            claim.candidate = self._identity.find(device_ids, deadline)
            candidate = self._check(claim.candidate, claim, device_ids, rules, deadline)
            granted = self._granted(candidate, deadline)
            response = self._respond(candidate, granted, deadline)
            if candidate.is_repeat:
                response = self._repeated(candidate, granted, response, deadline)
                self._identity.was_answered(candidate)
                claim.result = "repeated"
                return response
            entry = self._entry(candidate, device_ids, response)
            self._ledger.put(entry, deadline)
            claim.entry = entry
            if self._terms.is_reserved:
                limiter = response.limiter_version
                self._writer.commit(candidate, granted.made, limiter, deadline)
            self._identity.was_answered(candidate)
            claim.result = "ok"
        return response

    def _check(
        self,
        candidate: Candidate,
        claim: _Claim,
        device_ids: Sequence[str],
        rules: Rules,
        deadline: Deadline,
    ) -> Candidate:
        """The container with all that it gets, which its limits and the cards' live use allow.

        Raises:
            AllocationError: it must not be given that.
        """
        if candidate.problem:
            raise NoPendingPod(f"{candidate.name}: {candidate.problem}: {RECREATE}")
        ask = self._terms.ask(candidate, rules)
        candidate = claim.candidate = self._terms.granted(candidate, ask, device_ids)
        if not candidate.is_repeat:
            # A call that was not answered may have left an entry.
            word = rules.vendor.cards.word
            self._ledger.remove(candidate.pod.uid, candidate.container.name, word)
        objection = self._terms.objection(candidate, ask, rules)
        if objection is not None and not candidate.is_repeat:
            live, kube = self._node.live, self._node.kube.within(deadline.at_most(READ_S))
            if notice_ended(live, kube, live.unlisted()):
                objection = self._terms.objection(candidate, ask, rules)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection, rules.vendor.meanings))
        return candidate

    def _granted(self, candidate: Candidate, deadline: Deadline) -> Slice:
        """What the container gets, once the parts of cards that it names exist.

        Raises:
            AllocationError: one of them can't be made.
        """
        granted = Slice(
            pod_uid=candidate.pod.uid,
            container=candidate.container,
            grants=candidate.grants,
            cards=self._terms.cards(),
        )
        return self._maker.with_made(granted, candidate, deadline)

    def _respond(
        self, candidate: Candidate, granted: Slice, deadline: Deadline
    ) -> ContainerResponse:
        """The response, once the container's files are there; they may have been removed since.

        Raises:
            HamiError: it can't be limited, or the disk does not answer in time.
        """
        responder = self._owner.responder
        response, warning = self._files.do(
            lambda: (responder.respond(granted), responder.warning(granted)), deadline
        )
        if warning and not candidate.is_repeat:
            self._notify(candidate.pod, UNLIMITED_EVENT, warning)
        return response

    def _repeated(
        self,
        candidate: Candidate,
        granted: Slice,
        response: ContainerResponse,
        deadline: Deadline,
    ) -> ContainerResponse:
        """What the container was given before, to the byte, unless its files are gone since.

        From now on it has the answer that it gets now. Raises RecordError.
        """
        answer = answer_of(candidate.entry) if candidate.entry is not None else None
        if answer == response:
            return response
        if answer is not None:
            has_files = partial(_has_its_files, answer)
            if is_about(answer, granted.made) and self._files.do(has_files, deadline):
                return answer
            log.warning("answer_outdated", extra=kv(container=candidate.name))
        word = self._terms.vendor.cards.word
        entry = self._ledger.find(candidate.pod.uid, candidate.container.name, word)
        if entry is not None:
            text, limiter = answer_text(response), response.limiter_version
            self._ledger.put(replace(entry, answer=text, limiter=limiter), deadline)
        return response

    def _entry(
        self, candidate: Candidate, device_ids: Sequence[str], response: ContainerResponse
    ) -> Entry:
        entry = Entry.of(
            candidate.pod,
            candidate.container.name,
            vendor=self._terms.vendor.cards.word,
            resource=self._resource.name,
            device_ids=device_ids,
            grants=candidate.grants,
            lender=candidate.lender,
        )
        return replace(
            entry,
            answer=answer_text(response),
            limiter=response.limiter_version,
            is_aligned=self._resource.is_aligned(),
            time_s=self._clock.now(),
        )

    # -- refusals ----------------------------------------------------------------------------------
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
            raise refusal_of(f"{_prefix(claim)}{e}: {RECREATE}") from e
        except Exception as e:  # any bug: kubelet gets a sentence, the pod its phase
            log.exception("allocate_broken")
            refusal = AllocationError(
                f"{_prefix(claim)}internal error in hami-node ({type(e).__name__}), see its log: "
                f"{RECREATE}"
            )
            self._refuse(claim, refusal)
            raise refusal from e
        finally:
            took_s = self._clock.monotonic() - began_s
            self._resource.update_hints(self._ledger.entries())  # before the next one is admitted
            self._node.metrics.count_allocate(claim.result, took_s)
            log.info(
                "allocate",
                extra=kv(
                    result=claim.result,
                    container=claim.name,
                    devices=len(device_ids),
                    took_ms=round(took_s * 1e3, 1),
                ),
            )

    def _refuse(self, claim: _Claim, error: HamiError) -> None:
        """Note the refusal for the pod, unless the pod is unknown or was served before.

        kubelet fails a refused pod for good, so it is never a candidate again. The loop writes the
        phase and frees the lock. Never raises or waits.
        """
        candidate, why = claim.candidate, str(error)
        log.warning("allocate_refused", extra=kv(container=claim.name, error=why))
        if claim.entry is not None:
            self._ledger.remove(*claim.entry.key)
        if isinstance(error, NoPendingPod):
            for pod in error.candidates:
                self._notify(pod, REFUSED_EVENT, why)
        if candidate is None or candidate.is_repeat:
            return
        pod, refused = candidate.pod, self._node.refused
        refused.pop(pod.uid, None)
        refused[pod.uid] = self._terms.is_reserved
        if len(refused) > MAX_REFUSED:
            del refused[next(iter(refused))]
        self._notify(pod, REFUSED_EVENT, why)
        if self._terms.is_reserved:
            self._locks.release(pod)
            self._node.wake("phases")

    def _notify(self, pod: Pod, reason: str, message: str) -> None:
        self._node.notify(EventNote.about(pod, reason, message))


def _has_its_files(answer: ContainerResponse) -> bool:
    """Where a mounted file is missing, the runtime would make a folder: no limit, silently."""
    return all(Path(mount.host_path).exists() for mount in answer.mounts)


def _prefix(claim: _Claim) -> str:
    return f"{claim.name}: " if claim.name else ""
