"""ResourceQuota, LimitRange and PodDisruptionBudget objects: the limits of tenants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.wire.values import parse_whole_quantity

LIMITS: Final = "limits."
"""Before a resource's name in `spec.hard`: what HAMi's schedulers keep, ours too."""
REQUESTS: Final = "requests."
"""The same for what Kubernetes itself keeps when a pod is created, and nobody later."""


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct):
    hard: dict[str, str | int | float] | None = None


class _Quota(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Bounds(msgspec.Struct):
    type: str = ""
    max: dict[str, str | int | float] | None = None


class _RangeSpec(msgspec.Struct):
    limits: list[_Bounds] | None = None


class _LimitRange(msgspec.Struct):
    spec: _RangeSpec = msgspec.field(default_factory=_RangeSpec)


_DECODER: Final = msgspec.json.Decoder(_Quota)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceQuota:
    """A ResourceQuota: its hard limits as text, extended resources only."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    hard: Mapping[str, str] = field(default_factory=dict)

    def limit(self, resource: str, kind: str = LIMITS) -> int | None:
        """The limit of a resource in its own unit; None if it is absent or not a whole number.

        Source: HAMi 2.10 device/quota.go:196-207, which skips other values too.
        """
        text = self.hard.get(kind + resource)
        if text is None:
            return None
        try:
            return max(parse_whole_quantity(text, resource), 0)
        except WireError:
            return None


def decode_resource_quota(raw: bytes | Mapping[str, object]) -> ResourceQuota:
    """Read a ResourceQuota, as JSON text or parsed already.

    Raises:
        WireError: not such an object.
    """
    try:
        quota = _DECODER.decode(raw) if isinstance(raw, bytes) else msgspec.convert(raw, _Quota)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as e:
        raise WireError("resourcequota", str(e), "can't be read") from e
    hard = quota.spec.hard or {}
    return ResourceQuota(
        namespace=quota.metadata.namespace,
        name=quota.metadata.name,
        uid=quota.metadata.uid,
        resource_version=quota.metadata.resource_version,
        hard={key: str(value) for key, value in hard.items() if "/" in key},
    )


def maximum_in(
    limit_ranges: Iterable[Mapping[str, object]], kind: str, resource: str
) -> int | None:
    """The most of a resource that a `Container` or a `Pod` may have; None for no limit.

    Raises:
        WireError: not LimitRange objects, or the maximum is no whole number.
    """
    try:
        ranges = [msgspec.convert(raw, _LimitRange) for raw in limit_ranges]
    except (msgspec.MsgspecError, RecursionError) as e:
        raise WireError("limitrange", str(e), "can't be read") from e
    bounds = [one for found in ranges for one in found.spec.limits or () if one.type == kind]
    maxima = [one.max[resource] for one in bounds if one.max and resource in one.max]
    return min((parse_whole_quantity(str(text), resource) for text in maxima), default=None)


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class _BudgetSpec(msgspec.Struct):
    selector: _Selector | None = None


class _Budget(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionBudget:
    """A budget; `labels` are those that all of its pods have, None if it concerns no pod."""

    namespace: str
    labels: Mapping[str, str] | None

    def may_concern(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a pod may be one of its pods: `matchExpressions` count as met."""
        return (
            self.labels is not None
            and namespace == self.namespace
            and all(labels.get(key) == value for key, value in self.labels.items())
        )


def decode_budget(raw: Mapping[str, object]) -> DisruptionBudget:
    """Read one budget.

    Raises:
        WireError: a field of the wrong kind; the text names the field.
    """
    try:
        found = msgspec.convert(raw, _Budget)
    except msgspec.MsgspecError as error:
        raise WireError("PodDisruptionBudget", str(error), "can't be read") from error
    selector = found.spec.selector
    return DisruptionBudget(
        namespace=found.metadata.namespace,
        labels=None if selector is None else selector.match_labels or {},
    )
