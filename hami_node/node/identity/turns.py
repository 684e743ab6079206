"""Whose turn is it in a pod? kubelet serves the containers in order, one in each call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from hami_node.errors import NoPendingPod
from hami_node.model import Container, ContainerKind, Pod
from hami_node.node.identity.candidate import Candidate, repeat_of
from hami_node.node.identity.grant_source import GrantSource
from hami_node.node.identity.refusals import RECREATE
from hami_node.record.ledger import Ledger
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.reservation import count_of

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


class Turns:
    """Reads one pod at a time. Pure but for the ledger, which it only reads."""

    def __init__(
        self,
        *,
        vendor: VendorProtocol,
        resource: str,
        grants: GrantSource,
        ledger: Ledger,
        refused: Collection[str],
        answered: Collection[tuple[str, str]],
        node_name: str,
    ) -> None:
        """Look at containers that ask for `resource`; `grants` reads what they may be given.

        `refused` are uids of pods; `answered` are pod uids and containers whose answer this
        process gave to the kubelet that runs now.
        """
        self._vendor, self._resource, self._grants = vendor, resource, grants
        self._ledger, self._refused, self._answered = ledger, refused, answered
        self._node_name = node_name

    def is_asking(self, pod: Pod) -> bool:
        """True if any container asks for our resource."""
        return any(count_of(container, self._resource) for container in pod.containers)

    def is_out(self, pod: Pod) -> bool:
        """True if no call can be for this pod any more."""
        return (
            pod.is_over
            or pod.uid in self._refused
            or pod.node_name not in ("", self._node_name)
            or pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED
        )

    def next_of(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The first container that kubelet has not served yet; None if there is none."""
        asking = [item for item in pod.containers if count_of(item, self._resource)]
        if self.is_out(pod) or not asking or held.get(asking[-1].name):
            return None  # kubelet serves in order: the last is served, so all are
        grants = self._grants.held_by(pod)
        last = max((i for i, it in enumerate(pod.containers) if held.get(it.name)), default=-1)
        for i, container in enumerate(pod.containers):
            if not count_of(container, self._resource):
                continue
            if container.kind is ContainerKind.INIT:
                # kubelet serves in order: if a later container holds something, this has ended
                is_served = i < last or self._is_init_served(pod, container, grants, call)
            else:
                is_served = bool(held.get(container.name))
            if not is_served:
                return self._candidate(pod, container, grants, call)
        return None

    def refuse_given_twice(
        self, holder: Candidate, listed: Iterable[tuple[Pod, Held]], call: Call
    ) -> None:
        """Check that nobody waits beside a container whose IDs these are.

        Under load kubelet has given a new pod the IDs that it still listed with another.

        Raises:
            NoPendingPod: somebody waits for as many devices, so the call may be for that one.
        """
        for pod, held in listed:
            waiting = self._waiting(pod, held, call)
            if waiting is not None and pod.uid != holder.pod.uid:
                raise NoPendingPod(
                    f"kubelet's pod-resources list shows these devices with {holder.name}, which "
                    f"was served before, and {waiting.name} waits for as many: it can't be told "
                    f"for which of them this call is: {RECREATE}",
                    candidates=(pod,),
                    is_passing=True,
                )

    def _waiting(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The container whose turn it is, if it can be served and asks for as many devices."""
        if not self.is_asking(pod) or (held and all(held.values())):
            return None
        found = self.next_of(pod, held, call)
        if found is None or found.problem or found.is_spent:
            return None
        return found if count_of(found.container, self._resource) == call.count else None

    def next_unlisted(self, pod: Pod, call: Call) -> Candidate | None:
        """As `next_of`, when only slots and ledger show which containers were served."""
        served = self._grants.served(pod, self._grants.held_by(pod), self._ledger)
        return self.next_of(pod, served, call)

    def repeated(self, pod: Pod, held: Held, call: Call) -> Candidate | None:
        """The container of this pod that has these IDs already; None if none fits."""
        for container in pod.containers:
            if count_of(container, self._resource) != call.count:
                continue
            entry = self._ledger.find(pod.uid, container.name, self._vendor.cards.word)
            grants = self._grants.held_by(pod)
            if container.kind is ContainerKind.INIT:
                # kubelet does not list it; the containers after it hold its IDs
                if entry is None or (entry.device_ids and set(entry.device_ids) != call.ids):
                    continue
            elif frozenset(held.get(container.name, ())) != call.ids:
                continue
            if entry is not None:
                return repeat_of(self._vendor, pod, container, grants, entry)
            candidate = self._grants.candidate(pod, container, grants, call.count, is_repeat=True)
            if not candidate.problem:
                return candidate
        return None

    def _candidate(
        self, pod: Pod, container: Container, grants: HeldGrants, call: Call
    ) -> Candidate:
        """What a call for this container gets, or what it was given before.

        A container in the ledger without IDs may have been given an answer that kubelet never
        received.
        """
        entry = self._ledger.find(pod.uid, container.name, self._vendor.cards.word)
        is_known = (pod.uid, container.name) in self._answered
        if entry is not None and self._grants.is_final(
            entry, pod, grants, call.ids, is_known=is_known
        ):
            candidate = repeat_of(self._vendor, pod, container, grants, entry)
            return replace(candidate, is_spent=candidate.is_spent or is_known)
        count = count_of(container, self._resource)
        return self._grants.candidate(pod, container, grants, count, is_repeat=False)

    def _is_init_served(
        self, pod: Pod, container: Container, grants: HeldGrants, call: Call
    ) -> bool:
        """For containers that kubelet does not list (plain inits): slot, ledger and IDs show it.

        kubelet gives the IDs of init containers to those after them. A call without any of them
        is for the first init container once more: kubelet never received our answer.
        """
        slots = grants.slot_map
        entry = self._ledger.find(pod.uid, container.name, self._vendor.cards.word)
        if slots is not None and slots.grants_of(container.name) is not None:
            if slots.is_waiting(container.name):
                return False
        elif entry is None:
            return False
        is_known = (pod.uid, container.name) in self._answered
        if is_known or entry is None or not entry.device_ids or not call.ids:
            return True
        inits = {item.name for item in pod.containers if item.kind is ContainerKind.INIT}
        given = {
            name
            for other in self._ledger.of_pod(pod.uid)
            if other.vendor == entry.vendor and other.container in inits
            for name in other.device_ids
        }
        return bool(given & call.ids)
