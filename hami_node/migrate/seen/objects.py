"""Objects of the cluster, cut down to what a migration asks of them.

Everything here was written by others and may have any shape: what is missing or of another type is
empty, and never an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Json = Mapping[str, object]
NO_TEXTS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A requirement of a node selector term."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def holds_for(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels meets it; an unknown operator is met by none."""
        value = labels.get(self.key)
        if self.operator == "In":
            return value is not None and value in self.values
        if self.operator == "NotIn":
            return value is None or value not in self.values
        if self.operator == "Exists":
            return value is not None
        if self.operator == "DoesNotExist":
            return value is None
        return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        if value is None or not value.isdecimal() or not self.values:
            return False
        if not self.values[0].isdecimal():
            return False
        if self.operator == "Gt":
            return int(value) > int(self.values[0])
        return self.operator == "Lt" and int(value) < int(self.values[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """Which nodes a DaemonSet wants, by labels. Taints are not looked at.

    Attributes:
        selector: the pod's nodeSelector.
        alternatives: required node affinity: one of these holds as a whole; () for none.
    """

    selector: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    alternatives: tuple[tuple[Term, ...], ...] = ()

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is wanted."""
        if any(labels.get(key) != value for key, value in self.selector.items()):
            return False
        if not self.alternatives:
            return True
        return any(all(term.holds_for(labels) for term in one) for one in self.alternatives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A DaemonSet or a Deployment.

    Attributes:
        release: `namespace/name` of the Helm release that made it; "" for none.
        owner: kind of the object that made it, such as ClusterPolicy; "" for none.
        words: names and arguments of its containers' programs.
        wanted, ready: pods.
    """

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    release: str = ""
    owner: str = ""
    images: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    account: str = ""
    runtime_class: str = ""
    host_paths: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()
    choice: NodeChoice = NodeChoice()
    update: str = ""
    selector: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    wanted: int = 0
    ready: int = 0

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def shown(self) -> str:
        """`daemonset/name`, as kubectl takes it."""
        return f"{self.kind.lower()}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node. `annotations` are only those below hami.io/ and hami-node.io/."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    allocatable: Mapping[str, str]
    is_ready: bool
    is_cordoned: bool
    kubelet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """A pod that has not ended.

    Attributes:
        owner: `kind/name` of its controller; "" for none.
        scheduler: the schedulerName.
        phase: what HAMi's annotation says of its binding: allocating, success, failed or "".
        bound_s: when it was bound, seconds since the epoch, as that annotation says; None without.
        resources: extended resources that its containers ask for.
        is_reserved: a scheduler has written a reservation.
    """

    namespace: str
    name: str
    node: str
    labels: Mapping[str, str]
    owner: str
    scheduler: str
    phase: str
    bound_s: int | None
    resources: frozenset[str]
    is_reserved: bool
    is_ready: bool
    is_going: bool

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSeen:
    """One webhook of a MutatingWebhookConfiguration.

    Attributes:
        service: `namespace/name`; "" for a webhook outside the cluster.
        is_paused: a match condition keeps it from every request.
        is_by_choice: it reviews only namespaces or pods that have a label for it.
    """

    configuration: str
    name: str
    position: int
    labels: Mapping[str, str]
    release: str
    service: str
    has_authority: bool
    fails_closed: bool
    is_paused: bool
    is_by_choice: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSeen:
    """A Lease and its holder."""

    namespace: str
    name: str
    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An object of which only the name and the maker matter."""

    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str]
    release: str


# -- reading plain JSON ----------------------------------------------------------------------------


def inside(value: object, *path: str) -> object:
    """The value at a path of keys; None where there is none."""
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def text(value: object, *path: str) -> str:
    """The text at a path; "" where there is none."""
    found = inside(value, *path)
    return found if isinstance(found, str) else ""


def texts(value: object, *path: str) -> Mapping[str, str]:
    """The texts of an object at a path, by their keys."""
    found = inside(value, *path)
    if not isinstance(found, Mapping):
        return NO_TEXTS
    return {key: item for key, item in found.items() if isinstance(item, str)}


def items(value: object, *path: str) -> tuple[Json, ...]:
    """The objects in a list at a path."""
    found = inside(value, *path)
    if not isinstance(found, list):
        return ()
    return tuple(item for item in found if isinstance(item, Mapping))


def strings(value: object, *path: str) -> tuple[str, ...]:
    """The texts in a list at a path."""
    found = inside(value, *path)
    return tuple(i for i in found if isinstance(i, str)) if isinstance(found, list) else ()


def number(value: object, *path: str) -> int:
    """The whole number at a path; 0 where there is none."""
    found = inside(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def labels_of(body: Json) -> Mapping[str, str]:
    """Its labels."""
    return texts(body, "metadata", "labels")


def release_of(body: Json) -> str:
    """`namespace/name` of the Helm release that made it; "" for none."""
    notes = texts(body, "metadata", "annotations")
    name = notes.get("meta.helm.sh/release-name", "")
    return f"{notes.get('meta.helm.sh/release-namespace', '')}/{name}" if name else ""


def containers_of(body: Json, *path: str) -> Iterator[Json]:
    """All containers of a pod's spec, init containers first."""
    for group in ("initContainers", "containers"):
        yield from items(body, *path, group)


def unique(found: Iterable[str]) -> tuple[str, ...]:
    """Without repetitions and empty texts, in order."""
    return tuple(dict.fromkeys(filter(None, found)))
