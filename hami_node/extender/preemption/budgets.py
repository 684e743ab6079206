"""Which pods must not be added to kube-scheduler's victims: those of disruption budgets.

kube-scheduler counts the budgets that its own victims violate. What a further victim would violate
nobody counts, so none is added of which that is not certain.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Final, Protocol

from hami_node.errors import KubeError, WireError
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.wire.budgets import DisruptionBudget, decode_budget

log = logging.getLogger(__name__)

FRESH_S: Final = 10.0
"""How long a list is good: a pod that fits nowhere is tried again every few seconds."""


class BudgetKube(Protocol):
    """What is needed of the Kubernetes API."""

    def list_disruption_budgets(self) -> tuple[Mapping[str, object], ...]:
        """LIST the budgets of all namespaces, as plain values. Raises KubeError."""


class Protection:
    """Reads the budgets when they are needed. Thread-safe."""

    def __init__(self, kube: BudgetKube, clock: Clock) -> None:
        """Read from `kube`."""
        self._kube, self._clock = kube, clock
        self._lock = threading.Lock()
        self._known: tuple[float, tuple[DisruptionBudget, ...] | None] | None = None

    def is_protected(self, pod: Pod) -> bool:
        """True for a pod that a budget may concern, and for all while that can't be found out."""
        budgets = self._budgets()
        return budgets is None or any(
            budget.may_concern(pod.namespace, pod.labels) for budget in budgets
        )

    def refresh(self) -> None:
        """Read them unless that was done just now; this may take some seconds."""
        now_s = self._clock.monotonic()
        with self._lock:
            if self._known is not None and now_s - self._known[0] < FRESH_S:
                return
        found = self._read()
        with self._lock:
            self._known = (self._clock.monotonic(), found)

    def _budgets(self) -> tuple[DisruptionBudget, ...] | None:
        with self._lock:
            return None if self._known is None else self._known[1]

    def _read(self) -> tuple[DisruptionBudget, ...] | None:
        try:
            return tuple(decode_budget(raw) for raw in self._kube.list_disruption_budgets())
        except (KubeError, WireError) as e:
            why = "no pod is evicted but those that kube-scheduler proposes"
            log.warning("budgets_unknown", extra=kv(error=str(e), why=why))
            return None
