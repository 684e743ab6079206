"""Serve exactly the reserved slice: claim the container, check, prepare, commit; else refuse.

One call at a time on the whole node: kubelet admits one pod at a time, and two answers side by
side could be granted the same room. The order survives a kill at any point: the folder, then the
pod's patch, then the answer. A pod whose answer is lost is failed by kubelet, never served twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from hami_node.engine.check import check_reservation, is_covered
from hami_node.engine.compat import Compat
from hami_node.errors import (
    AllocationError,
    Conflict,
    GrantMismatch,
    HamiError,
    KubeError,
    NoPendingPod,
    NotFound,
    WireError,
)
from hami_node.logs import kv
from hami_node.model import Ask, Pod, Vendor
from hami_node.node.identity import Candidate, Identity
from hami_node.node.inventory import Inventory, uuid_of
from hami_node.node.refusals import RECREATE, sentence
from hami_node.node.reservations import LiveUse, read_reservation
from hami_node.node.response import ContainerResponse, HookFolder, ResponseStyle, Slice, build
from hami_node.ports import Clock, EventNote, JsonPatch, Kube
from hami_node.wire import names
from hami_node.wire.requests import RequestConfig, ResourceNames, checked_asks_of
from hami_node.wire.wishes import decode_wishes

log = logging.getLogger(__name__)

REFUSED_EVENT: Final = "AllocationRefused"
UNLIMITED_EVENT: Final = "LimiterDisabled"
PATCH_TRIES: Final = 4
PATCH_PAUSE_S: Final = 0.25
TRUE_WORDS: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})


class Locks(Protocol):
    """The node lock."""

    def release(self, pod: Pod) -> bool:
        """Free the lock if this very pod owns it; True if it did. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of Allocate. They change with the configuration, as a whole."""

    resource: str
    resource_names: ResourceNames
    request_config: RequestConfig
    compat: Compat
    style: ResponseStyle


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
        kube: Kube,
        locks: Locks,
        hook: HookFolder,
        rules: Callable[[], Rules],
        notify: Callable[[EventNote], None],
        clock: Clock,
        stop: threading.Event,
        on_result: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        """Wire the parts. `on_result` is told ok, repeated or refused, and the seconds it took."""
        self._identity = identity
        self._live = live
        self._inventory = inventory
        self._kube = kube
        self._locks = locks
        self._hook = hook
        self._rules = rules
        self._notify = notify
        self._clock = clock
        self._stop = stop
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
            self._check(candidate, rules)
            response = self._prepare(candidate, rules)
            if candidate.is_repeat:
                claim.result = "repeated"
            else:
                candidate = claim.candidate = self._commit(candidate)
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
    def _check(self, candidate: Candidate, rules: Rules) -> None:
        """The reservation against the container's own limits and the cards' live use."""
        ask = _ask(candidate, rules)
        pod = candidate.pod
        cards = self._live.cards(self._inventory.cards, leave_out=pod.uid)
        if candidate.is_repeat:
            objection = is_covered(cards, candidate.grants, ask)
        else:
            objection = check_reservation(
                cards,
                candidate.grants,
                ask,
                decode_wishes(pod.annotations),
                rules.compat,
                own=self._live.of_pod(pod),
            )
        if objection is not None:
            raise GrantMismatch(sentence(candidate.name, objection))

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
            self._notify(_event(candidate.pod, UNLIMITED_EVENT, text))
        return response

    # -- commit ------------------------------------------------------------------------------------
    def _commit(self, candidate: Candidate) -> Candidate:
        """Empty the served slot and, with the last one, set the phase and free the lock."""
        if candidate.is_borrowing:
            self._live.served(candidate.pod)
            return candidate
        for attempt in range(PATCH_TRIES):
            try:
                patched = self._kube.json_patch_pod(
                    candidate.pod.namespace, candidate.pod.name, _served_patch(candidate)
                )
                break
            except Conflict:
                candidate = self._read_again(candidate)
            except KubeError as e:
                if not e.is_transient or attempt == PATCH_TRIES - 1:
                    raise
                # The write may have happened although its answer was lost.
                self._stop.wait(PATCH_PAUSE_S * 2**attempt)
                candidate = self._read_after_doubt(candidate)
        else:
            raise GrantMismatch(f"{candidate.name}: the pod keeps changing: {RECREATE}")
        self._live.patched(patched)
        if _is_last(candidate):
            self._free_lock(patched)
        return candidate

    def _read_again(self, candidate: Candidate) -> Candidate:
        """The pod as it is now; its slot must still wait with the same grants."""
        pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        reservation = read_reservation(pod, self._rules().resource)
        slots = reservation.slots
        if pod.uid != candidate.pod.uid or slots is None or not slots.is_waiting(candidate.lender):
            raise GrantMismatch(
                f"{candidate.name}: its reservation changed while it was served: {RECREATE}"
            )
        if slots.grants_of(candidate.lender) != candidate.grants:
            raise GrantMismatch(
                f"{candidate.name}: its reservation was rewritten while it was served: {RECREATE}"
            )
        return Candidate(
            pod=pod,
            container=candidate.container,
            reservation=reservation,
            lender=candidate.lender,
        )

    def _read_after_doubt(self, candidate: Candidate) -> Candidate:
        """After an error whose effect is unknown: our own patch, seen standing, is success."""
        try:
            pod = self._kube.read_pod(candidate.pod.namespace, candidate.pod.name)
        except NotFound:
            raise
        except KubeError:
            return candidate
        expected = _served_text(candidate)
        if (
            pod.uid == candidate.pod.uid
            and pod.annotations.get(names.POD_TO_ALLOCATE) == expected
            and candidate.pod.annotations.get(names.POD_TO_ALLOCATE) != expected
        ):
            reservation = read_reservation(pod, self._rules().resource)
            return Candidate(
                pod=pod,
                container=candidate.container,
                reservation=reservation,
                lender=candidate.lender,
            )
        return candidate

    def _free_lock(self, pod: Pod) -> None:
        try:
            self._locks.release(pod)
        except KubeError as e:
            # The pod is served; the lock's keeper tries again.
            log.warning("lock_not_freed", extra=kv(pod=pod.key, error=str(e)))

    # -- refuse ------------------------------------------------------------------------------------
    def _refuse(self, candidate: Candidate | None, error: HamiError) -> None:
        """Tell the pod: phase failed, an Event, the lock freed. Best effort; each on its own."""
        if candidate is None:
            log.warning("allocate_refused", extra=kv(error=str(error)))
            return
        pod = candidate.pod
        log.warning("allocate_refused", extra=kv(container=candidate.name, error=str(error)))
        if candidate.is_repeat:
            return  # the pod runs; only this answer is refused
        self._identity.was_refused(pod)
        self._notify(_event(pod, REFUSED_EVENT, str(error)))
        try:
            self._kube.json_patch_pod(pod.namespace, pod.name, _failed_patch(pod))
        except KubeError as e:
            log.warning("phase_not_written", extra=kv(pod=pod.key, error=str(e)))
        self._free_lock(pod)


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


def _served_text(candidate: Candidate) -> str:
    slots = candidate.reservation.slots
    return slots.without(candidate.lender) if slots is not None else ""


def _is_last(candidate: Candidate) -> bool:
    slots = candidate.reservation.slots
    return slots is not None and not (set(slots.waiting) - {candidate.lender})


def _served_patch(candidate: Candidate) -> JsonPatch:
    """One patch: only if the pod is the same and its reservation untouched."""
    annotations = candidate.pod.annotations
    old = annotations.get(names.POD_TO_ALLOCATE, "")
    patch: list[Mapping[str, object]] = [
        {"op": "test", "path": "/metadata/uid", "value": candidate.pod.uid},
        {"op": "test", "path": _path(names.POD_TO_ALLOCATE), "value": old},
        {"op": "replace", "path": _path(names.POD_TO_ALLOCATE), "value": _served_text(candidate)},
    ]
    if _is_last(candidate):
        patch.append(_phase(names.PHASE_SUCCESS))
    return patch


def _failed_patch(pod: Pod) -> JsonPatch:
    patch: list[Mapping[str, object]] = [{"op": "test", "path": "/metadata/uid", "value": pod.uid}]
    if not pod.annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    return [*patch, _phase(names.PHASE_FAILED)]


def _phase(value: str) -> Mapping[str, object]:
    return {"op": "add", "path": _path(names.POD_BIND_PHASE), "value": value}


def _path(annotation: str) -> str:
    escaped = annotation.replace("~", "~0").replace("/", "~1")
    return f"/metadata/annotations/{escaped}"


def _event(pod: Pod, reason: str, message: str) -> EventNote:
    return EventNote(
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        reason=reason,
        message=message,
    )
