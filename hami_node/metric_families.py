"""Every metric of the daemon: name, kind, meaning, labels. Prefix hami_node_, base units."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a series behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name, meaning and labels; `node` comes first in every one."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()


_CARD: Final = ("uuid", "index", "type")
_HOLDER: Final = ("namespace", "pod", "container", "uuid")


def _counter(name: str, doc: str, *labels: str) -> Family:
    return Family(name=f"hami_node_{name}_total", kind=Kind.COUNTER, doc=doc, labels=labels)


def _gauge(name: str, doc: str, *labels: str) -> Family:
    return Family(name=f"hami_node_{name}", kind=Kind.GAUGE, doc=doc, labels=labels)


BUILD_INFO: Final = _gauge("build_info", "1, with the version of this daemon.", "version")
SIMULATED: Final = _gauge("simulated", "1 when the cards are simulated, not real.")
CARD_INFO: Final = _gauge(
    "card_info", "1 for each card, with its facts.", *_CARD, "vendor", "mode", "numa", "pci_bus"
)
CARD_HEALTHY: Final = _gauge("card_healthy", "1 when the card can be used, else 0.", *_CARD)
CARD_UNHEALTHY: Final = _gauge(
    "card_unhealthy", "1 while the card can not be used, with the reason.", *_CARD, "reason"
)
CARD_SLOTS: Final = _gauge("card_slots", "Containers that may share the card.", *_CARD)
CARD_SLOTS_USED: Final = _gauge("card_slots_used", "Containers that share the card now.", *_CARD)
CARD_PHYSICAL: Final = _gauge("card_memory_physical_bytes", "Real memory of the card.", *_CARD)
CARD_MEMORY: Final = _gauge(
    "card_memory_bytes", "Memory offered on the card, scaling included.", *_CARD
)
CARD_MEMORY_GRANTED: Final = _gauge(
    "card_memory_granted_bytes", "Memory granted to containers on the card.", *_CARD
)
CARD_CORES: Final = _gauge(
    "card_cores_ratio", "Cores offered on the card, scaling included; 1 is one card.", *_CARD
)
CARD_CORES_GRANTED: Final = _gauge(
    "card_cores_granted_ratio", "Cores granted to containers on the card; 1 is one card.", *_CARD
)
HELD_MEMORY: Final = _gauge(
    "allocation_memory_bytes", "Memory that a container holds on a card.", *_HOLDER
)
HELD_CORES: Final = _gauge(
    "allocation_cores_ratio", "Cores that a container holds on a card; 1 is one card.", *_HOLDER
)
REGISTERED: Final = _gauge(
    "registered", "1 while kubelet has accepted our registration.", "resource"
)
REGISTRATIONS: Final = _counter("registrations", "Registrations with kubelet.", "resource")
ALLOCATE: Final = _counter("allocate", "Allocate calls by how they ended.", "result")
ALLOCATE_SECONDS: Final = Family(
    name="hami_node_allocate_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time of an Allocate call, API requests included.",
)
API_REQUESTS: Final = _counter(
    "api_requests",
    "Requests to the API server; code 0 means no answer.",
    "verb",
    "resource",
    "code",
)
REPORT_AGE: Final = _gauge(
    "report_age_seconds", "Time since the node's annotations were last found or made right."
)
HANDSHAKE_UNANSWERED: Final = _gauge(
    "handshake_unanswered",
    "1 while a scheduler leaves our handshake unanswered: it may need --register-format of the "
    "label.",
    "try_format",
)
PASS_AGE: Final = _gauge(
    "backend_pass_age_seconds", "Time since the last finished look at the cards.", "backend"
)
XIDS: Final = _counter(
    "xid_events",
    "XID errors that the driver told; ignored ones do no harm.",
    "uuid",
    "xid",
    "ignored",
)
CONFIG_GENERATION: Final = _gauge(
    "config_generation", "Number of settings taken over since the start, 1 for the first."
)
CONFIG_FAILURES: Final = _counter(
    "config_reload_failures", "Changed files that were refused; the old settings stayed."
)
LIMITER_MISSING: Final = _gauge(
    "limiter_missing", "1 while the limiter's files are missing on this node."
)
LOCKS_REMOVED: Final = _counter("locks_removed", "Node locks that we removed.", "reason")
EVENTS_DROPPED: Final = _counter("events_dropped", "Events that could not be written.")
NEURON_VIOLATIONS: Final = _counter(
    "neuron_violations", "Neuron grants of pods that contradict the rules.", "rule"
)

FAMILIES: Final = tuple(one for one in list(globals().values()) if isinstance(one, Family))
"""Every metric, in the order of declaration."""
