"""ResourceQuota objects: the limits that concern cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.wire.values.quantity import parse_whole_quantity

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
