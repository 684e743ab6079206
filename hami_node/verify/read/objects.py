"""Other objects of the cluster, cut down to what is looked at; all of it may be missing."""

from __future__ import annotations

from hami_node.verify.read.pod_objects import (
    NO_METADATA,
    LabelSelector,
    Metadata,
    Struct,
    Taint,
    Texts,
)


class Named(Struct, frozen=True):
    """An object of which only the name matters."""

    metadata: Metadata = NO_METADATA


class ConfigMap(Struct, frozen=True):
    """Files of configuration."""

    data: Texts | None = None


class Secret(Struct, frozen=True):
    """Values in base64."""

    data: Texts | None = None


class _LeaseSpec(Struct, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Struct, frozen=True):
    """Who leads."""

    spec: _LeaseSpec = _LeaseSpec()


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


class EndpointSlice(Struct, frozen=True):
    """The addresses behind a Service."""

    metadata: Metadata = NO_METADATA
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


class WebhookConfiguration(Struct, frozen=True):
    """A MutatingWebhookConfiguration."""

    metadata: Metadata = NO_METADATA
    webhooks: list[Webhook] | None = None


class _PolicySpec(Struct, frozen=True):
    failure_policy: str = "Fail"
    match_conditions: list[Expression] | None = None


class Policy(Struct, frozen=True):
    """A ValidatingAdmissionPolicy."""

    metadata: Metadata = NO_METADATA
    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(Struct, frozen=True):
    policy_name: str = ""
    validation_actions: list[str] | None = None


class PolicyBinding(Struct, frozen=True):
    """What puts a policy into force."""

    spec: _BindingSpec = _BindingSpec()


class NodeTaints(Struct, frozen=True):
    """The taints of a node."""

    taints: list[Taint] | None = None


class Event(Struct, frozen=True):
    """What somebody reported about an object."""

    type: str = ""
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None
    event_time: str | None = None

    @property
    def when(self) -> str:
        """Its time as text that sorts."""
        return self.last_timestamp or self.event_time or ""
