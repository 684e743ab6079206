"""What the shell needs from the outside world, as small protocols; adapters are elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from hami_node.clock import Deadline, Waitable
from hami_node.model import Device, Node, PairScores, Pod, Uuid

JsonPatch = Sequence[Mapping[str, object]]
"""RFC 6902 operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartUse:
    """How much of a part of a divided card is used; None where the driver does not say.

    Attributes:
        uuid: the part's own.
        numbers: the driver's numbers for it, in the vendor's order.
        memory_bytes: used memory.
        limit_bytes: all memory that the part has.
        processes: PIDs on the node.
    """

    uuid: str
    numbers: tuple[int, ...]
    memory_bytes: int | None = None
    limit_bytes: int | None = None
    processes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartError:
    """Errors that the driver blames on a part of a card, not on the card.

    Attributes:
        card: the card.
        numbers: the driver's numbers for the part; fewer than it has where all of a group may be
            meant, () where there were too many to tell them apart.
        uuid: the part's own, as the card was last seen; "" for one that was not seen.
        code: the driver's number for the error.
        count: how often, since this was asked last.
        why: what it means and what to do about it, for people.
    """

    card: Uuid
    numbers: tuple[int, ...]
    uuid: str
    code: int
    count: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """How much of a card is used, by everybody on the node; None where the driver does not say.

    Attributes:
        memory_bytes: used memory.
        core_percent: of the last sampling period, how long a kernel ran.
        memory_controller_percent: of that period, how long memory was read or written.
        processes: PIDs on the node; None where they were not asked for, too.
        parts: those of a divided card.
    """

    memory_bytes: int | None = None
    core_percent: int | None = None
    memory_controller_percent: int | None = None
    processes: frozenset[int] | None = None
    parts: tuple[PartUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUse:
    """What a container uses of one of its cards; None where that is not known.

    Attributes:
        uuid, index: the card, and the node's number for it.
        position: the container's number for it.
        memory_bytes: all that counts towards the limit, of which the next three are known parts.
        core_percent: of the whole card.
        limit_bytes, core_limit_percent: the limits in force; None for no limit.
        last_kernel_s: when a kernel was last launched on any of its cards, seconds since the epoch.
        part: the UUID of the part of a divided card that this is about; "" for a whole card.
        processes: how many of its processes are on it.
    """

    namespace: str
    pod: str
    container: str
    uuid: Uuid
    index: int
    position: int
    memory_bytes: int
    context_bytes: int | None
    module_bytes: int | None
    data_bytes: int | None
    core_percent: int | None
    limit_bytes: int | None
    core_limit_percent: int | None
    last_kernel_s: int | None
    part: str = ""
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadUse:
    """A container whose use can't be read, with the reason in a word."""

    namespace: str
    pod: str
    container: str
    reason: str


class Backend(Protocol):
    """Finds the cards of one kind on this node. Called from one thread at a time."""

    @property
    def name(self) -> str:
        """Where the readings come from, such as the driver's library; shown in logs and metrics."""

    def scan(self) -> tuple[Device, ...]:
        """All physical cards now, unscaled (slots 1, cores 100), sorted by (index, uuid).

        A card that fails a query is in the list with `healthy=False` and a reason.

        Raises:
            DriverUnavailable: no card can be queried at all.
        """

    @property
    def is_simulated(self) -> bool:
        """True where the cards are not real."""

    def error_counts(self) -> Mapping[tuple[Uuid, int], int]:
        """Errors that the driver reported since its session began, by card and code."""

    def part_errors(self) -> tuple[PartError, ...]:
        """Those of them that name a part of a card, since the last call. Never waits."""

    def pair_scores(self) -> PairScores:
        """How well each pair of cards is linked; empty where that is not known. Never waits."""

    def host_use(self, with_processes: Collection[Uuid] = ()) -> Mapping[Uuid, HostUse]:
        """What was read after the previous call, and read it again soon. Never waits.

        `with_processes` are the cards whose processes are wanted. A card that does not answer is
        left out.
        """

    def wait_for_event(self, timeout_s: float) -> bool:
        """Wait until a card's state may have changed (True) or the timeout expires (False)."""

    def clear_errors(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        """Serve these cards again (None: all) though they wait for a reset; returns which did."""

    def last_pass_age_s(self) -> float:
        """Seconds since the cards were last read; liveness depends on it. Never waits."""

    def close(self) -> None:
        """Release the driver. Safe to call twice."""


class Record(Protocol):
    """Something small that the daemon remembers over restarts. A disk that hangs holds nobody."""

    def load(self) -> bytes | None:
        """What was saved last; None without any that can be read.

        Raises:
            RecordError: its disk does not answer: to be asked again.
        """

    def save(self, payload: bytes) -> None:
        """Replace it.

        Raises:
            RecordError: it can't be written, or not in seconds; in that case it may be later.
        """

    def put(self, payload: bytes) -> None:
        """Have it replaced: at once as a rule, else as soon as it can be written."""


OpenRecord = Callable[[str], Record]
"""Opens a record by its name, made of small letters and hyphens."""


class Clock(Protocol):
    """Time, injected so that tests own it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps."""

    def wait(self, event: Waitable, seconds: float | None) -> bool:
        """Wait for an event, or a condition that is held; False if the time expires first.

        Without a time (None) it waits until the event is set.
        """

    def deadline(self, seconds: float, stop: threading.Event | None = None) -> Deadline:
        """The deadline that many seconds from now, for an answer from or to another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventNote:
    """A Kubernetes Event about a pod or a node.

    `is_routine` for what is said of every pod: it comes after other Events, and may be summed up.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    is_warning: bool = True
    is_routine: bool = False

    @classmethod
    def about(cls, what: Pod | Node, reason: str, message: str) -> Self:
        """A warning about a pod or a node."""
        return cls(
            kind="Pod" if isinstance(what, Pod) else "Node",
            namespace=what.namespace if isinstance(what, Pod) else "",
            name=what.name,
            uid=what.uid,
            reason=reason,
            message=message,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpec:
    """A counter that a vendor adds to the daemon's metrics; `label` is its only label."""

    name: str
    doc: str
    label: str


class Kube(Protocol):
    """The Kubernetes API, as much of it as we use. Every call is bounded in time.

    Raises (every method): KubeError or a subclass.
    """

    def read_node(self, name: str) -> Node:
        """GET one node."""

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        """Set (or with None remove) the named annotations of a node and nothing else."""

    def json_patch_node(self, name: str, patch: JsonPatch) -> Node:
        """Apply a JSON patch to a node. Raises Conflict when a `test` fails."""

    def read_pod(self, namespace: str, name: str) -> Pod:
        """GET one pod."""

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        """Apply a JSON patch to a pod. Raises Conflict when a `test` fails."""

    def create_event(self, event: EventNote) -> None:
        """Write an Event; the caller decides whether a failure matters."""


Fence = Callable[[], None]
"""Raises NotLeading once what was decided must not be written any more."""


class DaemonKube(Kube, Protocol):
    """What a daemon needs from the Kubernetes API to answer kubelet in time."""

    def within(self, deadline: Deadline) -> Self:
        """The same API, but every call ends by the deadline."""

    def pods_now(self, node_name: str) -> tuple[Pod, ...]:
        """LIST the pods of a node as they are now; costly for the API server."""


class Watched(Protocol):
    """Current objects as a watch sees them. Snapshots; never blocks on the network."""

    def pods(self) -> tuple[Pod, ...]:
        """All pods the watch covers, sorted by (namespace, name)."""

    def pod(self, namespace: str, name: str) -> Pod | None:
        """One pod, or None."""

    def node(self) -> Node | None:
        """Our own node, or None before the first response."""

    def is_synced(self) -> bool:
        """True once nodes and pods have been listed."""


Listener = Callable[[], None]
"""Called after a change, from the watch's thread; must return at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldContainer:
    """A container in kubelet's pod-resources list; `device_ids` by resource name."""

    namespace: str
    pod: str
    container: str
    device_ids: Mapping[str, tuple[str, ...]]

    @property
    def pod_key(self) -> str:
        """`namespace/pod`: the list names no uid."""
        return f"{self.namespace}/{self.pod}"


class PodResources(Protocol):
    """kubelet's own record of who holds which device IDs."""

    def list(self, deadline: Deadline | None = None) -> tuple[HeldContainer, ...]:
        """Every container that kubelet lists, in its order, read by the deadline.

        Raises:
            KubeletError: the socket can't be read.
        """
