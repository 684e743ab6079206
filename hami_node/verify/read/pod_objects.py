"""Pods, what makes and selects them, cut down to what is looked at; all of it may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

Texts = dict[str, str]
NO_TEXTS: Final[Mapping[str, str]] = {}


class Struct(msgspec.Struct, rename="camel", frozen=True):
    """Part of an object, as JSON has it."""


class Metadata(Struct, frozen=True):
    """What identifies an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Texts | None = None
    annotations: Texts | None = None
    deletion_timestamp: str | None = None


NO_METADATA: Final = Metadata()


# -- labels and taints -----------------------------------------------------------------------------
class Requirement(Struct, frozen=True):
    """A condition on a label, or on a field of a node."""

    key: str = ""
    operator: str = "In"
    values: list[str] | None = None

    def holds(self, texts: Mapping[str, str]) -> bool:
        """Whether it holds for these labels; an unknown operator never does."""
        value, wanted = texts.get(self.key), self.values or []
        if self.operator == "In":
            return value is not None and value in wanted
        if self.operator == "NotIn":
            return value is None or value not in wanted
        if self.operator in ("Exists", "DoesNotExist"):
            return (value is not None) == (self.operator == "Exists")
        if value is None or not wanted or not (value.isdecimal() and wanted[0].isdecimal()):
            return False
        if self.operator == "Gt":
            return int(value[:18]) > int(wanted[0][:18])
        return self.operator == "Lt" and int(value[:18]) < int(wanted[0][:18])


class LabelSelector(Struct, frozen=True):
    """Which objects are meant; an empty selector means all."""

    match_labels: Texts | None = None
    match_expressions: list[Requirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether it selects an object with these labels."""
        plain = (self.match_labels or {}).items()
        return all(labels.get(key) == value for key, value in plain) and all(
            term.holds(labels) for term in self.match_expressions or ()
        )


class SelectorTerm(Struct, frozen=True):
    """One of several alternatives for a node; an empty one is met by none."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None

    def selects(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a node meets all of it."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {"metadata.name": name}
        return all(term.holds(labels) for term in self.match_expressions or ()) and all(
            term.holds(fields) for term in self.match_fields or ()
        )


class _Required(Struct, frozen=True):
    node_selector_terms: list[SelectorTerm] | None = None


class _NodeAffinity(Struct, frozen=True):
    required: _Required | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class Affinity(Struct, frozen=True):
    """Where a pod has to run."""

    node_affinity: _NodeAffinity | None = None


class Taint(Struct, frozen=True):
    """What keeps pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(Struct, frozen=True):
    """Which taints a pod does not mind."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether it covers a taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


# -- pods ------------------------------------------------------------------------------------------
class _FieldRef(Struct, frozen=True):
    field_path: str = ""


class _ValueFrom(Struct, frozen=True):
    field_ref: _FieldRef | None = None


class Variable(Struct, frozen=True):
    """A variable of a container; its value is unknown where it comes from elsewhere."""

    name: str = ""
    value: str | None = None
    value_from: _ValueFrom | None = None


class Mount(Struct, frozen=True):
    """Where a container sees a volume."""

    name: str = ""
    mount_path: str = ""


class ContainerSpec(Struct, frozen=True):
    """A container as written."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None
    volume_mounts: list[Mount] | None = None


class _SecretVolume(Struct, frozen=True):
    secret_name: str = ""


class _ConfigVolume(Struct, frozen=True):
    name: str = ""


class _HostPath(Struct, frozen=True):
    path: str = ""


class Volume(Struct, frozen=True):
    """What a pod mounts."""

    name: str = ""
    secret: _SecretVolume | None = None
    config_map: _ConfigVolume | None = None
    host_path: _HostPath | None = None


class PodSpec(Struct, frozen=True):
    """A pod as written."""

    node_name: str = ""
    runtime_class_name: str = ""
    service_account_name: str = ""
    scheduler_name: str = ""
    node_selector: Texts | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    containers: list[ContainerSpec] | None = None
    volumes: list[Volume] | None = None

    def wants(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether it may run on a node by its labels; taints aside."""
        plain = (self.node_selector or {}).items()
        if any(labels.get(key) != value for key, value in plain):
            return False
        inner = self.affinity.node_affinity if self.affinity else None
        if inner is None or inner.required is None:
            return True
        terms = inner.required.node_selector_terms or ()
        return any(term.selects(name, labels) for term in terms)


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(Struct, frozen=True):
    reason: str = ""
    message: str = ""
    exit_code: int = 0


class _ContainerState(Struct, frozen=True):
    waiting: _Waiting | None = None
    terminated: _Terminated | None = None


class ContainerStatus(Struct, frozen=True):
    """How a container is."""

    name: str = ""
    ready: bool = False
    state: _ContainerState | None = None
    last_state: _ContainerState | None = None


class Condition(Struct, frozen=True):
    """A condition of an object's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Struct, frozen=True):
    """How a pod is."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Struct, frozen=True):
    """A pod."""

    metadata: Metadata = NO_METADATA
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """True where Kubernetes sends requests to it."""
        conditions = self.status.conditions or ()
        is_going = self.metadata.deletion_timestamp is not None
        return not is_going and any(
            one.type == "Ready" and one.status == "True" for one in conditions
        )


# -- what makes pods -------------------------------------------------------------------------------
class _Template(Struct, frozen=True):
    metadata: Metadata = NO_METADATA
    spec: PodSpec = PodSpec()


class WorkloadSpec(Struct, frozen=True):
    """What a DaemonSet or Deployment makes."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: _Template = _Template()


class WorkloadStatus(Struct, frozen=True):
    """How far it is."""

    conditions: list[Condition] | None = None


class Workload(Struct, frozen=True):
    """A DaemonSet or a Deployment."""

    metadata: Metadata = NO_METADATA
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def pod(self) -> PodSpec:
        """The pods that it makes."""
        return self.spec.template.spec

    @property
    def container(self) -> ContainerSpec:
        """The first container of its pods."""
        return next(iter(self.pod.containers or ()), ContainerSpec())


def labels_of(metadata: Metadata) -> Mapping[str, str]:
    """Its labels."""
    return metadata.labels or NO_TEXTS


def arguments_of(container: ContainerSpec) -> list[str]:
    """All words that a container's program gets, its own name included."""
    return [*(container.command or ()), *(container.args or ())]


def statuses_of(pod: Pod) -> Iterable[ContainerStatus]:
    """How each container is, init containers first."""
    yield from pod.status.init_container_statuses or ()
    yield from pod.status.container_statuses or ()
