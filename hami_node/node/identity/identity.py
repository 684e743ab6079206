"""Which container is a call for? Allocate does not name it; kubelet's pod-resources list shows it.

While kubelet waits for Allocate its list contains the pod under admission, without devices for the
containers not yet served. Only a pod that the list of this very call shows is served. What else is
listed without devices is ruled out by what is known of it: it has ended, was refused, runs, or its
reservation is used up. A listed pod that can't be read, or two that could be meant, are doubt:
everything is asked again for a while, then the call is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

from hami_node.clock import Deadline
from hami_node.errors import Forbidden, KubeError, KubeletError, NoPendingPod, NotFound
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.identity.candidate import Candidate, only_candidate
from hami_node.node.identity.grant_source import source_of
from hami_node.node.identity.refusals import RECREATE
from hami_node.node.identity.turns import Call, Held, Turns
from hami_node.node.parts import ClusterParts
from hami_node.ports import HeldContainer
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import count_of

log = logging.getLogger(__name__)

MAX_ASKED: Final = 8
"""Pods that are read from the API server to rule something out."""
MEMORY: Final = 1024
"""How many refused pods, and answered containers, are remembered."""
IDENTITY_SHARE: Final = 0.6
"""The part of a call's time that may pass until it is known who is meant."""
LIST_SHARE: Final = 0.3
"""The part until the node lock is asked instead of kubelet's list."""
SETTLE_S: Final = 2.0
"""How long containers that could all be meant are looked at again: an end is reported late."""
CHOICE_S: Final = 2.0
"""How long a question about preferred IDs may take: without an answer kubelet takes any."""
FOLLOW_S: Final = 1.0
"""How old a pod may be that was read for such a question, in the call that follows it at once."""
ENDED_S: Final = 5.0
"""How long a pod that the API server said has ended is not read again: before 1.34 kubelet lists
ended pods with every call. A new pod of that name could be meant, where the watch lags as long."""
READ_S: Final = 2.0
"""The limit of one read, so that another one can follow."""
PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5

K = TypeVar("K")
V = TypeVar("V")
_Key = tuple[str, str]
_Pods = Mapping[_Key, Pod]


class Identity:
    """Finds the container behind a call. Remembers which were answered, and pods refused."""

    def __init__(
        self,
        cluster: ClusterParts,
        vendor: VendorProtocol,
        resource: str,
        *,
        node_name: str,
        lock_owner: Callable[[Deadline], str],
    ) -> None:
        """Find the containers that ask for `resource`.

        `lock_owner` asks the API server for `namespace/name` of the pod that the node lock names
        now, or "", and raises KubeError.
        """
        self._resource, self._node_name = resource, node_name
        self._cluster, self._lock_owner = cluster, lock_owner
        self._answered: dict[tuple[str, str], None] = {}
        self._lives = threading.Lock()
        self._life = self._asked_in = 0  # of kubelet: counted by our registrations
        self._chosen: dict[_Key, tuple[Pod, Deadline]] = {}  # read for a question about IDs
        self._ended: dict[str, Deadline] = {}
        self._live, self._kube = cluster.live, cluster.kube
        grants = source_of(vendor, resource)
        self._uses_lock = grants.uses_lock
        self._turns = Turns(
            vendor=vendor,
            resource=resource,
            grants=grants,
            ledger=cluster.ledger,
            refused=cluster.refused.keys(),
            answered=self._answered.keys(),
            node_name=node_name,
        )

    def was_refused(self, pod: Pod) -> None:
        """kubelet fails a refused pod for good: it is never a candidate again."""
        _remember(self._cluster.refused, pod.uid, False)

    def was_answered(self, candidate: Candidate) -> None:
        """The answer for this container leaves: the kubelet that asked knows of it, if it lives."""
        with self._lives:
            if self._life == self._asked_in:
                _remember(self._answered, (candidate.pod.uid, candidate.container.name), None)

    def renew(self) -> None:
        """kubelet was restarted, perhaps from an older record: it may ask again."""
        with self._lives:
            self._life += 1
            self._answered.clear()

    def find(self, device_ids: Sequence[str], deadline: Deadline) -> Candidate:
        """The container that the call is for.

        Raises:
            NoPendingPod: there is none, several are possible, or it can't be told; the text names
                them.
        """
        self._asked_in = self._life
        return self._find(Call(count=len(device_ids), ids=frozenset(device_ids)), deadline)

    def find_next(self, count: int, must: Sequence[str], deadline: Deadline) -> Candidate:
        """The only container that waits for `count` cards, these among them. Raises as `find`."""
        call = Call(count=count, ids=frozenset(must), is_choice=True)
        self._chosen.clear()
        return self._find(call, deadline.at_most(CHOICE_S))

    def notice_ended(self, deadline: Deadline) -> bool:
        """Read holders that kubelet does not list, before a refusal; True if any has ended."""
        found = False
        kube = self._kube.within(deadline.at_most(READ_S))
        for one in self._live.unlisted()[:MAX_ASKED]:
            try:
                now = kube.read_pod(one.namespace, one.pod)
            except NotFound:
                now = None
            except KubeError as e:
                log.warning("holder_not_read", extra=kv(pod=one.pod_key, error=str(e)))
                continue
            found = self._live.ended_as(one, now) or found
        return found

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
            listed = self._cluster.kubelet.list(limit)
        except KubeletError as e:
            log.warning("list_not_read", extra=kv(error=str(e)))
            unread = f"kubelet's list of pods can't be read ({e})"
            if list_limit.left_s() or call.is_choice:
                raise NoPendingPod(f"{unread}: {RECREATE}", is_passing=True) from e
            return self._without_list(call, limit, unread)
        self._live.settle(listed)
        held = _by_pod(listed, self._resource)
        pods = {_key(pod): pod for pod in self._live.pods()}
        holder = None if call.is_choice else self._holder(held, pods, call)
        if holder is None:
            return self._unserved(held, pods, call, limit)
        known = ((pods[key], containers) for key, containers in held.items() if key in pods)
        self._turns.refuse_given_twice(holder, known, call)
        return holder

    def _unserved(
        self, held: Mapping[_Key, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> Candidate:
        """The container without IDs that the call is for. Raises NoPendingPod."""
        found = self._candidates(held, pods, call, limit)
        waiting = [candidate for candidate in found if not candidate.is_spent]
        if len(waiting) > 1:
            # The watch may lag behind pods that ended a moment ago.
            again = [self._fresh(_key(it.pod), held[_key(it.pod)], call, limit) for it in waiting]
            waiting = [it for it in again if it is not None and not it.is_spent]
        if not found and not call.is_choice:
            waiting = self._behind_leaving(held, pods, call, limit)
        if waiting:
            return only_candidate(waiting, call.count, self._resource)
        spent = [it for it in found if count_of(it.container, self._resource) == call.count]
        if any(it.pod.has_started and not it.is_repeat for it in spent) or not spent:
            running = ", ".join(sorted(it.name for it in spent))
            raise NoPendingPod(
                f"no pod on node {self._node_name} waits for {call.count} {self._resource}, "
                "according to kubelet's pod-resources list"
                + (f" ({running}: started before, without cards of this daemon)" if spent else "")
                + f": {RECREATE}"
            )
        return only_candidate(spent, call.count, self._resource)

    def _behind_leaving(
        self, held: Mapping[_Key, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> list[Candidate]:
        """Containers of new pods, where the watch still shows one that asks for none and leaves.

        Only before a refusal: pods that leave and ask for none are common. Raises NoPendingPod.
        """
        leaving = (
            key
            for key in held
            if (pod := pods.get(key)) is not None
            and (pod.is_being_deleted or pod.is_over)
            and not self._turns.is_asking(pod)
            and not self._has_ended(pod)
        )
        found = (self._fresh(key, held[key], call, limit) for key in islice(leaving, MAX_ASKED))
        return [it for it in found if it is not None and not it.is_spent]

    def _holder(self, held: Mapping[_Key, Held], pods: _Pods, call: Call) -> Candidate | None:
        """The container that has these IDs already: kubelet gives them to no other.

        Raises:
            NoPendingPod: they are those of a pod none of whose containers the call can be for.
        """
        for key, containers in held.items():
            if not any(call.ids.intersection(ids) for ids in containers.values()):
                continue
            pod = pods.get(key)
            if pod is not None and self._turns.is_out(pod):
                continue
            found = None if pod is None else self._turns.repeated(pod, containers, call)
            if found is None:
                raise NoPendingPod(
                    f"kubelet's pod-resources list shows these devices with {'/'.join(key)}, which "
                    f"has no container that was given exactly these: {RECREATE}",
                    is_passing=True,
                )
            return found
        return None

    def _candidates(
        self, held: Mapping[_Key, Held], pods: _Pods, call: Call, limit: Deadline
    ) -> list[Candidate]:
        """Every listed container that is not served, as the watch has it.

        Who is ruled out, or can't be served, is read again: the watch may show an older pod of the
        same name.

        Raises:
            NoPendingPod: a pod can't be read.
        """
        found: list[Candidate | None] = []
        doubtful: list[tuple[bool, _Key]] = []
        for key, containers in held.items():
            is_whole = bool(containers) and all(containers.values())
            pod = pods.get(key)
            if pod is None:
                if not is_whole:  # else it is served, and the watch will show it
                    found.append(self._unseen(key, containers, call, limit))
            elif self._turns.is_asking(pod) and not is_whole:
                candidate = self._turns.next_of(pod, containers, call)
                if candidate is not None and not (candidate.problem or candidate.is_spent):
                    found.append(candidate)
                elif self._has_ended(pod):
                    continue
                elif candidate is not None or self._turns.is_out(pod):
                    doubtful.append((pod.phase != "Failed", key))
        # Failed pods first: their owners make others of the same name.
        for _, key in sorted(doubtful)[: 0 if call.is_choice else MAX_ASKED]:
            found.append(self._fresh(key, held[key], call, limit))
        return [candidate for candidate in found if candidate is not None]

    def _has_ended(self, pod: Pod) -> bool:
        """True for a pod that has ended, as the API server has confirmed just now."""
        until = self._ended.get(pod.uid)
        return pod.is_over and until is not None and until.left_s() > 0

    def _unseen(self, key: _Key, held: Held, call: Call, limit: Deadline) -> Candidate | None:
        """As `_fresh`; the read for the question before this call serves for the call too, once.

        The patch of the pod fails if it is another one by then.
        """
        pod, until = self._chosen.pop(key, (None, limit))
        if pod is not None and until.left_s() and not call.is_choice:
            candidate = self._turns.next_of(pod, held, call)
            if candidate is not None and not (candidate.problem or candidate.is_spent):
                return candidate
        return self._fresh(key, held, call, limit)

    def _fresh(self, key: _Key, held: Held, call: Call, limit: Deadline) -> Candidate | None:
        """The container whose turn it is, in a listed pod as the API server has it.

        Raises:
            NoPendingPod: the pod can't be read, so the call may be for it.
        """
        try:
            pod = self._kube.within(limit.at_most(READ_S)).read_pod(*key)
        except NotFound:
            return None
        except KubeError as e:
            raise NoPendingPod(
                f"kubelet lists {'/'.join(key)}, for which this call may be, and it can't be read "
                f"({e}): {RECREATE}",
                is_passing=not isinstance(e, Forbidden),
            ) from e
        if call.is_choice:
            self._chosen[key] = pod, limit.at_most(FOLLOW_S)
        if pod.is_over:
            _remember(self._ended, pod.uid, Deadline.after(ENDED_S, limit.monotonic))
        return self._turns.next_of(pod, held, call)

    def _without_list(self, call: Call, limit: Deadline, unread: str) -> Candidate:
        """Without kubelet's list: the only container that could be meant, and the lock's owner.

        Everything is read from the API server: a watch may lag, and kubelet is ahead of it.

        Raises:
            NoPendingPod: it can't be told.
        """
        try:
            owner = self._lock_owner(limit.at_most(READ_S)) if self._uses_lock else ""
            is_clear = bool(owner) or not self._uses_lock
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
        found = [self._turns.next_unlisted(pod, call) for pod in pods]
        waiting = [
            candidate
            for candidate in found
            if candidate is not None
            and not candidate.is_spent
            and count_of(candidate.container, self._resource) == call.count
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


def _remember(memory: dict[K, V], key: K, value: V) -> None:
    """Keep the newest only: older ones are not needed again."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > MEMORY:
        del memory[next(iter(memory))]


def _key(pod: Pod) -> _Key:
    return pod.namespace, pod.name


def _by_pod(
    listed: Sequence[HeldContainer], resource: str
) -> dict[_Key, dict[str, tuple[str, ...]]]:
    pods: dict[_Key, dict[str, tuple[str, ...]]] = {}
    for item in listed:
        ids = item.device_ids.get(resource, ())
        pods.setdefault((item.namespace, item.pod), {})[item.container] = ids
    return pods
