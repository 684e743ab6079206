"""Which container is a call for? Allocate does not name it; kubelet's pod-resources list shows it.

While kubelet waits for Allocate its list contains the pod under admission, without devices for the
containers not yet served. Only a pod that the list of this very call shows is served. What else is
listed without devices is ruled out by what is known of it: it has ended, was refused, runs, or its
reservation is used up. A listed pod that can't be read, or two that could be meant, are doubt:
everything is asked again for a while, then the call is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeGuard

from hami_node.clock import Deadline
from hami_node.errors import Forbidden, KubeError, KubeletError, NoPendingPod, NotFound
from hami_node.logs import kv
from hami_node.model import Container, ContainerKind, Pod
from hami_node.node.allocate.refusals import RECREATE
from hami_node.node.allocate.terms import Candidate, Terms, repeat_of
from hami_node.node.state import NodeState
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Entry
from hami_node.vendors.held_grants import HeldGrants
from hami_node.wire import names
from hami_node.wire.reservation import count_of

log = logging.getLogger(__name__)

MAX_ANSWERED: Final = 1024
MAX_ASKED: Final = 8
"""Pods that are read from the API server to rule something out."""
IDENTITY_SHARE: Final = 0.6
"""The part of a call's time that may pass until it is known who is meant."""
LIST_SHARE: Final = 0.3
"""The part until the node lock is asked instead of kubelet's list."""
SETTLE_S: Final = 2.0
"""How long containers that could all be meant are looked at again: an end is reported late."""
CHOICE_S: Final = 2.0
"""How long a question about preferred IDs may take: without an answer kubelet takes any."""
ENDED_S: Final = 5.0
"""How long a pod that the API server said has ended is not read again: before 1.34 kubelet lists
ended pods with every call. A new pod of that name could be meant, where the watch lags as long."""
READ_S: Final = 2.0
"""The limit of one read, so that another one can follow; and of asking who has ended."""
PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5

_Pods = Mapping[str, Pod]
Held = Mapping[str, tuple[str, ...]]
"""Device IDs of our resource by container name, of one pod, according to kubelet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What kubelet says about the container that it means.

    Attributes:
        count: how many devices it gets.
        ids: their IDs; before the choice, those that have to be among them.
        is_choice: true when kubelet asks which IDs to take; the call for them follows.
    """

    count: int
    ids: frozenset[str]
    is_choice: bool = False


class Identity:
    """Finds the container behind a call."""

    def __init__(
        self,
        node: NodeState,
        terms: Terms,
        resource: str,
        *,
        node_name: str,
        lock_owner: Callable[[Deadline], str],
        life: Callable[[], int],
    ) -> None:
        """Find the containers that ask for `resource`.

        `lock_owner` asks the API server for `namespace/name` of the pod that the node lock names
        now, or "", and raises KubeError. `life` counts kubelet's lives: our registrations.
        """
        self._node, self._terms, self._resource = node, terms, resource
        self._node_name, self._lock_owner = node_name, lock_owner
        self._live, self._kube, self._ledger = node.live, node.kube, node.ledger
        self._life, self._asked_in = life, 0
        self._answered: dict[tuple[str, str], int] = {}
        """Containers (uid of the pod, name) that this process has answered, and in which life."""
        self._ended: dict[str, Deadline] = {}
        """Pods that the API server said have ended, by uid, and until when that is believed."""

    def find(self, device_ids: Sequence[str], deadline: Deadline) -> Candidate:
        """The container that the call is for.

        Raises:
            NoPendingPod: there is none, several are possible, or it can't be told; the text names
                them.
        """
        self._asked_in = self._life()
        return self._find(Call(count=len(device_ids), ids=frozenset(device_ids)), deadline)

    def was_answered(self, candidate: Candidate) -> None:
        """kubelet has had this answer, unless it has died since: a later call means another."""
        key = candidate.pod.uid, candidate.container.name
        self._answered.pop(key, None)
        self._answered[key] = self._asked_in
        if len(self._answered) > MAX_ANSWERED:
            del self._answered[next(iter(self._answered))]

    def find_next(self, count: int, must: Sequence[str], deadline: Deadline) -> Candidate:
        """The only container that waits for `count` cards, these among them. Raises as `find`."""
        call = Call(count=count, ids=frozenset(must), is_choice=True)
        return self._find(call, deadline.at_most(CHOICE_S))

    def _find(self, call: Call, deadline: Deadline) -> Candidate:
        """Look until it is clear who is meant, with pauses; the last refusal is raised."""
        limit = deadline.share(IDENTITY_SHARE)
        list_limit, settle_limit = deadline.share(LIST_SHARE), limit.at_most(SETTLE_S)
        pause_s, ambiguous = PAUSE_S, None
        while True:
            try:
                return self._look(call, limit, list_limit)
            except NoPendingPod as e:
                ambiguous = e if e.candidates else ambiguous
                until = settle_limit if ambiguous else limit
                if not e.is_passing or call.is_choice or not until.pause(pause_s):
                    raise (ambiguous if ambiguous and e.is_passing else e) from e.__cause__
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _look(self, call: Call, limit: Deadline, list_limit: Deadline) -> Candidate:
        """Look once. Raises NoPendingPod."""
        try:
            listed = self._node.kubelet.list(limit)
        except KubeletError as e:
            log.warning("list_not_read", extra=kv(error=str(e)))
            unread = f"kubelet's list of pods can't be read ({e})"
            if list_limit.left_s() or call.is_choice:
                raise NoPendingPod(f"{unread}: {RECREATE}", is_passing=True) from e
            return self._without_list(call, limit, unread)
        self._live.settle(listed)
        held = _by_pod(listed, self._resource)
        pods = {pod.key: pod for pod in self._live.pods()}
        holder = None if call.is_choice else self._holder(held, pods, call)
        return holder or self._unserved(held, pods, call, limit)

    # -- who has the IDs already -------------------------------------------------------------------
    def _holder(self, held: Mapping[str, Held], pods: _Pods, call: Call) -> Candidate | None:
        """The container that has these IDs already: kubelet gives them to no other.

        Raises:
            NoPendingPod: they are those of a pod none of whose containers the call can be for; or
                somebody waits beside it. Under load kubelet has given a new pod the IDs that it
                still listed with another.
        """
        for key, containers in held.items():
            if not any(call.ids.intersection(ids) for ids in containers.values()):
                continue
            pod = pods.get(key)
            if pod is not None and self._is_out(pod):
                continue
            found = None if pod is None else self._repeated(pod, containers, call)
            if found is None:
                raise NoPendingPod(
                    f"kubelet's pod-resources list shows these devices with {key}, which "
                    f"has no container that was given exactly these: {RECREATE}",
                    is_passing=True,
                )
            for other in (pods[name] for name in held if name in pods):
                waiting = self._waiting(other, held[other.key], call)
                if waiting is not None and other.uid != found.pod.uid:
                    raise NoPendingPod(
                        f"kubelet's pod-resources list shows these devices with {found.name}, "
                        f"which was served before, and {waiting.name} waits for as many: it can't "
                        f"be told for which of them this call is: {RECREATE}",
                        candidates=(other,),
                        is_passing=True,
                    )
            return found
        return None

    def _repeated(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The container of this pod that has these IDs already; None if none fits."""
        grants = self._terms.held_by(pod)
        for container in pod.containers:
            if self._count(container) != call.count:
                continue
            entry = self._ledger.find(pod.uid, container.name, self._terms.vendor.cards.word)
            if container.kind is ContainerKind.INIT:
                # kubelet does not list it; the containers after it hold its IDs
                if entry is None or (entry.device_ids and set(entry.device_ids) != call.ids):
                    continue
            elif frozenset(held.get(container.name, ())) != call.ids:
                continue
            if entry is not None:
                return repeat_of(pod, container, grants, entry)
            candidate = self._terms.candidate(pod, container, grants, is_repeat=True)
            if not candidate.problem:
                return candidate
        return None

    def _waiting(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The container whose turn it is, if it can be served and asks for as many devices."""
        if not self._is_asking(pod) or (held and all(held.values())):
            return None
        found = self._next_of(pod, held, call)
        is_meant = _can_be_served(found) and self._count(found.container) == call.count
        return found if is_meant else None

    # -- whose turn it is --------------------------------------------------------------------------
    def _unserved(
        self, held: Mapping[str, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> Candidate:
        """The container without IDs that the call is for. Raises NoPendingPod."""
        found = self._candidates(held, pods, call, limit)
        waiting = [candidate for candidate in found if not candidate.is_spent]
        if len(waiting) > 1:
            # The watch may lag behind pods that ended a moment ago.
            keys = [it.pod.key for it in waiting]
            again = [self._fresh(key, held[key], call, limit) for key in keys]
            waiting = [it for it in again if it is not None and not it.is_spent]
        if not found and not call.is_choice:
            waiting = self._behind_leaving(held, pods, call, limit)
        if waiting:
            return only_candidate(waiting, call.count, self._resource)
        spent = [it for it in found if self._count(it.container) == call.count]
        if any(it.pod.has_started and not it.is_repeat for it in spent) or not spent:
            running = ", ".join(sorted(it.name for it in spent))
            raise NoPendingPod(
                f"no pod on node {self._node_name} waits for {call.count} {self._resource}, "
                "according to kubelet's pod-resources list"
                + (f" ({running}: started before, without cards of this daemon)" if spent else "")
                + f": {RECREATE}"
            )
        return only_candidate(spent, call.count, self._resource)

    def _candidates(
        self, held: Mapping[str, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> list[Candidate]:
        """Every listed container that is not served, as the watch has it.

        Who is ruled out, or can't be served, is read again: the watch may show an older pod of the
        same name.

        Raises:
            NoPendingPod: a pod can't be read.
        """
        found: list[Candidate | None] = []
        doubtful: list[tuple[bool, str]] = []
        for key, containers in held.items():
            if containers and all(containers.values()):
                continue  # it is served; if the watch does not show it, it will
            pod = pods.get(key)
            if pod is None:
                found.append(self._fresh(key, containers, call, limit))
            elif self._is_asking(pod):
                candidate = self._next_of(pod, containers, call)
                if _can_be_served(candidate):
                    is_sure = call.is_choice or not self._is_on_record(candidate)
                    # on record for a pod of this name, which may have been replaced since
                    found.append(
                        candidate if is_sure else self._fresh(key, containers, call, limit)
                    )
                elif not self._has_ended(pod) and (candidate is not None or self._is_out(pod)):
                    doubtful.append((pod.phase != "Failed", key))
        # Failed pods first: their owners make others of the same name.
        for _, key in sorted(doubtful)[: 0 if call.is_choice else MAX_ASKED]:
            found.append(self._fresh(key, held[key], call, limit))
        return [candidate for candidate in found if candidate is not None]

    def _is_on_record(self, it: Candidate) -> bool:
        word = self._terms.vendor.cards.word
        return self._ledger.find(it.pod.uid, it.container.name, word) is not None

    def _behind_leaving(
        self, held: Mapping[str, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> list[Candidate]:
        """Containers of new pods, where the watch still shows one that asks for none and leaves.

        Only before a refusal: pods that leave and ask for none are common. Raises NoPendingPod.
        """
        leaving = (
            key
            for key in held
            if (pod := pods.get(key)) is not None
            and (pod.is_being_deleted or pod.is_over)
            and not self._is_asking(pod)
            and not self._has_ended(pod)
        )
        found = (self._fresh(key, held[key], call, limit) for key in islice(leaving, MAX_ASKED))
        return [it for it in found if it is not None and not it.is_spent]

    def _has_ended(self, pod: Pod) -> bool:
        """True for a pod that has ended, as the API server has confirmed just now."""
        until = self._ended.get(pod.uid)
        return pod.is_over and until is not None and until.left_s() > 0

    def _fresh(self, key: str, held: Held, call: Call, limit: Deadline) -> Candidate | None:
        """The container whose turn it is, in a listed pod as the API server has it.

        What was read for a question about IDs serves for the call that follows, too: the patch of
        the pod fails if it is another one by then.

        Raises:
            NoPendingPod: the pod can't be read, so the call may be for it.
        """
        try:
            pod = self._kube.within(limit.at_most(READ_S)).read_pod(*key.split("/"))
        except NotFound:
            return None
        except KubeError as e:
            raise NoPendingPod(
                f"kubelet lists {key}, for which this call may be, and it can't be read "
                f"({e}): {RECREATE}",
                is_passing=not isinstance(e, Forbidden),
            ) from e
        if pod.is_over:
            self._ended = {uid: until for uid, until in self._ended.items() if until.left_s()}
            self._ended[pod.uid] = Deadline.after(ENDED_S, limit.monotonic)
        candidate = self._next_of(pod, held, call)
        if call.is_choice and _can_be_served(candidate):
            self._live.noticed(pod)
        return candidate

    def _without_list(self, call: Call, limit: Deadline, unread: str) -> Candidate:
        """Without kubelet's list: the only container that could be meant, and the lock's owner.

        Everything is read from the API server: a watch may lag, and kubelet is ahead of it.

        Raises:
            NoPendingPod: it can't be told.
        """
        uses_lock = self._terms.is_reserved
        try:
            owner = self._lock_owner(limit.at_most(READ_S)) if uses_lock else ""
            is_clear = bool(owner) or not uses_lock
            pods = self._kube.within(limit).pods_now(self._node_name) if is_clear else ()
        except KubeError as e:
            raise NoPendingPod(
                f"{unread}, nor can the node lock and the pods ({e}), so it is not known for which "
                f"pod this call is: {RECREATE}",
                is_passing=not isinstance(e, Forbidden),
            ) from e
        if not is_clear:
            raise NoPendingPod(
                f"{unread} and the node is locked for no pod, so it is not known for which pod "
                f"this call is: {RECREATE}"
            )
        self._live.refresh()
        served = ((pod, self._terms.served(pod, self._terms.held_by(pod))) for pod in pods)
        found = [self._next_of(pod, held, call) for pod, held in served]
        waiting = [
            candidate
            for candidate in found
            if candidate is not None
            and not candidate.is_spent
            and self._count(candidate.container) == call.count
        ]
        if len(waiting) == 1 and waiting[0].pod.key == (owner or waiting[0].pod.key):
            return waiting[0]
        listed = ", ".join(sorted(candidate.name for candidate in waiting)) or "none"
        lock = f"the node lock, which is {owner}'s, does not tell" if owner else "nothing tells"
        raise NoPendingPod(
            f"{unread}, and {lock} for which pod this call is: waiting for {call.count} "
            f"{self._resource}: {listed}: {RECREATE}",
            candidates=tuple(candidate.pod for candidate in waiting),
        )

    # -- one pod -----------------------------------------------------------------------------------
    def _count(self, container: Container) -> int:
        return count_of(container, self._resource)

    def _is_asking(self, pod: Pod) -> bool:
        """True if any container asks for our resource."""
        return any(self._count(container) for container in pod.containers)

    def _is_out(self, pod: Pod) -> bool:
        """True if no call can be for this pod any more."""
        return (
            pod.is_over
            or pod.uid in self._node.refused
            or pod.node_name not in ("", self._node_name)
            or pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED
        )

    def _next_of(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The first container that kubelet has not served yet, in order; None if there is none."""
        asking = [item for item in pod.containers if self._count(item)]
        if self._is_out(pod) or not asking or held.get(asking[-1].name):
            return None  # the last is served, so all are
        grants, word = self._terms.held_by(pod), self._terms.vendor.cards.word
        entries = {it.container: it for it in self._ledger.of_pod(pod.uid) if it.vendor == word}
        last = max((i for i, it in enumerate(pod.containers) if held.get(it.name)), default=-1)
        inits = {item.name for item in pod.containers if item.kind is ContainerKind.INIT}
        given = {name for item in inits & entries.keys() for name in entries[item].device_ids}
        # kubelet gives the IDs of init containers to those after them. A call without any of them
        # is for the first init container once more: kubelet never received our answer.
        is_again = bool(call.ids) and call.ids.isdisjoint(given)
        for i, container in enumerate(pod.containers):
            if not self._count(container):
                continue
            entry = entries.get(container.name)
            is_known = self._answered.get((pod.uid, container.name)) == self._life()
            is_served = bool(held.get(container.name))
            if container.name in inits:
                # kubelet does not list it; if a later container holds something, this has ended
                is_served = i < last or _is_init_served(
                    container, grants, entry, is_again=is_again and not is_known
                )
            if is_served:
                continue
            if entry is not None and (
                is_known or self._terms.is_final(entry, pod, grants, call.ids)
            ):
                # on record without IDs in the list: kubelet may never have received our answer
                again = repeat_of(pod, container, grants, entry)
                return replace(again, is_spent=again.is_spent or is_known)
            return self._terms.candidate(pod, container, grants)
        return None


def only_candidate(found: Sequence[Candidate], count: int, resource: str) -> Candidate:
    """The candidate that the call is for, distinguished by counts if necessary.

    Raises:
        NoPendingPod: several are possible, or none; the text names them.
    """
    if len(found) == 1:
        candidate = found[0]
        asked = count_of(candidate.container, resource)
        if asked != count:
            raise NoPendingPod(
                f"kubelet asks for {count} {resource}, and the only container that waits, "
                f"{candidate.name}, asks for {asked}: delete and recreate the pod"
            )
        return candidate
    matching = [
        candidate for candidate in found if count_of(candidate.container, resource) == count
    ]
    if len(matching) == 1:
        # The others ask for other numbers of devices: the call can't be for them.
        return matching[0]
    listed = ", ".join(sorted(candidate.name for candidate in found))
    raise NoPendingPod(
        f"{len(found)} containers could be meant ({listed}) and hami-node does not guess: "
        "delete and recreate the pods, one at a time",
        candidates=tuple(candidate.pod for candidate in found),
        is_passing=True,
    )


def _can_be_served(candidate: Candidate | None) -> TypeGuard[Candidate]:
    return candidate is not None and not (candidate.problem or candidate.is_spent)


def _is_init_served(
    container: Container, held: HeldGrants, entry: Entry | None, *, is_again: bool
) -> bool:
    """For containers that kubelet does not list (plain inits): slot, ledger and IDs show it."""
    slots = held.slot_map
    if slots is not None and slots.grants_of(container.name) is not None:
        if slots.is_waiting(container.name):
            return False
    elif entry is None:
        return False
    return entry is None or not entry.device_ids or not is_again


def _by_pod(
    listed: Sequence[HeldContainer], resource: str
) -> dict[str, dict[str, tuple[str, ...]]]:
    pods: dict[str, dict[str, tuple[str, ...]]] = {}
    for item in listed:
        ids = item.device_ids.get(resource, ())
        pods.setdefault(item.pod_key, {})[item.container] = ids
    return pods
