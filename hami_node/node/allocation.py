"""Serve exactly the reserved slice: claim the container, check, prepare, commit; else refuse.

One call at a time on the whole node: kubelet admits one pod at a time, and two answers side by
side could be granted the same room. The order survives a kill at any point: the folder, then the
pod's patch, then the answer. A pod whose answer is lost is failed by kubelet, never served twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine.check import Objection, check_reservation, is_covered
from hami_node.errors import (
    AllocationError,
    GrantMismatch,
    HamiError,
    NoPendingPod,
    WireError,
)
from hami_node.logs import kv
from hami_node.model import Ask, Vendor
from hami_node.node.identity import Candidate, Identity
from hami_node.node.inventory import Inventory, uuid_of
from hami_node.node.loans import lenders, lent
from hami_node.node.pod_writer import REFUSED_EVENT, PodWriter
from hami_node.node.refusals import RECREATE, sentence
from hami_node.node.reservations import LiveUse
from hami_node.node.response import ContainerResponse, HookFolder, Slice, build
from hami_node.node.rules import Rules
from hami_node.ports import Clock
from hami_node.wire import names
from hami_node.wire.requests import checked_asks_of
from hami_node.wire.wishes import decode_wishes

log = logging.getLogger(__name__)

UNLIMITED_EVENT: Final = "LimiterDisabled"
TRUE_WORDS: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


@dataclass(slots=True, kw_only=True)
class _Claim:
    """One call in progress: who it is for, once that is known."""

    candidate: Candidate | None = None
    result: str = "refused"
    notes: dict[str, object] = field(default_factory=dict)


class PodAllocator:
    """Answers kubelet. Its lock is held over I/O on purpose: see the module's text."""

    def __init__(
        self,
        *,
        identity: Identity,
        live: LiveUse,
        inventory: Inventory,
        writer: PodWriter,
        hook: HookFolder,
        rules: Callable[[], Rules],
        clock: Clock,
        on_result: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """Wire the parts. `on_result` is told ok, repeated or refused, and the seconds it took."""
        self._identity = identity
        self._live = live
        self._inventory = inventory
        self._writer = writer
        self._hook = hook
        self._rules = rules
        self._clock = clock
        self._on_result = on_result
        self._one_at_a_time = threading.Lock()

    def allocate(self, device_ids: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        """One response per container, in order.

        Raises:
            AllocationError: refused; the text is for the user.
        """
        with self._one_at_a_time:
            return [self._serve(ids) for ids in device_ids]

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """IDs on the reserved cards first, so that kubelet, scheduler and container agree.

        Raises:
            HamiError: the pod under admission is not known.
        """
        with self._one_at_a_time:
            grants = self._identity.find_next(size).grants
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

    def _serve(self, device_ids: Sequence[str]) -> ContainerResponse:
        rules = self._rules()
        with self._claim(device_ids) as claim:
            candidate = claim.candidate = self._identity.find(device_ids)
            if candidate.problem:
                raise NoPendingPod(f"{candidate.name}: {candidate.problem}: {RECREATE}")
            ask = _ask(candidate, rules)
            if candidate.is_borrowing:
                candidate = self._borrow(candidate, ask)
            self._check(candidate, ask, rules)
            response = self._prepare(candidate, rules)
            if candidate.is_repeat:
                claim.result = "repeated"
            else:
                self._writer.commit(candidate, rules.resource)
                self._identity.was_served(candidate, device_ids)
                claim.result = "ok"
        return response

    @contextmanager
    def _claim(self, device_ids: Sequence[str]) -> Iterator[_Claim]:
        """Mark the pod failed and free its lock on any error; tell how it went."""
        claim = _Claim()
        began_s = self._clock.monotonic()
        try:
            yield claim
        except HamiError as e:
            self._refuse(claim.candidate, e)
            if isinstance(e, AllocationError):
                raise
            raise AllocationError(f"{_name(claim)}{e}: {RECREATE}") from e
        except Exception as e:  # whatever broke: kubelet gets a sentence, the pod its phase
            log.exception("allocate_broken")
            refusal = AllocationError(
                f"{_name(claim)}hami-node failed inside ({type(e).__name__}), see its log: "
                f"{RECREATE}"
            )
            self._refuse(claim.candidate, refusal)
            raise refusal from e
        finally:
            took_s = self._clock.monotonic() - began_s
            self._on_result(claim.result, took_s)
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
        """Take what is asked from the first app container's grants that cover it.

        Raises:
            GrantMismatch: none does.
        """
        slots, cards = candidate.reservation.slots, {one.uuid: one for one in self._inventory.cards}
        if slots is not None:
            for lender in lenders(slots, candidate.pod, ask.count):
                loan = lent(slots.granted[lender], ask, cards)
                if loan is not None:
                    return replace(candidate, lender=lender, loan=loan)
        raise GrantMismatch(
            f"{candidate.name}: the scheduler reserved nothing for this init container, and no app "
            f"container's reservation covers what it asks for: ask for no more than the app "
            "containers do, then create the pod again"
        )

    def _check(self, candidate: Candidate, ask: Ask, rules: Rules) -> None:
        """The reservation against the container's own limits and the cards' live use."""
        objection = self._objection(candidate, ask, rules)
        if objection is not None and self._identity.notice_ended():
            objection = self._objection(candidate, ask, rules)
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection))

    def _objection(self, candidate: Candidate, ask: Ask, rules: Rules) -> Objection | None:
        pod = candidate.pod
        cards = self._live.cards(self._inventory.cards, leave_out=pod.uid)
        if candidate.is_repeat:
            return is_covered(cards, candidate.grants, ask)
        return check_reservation(
            cards,
            candidate.grants,
            ask,
            decode_wishes(pod.annotations),
            rules.compat,
            own=self._live.of_pod(pod),
        )

    def _prepare(self, candidate: Candidate, rules: Rules) -> ContainerResponse:
        limiter = self._hook.limiter()
        if rules.style.is_limiter_required and not limiter.is_complete:
            raise self._hook.missing_limiter()
        is_off = candidate.container.env.get(names.ENV_DISABLE_CONTROL, "") in TRUE_WORDS
        part = Slice(
            pod_uid=candidate.pod.uid,
            container=candidate.container.name,
            grants=candidate.grants,
            cards={card.uuid: card for card in self._inventory.cards},
            is_control_disabled=is_off,
        )
        response = build(part, limiter, rules.style)
        self._hook.prepare(part)
        if is_off and not candidate.is_repeat:
            text = (
                f"container {candidate.container.name} sets {names.ENV_DISABLE_CONTROL}: it runs "
                "without limits and can take its neighbours' memory"
            )
            self._writer.tell(candidate.pod, UNLIMITED_EVENT, text)
        return response

    def _refuse(self, candidate: Candidate | None, error: HamiError) -> None:
        """Tell the pod, unless it is unknown, or runs and only asked again."""
        name = candidate.name if candidate is not None else None
        log.warning("allocate_refused", extra=kv(container=name, error=str(error)))
        if isinstance(error, NoPendingPod):
            for pod in error.candidates:
                self._writer.tell(pod, REFUSED_EVENT, str(error))
        if candidate is not None and not candidate.is_repeat:
            self._identity.was_refused(candidate.pod)
            self._writer.fail(candidate.pod, str(error))


def _name(claim: _Claim) -> str:
    return f"{claim.candidate.name}: " if claim.candidate is not None else ""


def _ask(candidate: Candidate, rules: Rules) -> Ask:
    """What the container's own limits ask for.

    Raises:
        GrantMismatch: a limit has a value that can't be read.
    """
    try:
        asks = checked_asks_of(candidate.container, rules.resource_names, rules.request_config)
    except WireError as e:
        raise GrantMismatch(f"{candidate.name}: {e}") from e
    for ask in asks:
        if ask.vendor is Vendor.NVIDIA:
            return ask
    raise GrantMismatch(f"{candidate.name}: it asks for no {rules.resource}")
