"""PodDisruptionBudget objects: which pods they may concern."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import WireError


class _Metadata(msgspec.Struct):
    namespace: str = ""


class _Selector(msgspec.Struct, rename="camel"):
    match_labels: dict[str, str] | None = None


class _Spec(msgspec.Struct):
    selector: _Selector | None = None


class _Budget(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


_WHAT: Final = "PodDisruptionBudget"


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
        raise WireError(_WHAT, str(error), "can't be read") from error
    selector = found.spec.selector
    return DisruptionBudget(
        namespace=found.metadata.namespace,
        labels=None if selector is None else selector.match_labels or {},
    )
