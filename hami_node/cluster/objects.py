"""Objects of the cluster as people's commands look at them: cut down, and all of it may be missing.

What must be quick, as in the extender and the daemon, has decoders of its own in `wire.objects`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import msgspec

Texts = dict[str, str]
NO_TEXTS: Final[Mapping[str, str]] = {}


class Struct(msgspec.Struct, rename="camel", frozen=True):
    """Part of an object, as JSON has it."""


def plain(value: object) -> Any:  # noqa: ANN401 - JSON
    """The JSON of a part, without what is empty."""
    return _full(msgspec.to_builtins(value))


def _full(value: object) -> object:
    if isinstance(value, dict):
        return {key: _full(each) for key, each in value.items() if each not in (None, "", [])}
    return [_full(each) for each in value] if isinstance(value, list | tuple) else value


class _Manager(Struct, frozen=True):
    manager: str = ""


class _Owner(Struct, frozen=True):
    kind: str = ""
    name: str = ""
    controller: bool = False


class Metadata(Struct, frozen=True):
    """What identifies an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: Texts | None = None
    annotations: Texts | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    owner_references: list[_Owner] | None = None
    managed_fields: list[_Manager] | None = None


NO_METADATA: Final = Metadata()


class Object(Struct, frozen=True):
    """An object of which only the name and the maker matter."""

    metadata: Metadata = NO_METADATA

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace; "" for none."""
        return self.metadata.namespace

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self.metadata.labels or NO_TEXTS

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.metadata.annotations or NO_TEXTS

    @property
    def release(self) -> str:
        """`namespace/name` of the Helm release that made it; "" for none."""
        name = self.annotations.get("meta.helm.sh/release-name", "")
        space = self.annotations.get("meta.helm.sh/release-namespace", "")
        return f"{space}/{name}" if name else ""

    @property
    def is_going(self) -> bool:
        """It is being deleted."""
        return self.metadata.deletion_timestamp is not None


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


REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


class _Required(Struct, frozen=True):
    node_selector_terms: list[SelectorTerm] | None = None


class _NodeAffinity(Struct, frozen=True):
    required: _Required | None = msgspec.field(name=REQUIRED, default=None)


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


class _Resources(Struct, frozen=True):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class ContainerSpec(Struct, frozen=True):
    """A container as written."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    resources: _Resources = _Resources()
    env: list[Variable] | None = None
    volume_mounts: list[Mount] | None = None


class _SecretVolume(Struct, frozen=True):
    secret_name: str = ""


class _Source(Struct, frozen=True):
    name: str = ""
    path: str = ""


class Volume(Struct, frozen=True):
    """What a pod mounts."""

    name: str = ""
    secret: _SecretVolume | None = None
    config_map: _Source | None = None
    host_path: _Source | None = None


class PodSpec(Struct, frozen=True):
    """A pod as written."""

    node_name: str = ""
    runtime_class_name: str = ""
    service_account_name: str = ""
    scheduler_name: str = ""
    node_selector: Texts | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    init_containers: list[ContainerSpec] | None = None
    containers: list[ContainerSpec] | None = None
    volumes: list[Volume] | None = None

    @property
    def alternatives(self) -> tuple[SelectorTerm, ...] | None:
        """Of these a node has to meet one; None where every node will do."""
        inner = self.affinity.node_affinity if self.affinity else None
        if inner is None or inner.required is None:
            return None
        return tuple(inner.required.node_selector_terms or ())

    def wants(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether it may run on a node by its labels; taints aside."""
        chosen = (self.node_selector or {}).items()
        if any(labels.get(key) != value for key, value in chosen):
            return False
        terms = self.alternatives
        return terms is None or any(term.selects(name, labels) for term in terms)

    def every_container(self) -> Iterator[ContainerSpec]:
        """All containers, init containers first."""
        yield from self.init_containers or ()
        yield from self.containers or ()


class _Waiting(Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Terminated(_Waiting, frozen=True):
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


class Pod(Object, frozen=True):
    """A pod."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def is_ready(self) -> bool:
        """True where Kubernetes sends requests to it."""
        conditions = self.status.conditions or ()
        return not self.is_going and any(
            one.type == "Ready" and one.status == "True" for one in conditions
        )

    @property
    def has_ended(self) -> bool:
        """It runs no more, and never will again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def controller(self) -> str:
        """`kind/name` of what made it; "" for none."""
        owners = self.metadata.owner_references or ()
        return next((f"{one.kind}/{one.name}" for one in owners if one.controller), "")

    @property
    def resources(self) -> frozenset[str]:
        """Extended resources that its containers ask for."""
        return frozenset(
            name
            for each in self.spec.every_container()
            for part in (each.resources.limits, each.resources.requests)
            for name in part or ()
            if "/" in name
        )


# -- what makes pods -------------------------------------------------------------------------------
class _Template(Struct, frozen=True):
    metadata: Metadata = NO_METADATA
    spec: PodSpec = PodSpec()


class _Update(Struct, frozen=True):
    type: str = ""


class WorkloadSpec(Struct, frozen=True):
    """What a DaemonSet or Deployment makes."""

    replicas: int = 1
    selector: LabelSelector = LabelSelector()
    template: _Template = _Template()
    update_strategy: _Update = _Update()


class WorkloadStatus(Struct, frozen=True):
    """How far it is."""

    conditions: list[Condition] | None = None
    desired_number_scheduled: int = 0
    number_ready: int = 0
    ready_replicas: int = 0


class Workload(Object, frozen=True):
    """A DaemonSet or a Deployment."""

    kind: ClassVar[str] = ""
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

    @property
    def shown(self) -> str:
        """`daemonset/name`, as kubectl takes it."""
        return f"{self.kind.lower()}/{self.name}"

    @property
    def owner(self) -> str:
        """Kind of the object that made it, such as ClusterPolicy; "" for none."""
        return next((one.kind for one in self.metadata.owner_references or ()), "")

    @property
    def images(self) -> tuple[str, ...]:
        """What its containers run."""
        return _unique(one.image for one in self.pod.every_container())

    @property
    def words(self) -> tuple[str, ...]:
        """Names and arguments of its containers' programs."""
        return tuple(w for one in self.pod.every_container() for w in arguments_of(one))

    @property
    def host_paths(self) -> tuple[str, ...]:
        """Folders of the node that its pods see."""
        return _unique(one.host_path.path for one in self.pod.volumes or () if one.host_path)

    @property
    def config_maps(self) -> tuple[str, ...]:
        """ConfigMaps that its pods mount."""
        return _unique(one.config_map.name for one in self.pod.volumes or () if one.config_map)

    @property
    def selector(self) -> Mapping[str, str]:
        """The labels of its pods."""
        return self.spec.selector.match_labels or NO_TEXTS

    @property
    def update(self) -> str:
        """How a DaemonSet replaces its pods."""
        return self.spec.update_strategy.type

    @property
    def wanted(self) -> int:
        """Pods that there should be."""
        return self.spec.replicas

    @property
    def ready(self) -> int:
        """Pods that are Ready."""
        return self.status.ready_replicas


class Deployment(Workload, frozen=True):
    """As many pods as it is told."""

    kind: ClassVar[str] = "Deployment"


class DaemonSet(Workload, frozen=True):
    """A pod on each node that it wants."""

    kind: ClassVar[str] = "DaemonSet"

    @property
    def wanted(self) -> int:
        """Pods that there should be."""
        return self.status.desired_number_scheduled

    @property
    def ready(self) -> int:
        """Pods that are Ready."""
        return self.status.number_ready


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    """Without repetitions and empty texts, in order."""
    return tuple(dict.fromkeys(filter(None, found)))


def arguments_of(container: ContainerSpec) -> list[str]:
    """All words that a container's program gets, its own name included."""
    return [*(container.command or ()), *(container.args or ())]


def statuses_of(pod: Pod) -> Iterable[ContainerStatus]:
    """How each container is, init containers first."""
    yield from pod.status.init_container_statuses or ()
    yield from pod.status.container_statuses or ()


# -- other objects ---------------------------------------------------------------------------------
class ConfigMap(Object, frozen=True):
    """Files of configuration."""

    data: Texts | None = None


class Secret(ConfigMap, frozen=True):
    """Values in base64."""


class _LeaseSpec(Struct, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Object, frozen=True):
    """Who leads."""

    spec: _LeaseSpec = _LeaseSpec()

    @property
    def holder(self) -> str:
        """Who holds it; "" for nobody."""
        return self.spec.holder_identity or ""


class _EndpointConditions(Struct, frozen=True):
    ready: bool | None = None


class Endpoint(Struct, frozen=True):
    """An address behind a Service."""

    addresses: list[str] | None = None
    conditions: _EndpointConditions | None = None

    @property
    def is_ready(self) -> bool:
        """Unknown counts as ready, as Kubernetes has it."""
        return self.conditions is None or self.conditions.ready is not False


class EndpointSlice(Object, frozen=True):
    """The addresses behind a Service."""

    endpoints: list[Endpoint] | None = None


class ServiceRef(Struct, frozen=True):
    """The Service that a webhook calls."""

    name: str = ""
    namespace: str = ""
    path: str = ""
    port: int = 443


class ClientConfig(Struct, frozen=True):
    """Whom a webhook calls."""

    service: ServiceRef | None = None
    ca_bundle: str = ""


class HookRule(Struct, frozen=True):
    """For which requests a webhook is called."""

    operations: list[str] | None = None
    resources: list[str] | None = None


class Expression(Struct, frozen=True):
    """A CEL expression."""

    name: str = ""
    expression: str = ""


class Webhook(Struct, frozen=True):
    """A webhook of a configuration."""

    name: str = ""
    client_config: ClientConfig = ClientConfig()
    failure_policy: str = "Fail"
    rules: list[HookRule] | None = None
    namespace_selector: LabelSelector | None = None
    object_selector: LabelSelector | None = None
    match_conditions: list[Expression] | None = None

    @property
    def service(self) -> str:
        """`namespace/name` of the Service that it calls; "" outside the cluster."""
        found = self.client_config.service
        return f"{found.namespace}/{found.name}" if found is not None and found.name else ""

    @property
    def is_paused(self) -> bool:
        """A match condition keeps it from every request."""
        return any(one.expression.strip() == "false" for one in self.match_conditions or ())

    @property
    def is_by_choice(self) -> bool:
        """It reviews only namespaces or pods that have a label for it."""
        selectors = (self.namespace_selector, self.object_selector)
        return any(one is not None and one.match_labels for one in selectors)


class WebhookConfiguration(Object, frozen=True):
    """A MutatingWebhookConfiguration."""

    webhooks: list[Webhook] | None = None


class _PolicySpec(Struct, frozen=True):
    failure_policy: str = "Fail"
    match_conditions: list[Expression] | None = None


class Policy(Object, frozen=True):
    """A ValidatingAdmissionPolicy."""

    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(Struct, frozen=True):
    policy_name: str = ""
    validation_actions: list[str] | None = None


class PolicyBinding(Object, frozen=True):
    """What puts a policy into force."""

    spec: _BindingSpec = _BindingSpec()


class NodeTaints(Struct, frozen=True):
    """The taints of a node."""

    taints: list[Taint] | None = None


# -- Events ----------------------------------------------------------------------------------------
class _About(Struct, frozen=True):
    kind: str | None = None
    namespace: str | None = None
    name: str | None = None
    uid: str | None = None


class _Reporter(Struct, frozen=True):
    component: str | None = None


class _Series(Struct, frozen=True):
    count: int | None = None
    last_observed_time: str | None = None


class Event(Struct, frozen=True):
    """What somebody reported about an object."""

    metadata: Metadata | None = None
    involved_object: _About | None = None
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    source: _Reporter | None = None
    reporting_component: str | None = None
    count: int | None = None
    series: _Series | None = None
    event_time: str | None = None
    last_timestamp: str | None = None

    @property
    def times(self) -> Iterator[str]:
        """When it was last seen: the best that is known first."""
        for each in (
            self.series and self.series.last_observed_time,
            self.last_timestamp,
            self.event_time,
            self.metadata and self.metadata.creation_timestamp,
        ):
            if each:
                yield each

    @property
    def when(self) -> str:
        """The same as text that sorts; "" where nobody says."""
        return next(self.times, "")
