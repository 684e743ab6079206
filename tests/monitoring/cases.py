"""For each alert: series that make it fire, and much the same ones that must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Series = Mapping[str, str]
"""Values in promtool's notation, one a minute, by series."""
TARGET: Final = 'pod="d-1",instance="10.0.0.1:9394",job="hami-node"'
"""Labels of whom is scraped; after an update they are others."""
NODE: Final = f'node="n1",{TARGET}'
CARD: Final = f'node="n1",uuid="GPU-1",index="0",type="A100",{TARGET}'
ON_CARD: Final = f'node="n1",uuid="GPU-1",{TARGET}'
HELD: Final = (
    f'node="n1",namespace="ml",pod="p",container="c",uuid="GPU-1",instance="{TARGET[-6:-1]}"'
)
GIB: Final = 1 << 30
X: Final = "hami_node_extender_"
ALL_DAY: Final = 1600
"""Minutes: longer than any alert waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An alert, `minutes` after the beginning.

    Attributes:
        fires: series with which it fires once.
        quiet: others with which it does not.
        labels: what the firing alert says, besides name and severity.
    """

    fires: Series
    quiet: Series
    labels: Mapping[str, str]
    minutes: int


def held(value: object, minutes: int = ALL_DAY) -> str:
    """The same value all the time."""
    return f"{value}x{minutes}"


def from_then(at: int, before: object, after: object) -> str:
    """Another value from that minute on; `_` for no series."""
    return f"{before}x{at - 1} {after}x{ALL_DAY}"


def gauge(name: str, labels: str, *, bad: object, good: object, says: str, minutes: int) -> Case:
    """An alert on one gauge; `says` are the labels of it that it keeps."""
    own = dict(pair.split("=") for pair in labels.replace('"', "").split(","))
    return Case(
        fires={f"{name}{{{labels}}}": held(bad)},
        quiet={f"{name}{{{labels}}}": held(good)},
        labels={label: own[label] for label in says.split()},
        minutes=minutes,
    )


def counter(name: str, labels: str, *, harmless: str, says: str, minutes: int = 40) -> Case:
    """An alert on a counter whose series begins with the first event; other labels are harmless."""
    own = dict(pair.split("=") for pair in labels.replace('"', "").split(","))
    return Case(
        fires={f"{name}{{{labels}}}": from_then(minutes - 5, "_", 1)},
        quiet={
            f"{name}{{{labels}}}": held(7),  # an old one
            f"{name}{{{harmless}}}": f"0+1x{ALL_DAY}",
        },
        labels={label: own[label] for label in says.split()},
        minutes=minutes,
    )


def from_zero(name: str, minutes: int = 40) -> Case:
    """An alert on a counter of a node that is there from the start."""
    series = f"{name}{{{NODE}}}"
    return Case(
        fires={series: from_then(minutes - 5, 0, 1)},
        quiet={series: held(3)},
        labels={"node": "n1"},
        minutes=minutes,
    )


def limit(bad: int, name: str = "hami_node_container_memory_limit_bytes") -> Case:
    """More than was granted, and as much."""
    granted = {f"hami_node_allocation_memory_bytes{{{HELD}}}": held(8 * GIB)}
    series = f'{name}{{{HELD},index="0"}}'
    return Case(
        fires={**granted, series: held(bad)},
        quiet={**granted, series: held(8 * GIB)},
        labels={
            "node": "n1", "namespace": "ml", "pod": "p", "container": "c", "uuid": "GPU-1",
        },
        minutes=20,
    )  # fmt: skip


def offered(memory: int, granted: int, *, slots: int = 10, used: int = 1) -> Series:
    """A card of the extender's page."""
    return {
        f"{X}card_memory_bytes{{{ON_CARD}}}": held(memory),
        f"{X}card_memory_granted_bytes{{{ON_CARD}}}": held(granted),
        f"{X}card_slots{{{ON_CARD}}}": held(slots),
        f"{X}card_slots_used{{{ON_CARD}}}": held(used),
    }


def failing(name: str, bad: str, good: str) -> Case:
    """Every second call fails, or every twentieth... does not."""
    labels = {
        label: value
        for label, value in (pair.split("=") for pair in bad.replace('"', "").split(","))
        if label in ("node", "route")
    }
    return Case(
        fires={f"{name}{{{bad}}}": f"0+1x{ALL_DAY}", f"{name}{{{good}}}": f"0+1x{ALL_DAY}"},
        quiet={f"{name}{{{bad}}}": f"0+1x{ALL_DAY}", f"{name}{{{good}}}": f"0+50x{ALL_DAY}"},
        labels=labels,
        minutes=60,
    )


def slow(name: str, labels: str, says: Mapping[str, str]) -> Case:
    """All calls take six seconds, or less than one."""

    def calls(within: int) -> Series:
        return {
            f'{name}_bucket{{{labels},le="{edge}"}}': f"0+{0 if edge < within else 6}x{ALL_DAY}"
            for edge in (1, 5, 10)
        } | {f'{name}_bucket{{{labels},le="+Inf"}}': f"0+6x{ALL_DAY}"}

    return Case(fires=calls(10), quiet=calls(1), labels=says, minutes=60)


NODE_CASES: Final[Mapping[str, Case]] = {
    "HamiCardUnhealthy": gauge(
        "hami_node_card_healthy", CARD, bad=0, good=1, says="node uuid index type", minutes=10
    ),
    "HamiDriverErrors": counter(
        "hami_node_xid_events_total",
        f'{ON_CARD},xid="79",ignored="false"',
        harmless=f'{ON_CARD},xid="31",ignored="true"',
        says="node uuid xid",
    ),
    "HamiCardsNotScanned": gauge(
        "hami_node_backend_pass_age_seconds", f'{NODE},backend="nvml"', bad=90, good=2,
        says="node backend", minutes=10,
    ),
    "HamiNotRegistered": gauge(
        "hami_node_registered", f'{NODE},resource="nvidia.com/gpu"', bad=0, good=1,
        says="node resource", minutes=10,
    ),
    "HamiResourceTaken": gauge(
        "hami_node_resource_taken", f'{NODE},resource="nvidia.com/gpu"', bad=1, good=0,
        says="node resource", minutes=10,
    ),
    "HamiForeignHolders": gauge(
        "hami_node_foreign_pods", NODE, bad=2, good=0, says="node", minutes=90
    ),
    "HamiNotReported": gauge(
        "hami_node_report_age_seconds", NODE, bad=130, good=29, says="node", minutes=10
    ),
    "HamiHandshakeUnanswered": gauge(
        "hami_node_handshake_unanswered", f'{NODE},try_format="csv9"', bad=1, good=0,
        says="node try_format", minutes=60,
    ),
    "HamiPodsRefusedByNode": counter(
        "hami_node_allocate_total", f'{NODE},result="grant-mismatch"',
        harmless=f'{NODE},result="ok"', says="node result",
    ),
    "HamiAllocateSlow": slow("hami_node_allocate_seconds", NODE, {"node": "n1"}),
    "HamiLimiterMissing": gauge(
        "hami_node_limiter_missing", NODE, bad=1, good=0, says="node", minutes=10
    ),
    "HamiLimiterDefective": gauge(
        "hami_node_limiter_defective", NODE, bad=1, good=0, says="node", minutes=90
    ),
    "HamiSeveralLimiters": Case(
        fires={
            f'hami_node_limiter_info{{{NODE},version="1",sha256="a"}}': held(1),
            'hami_node_limiter_info{node="n2",version="1",sha256="b"}': held(1),
        },
        quiet={
            f'hami_node_limiter_info{{{NODE},version="1",sha256="a"}}': held(1),
            'hami_node_limiter_info{node="n2",version="1",sha256="a"}': held(1),
        },
        labels={},
        minutes=1500,
    ),
    "HamiLimitLifted": limit(16 * GIB),
    "HamiUsesMoreThanGranted": limit(10 * GIB, "hami_node_container_memory_used_bytes"),
    "HamiUsageUnreadable": gauge(
        "hami_node_container_usage_unreadable",
        'node="n1",namespace="ml",pod="p",container="c",reason="size"', bad=1, good=0,
        says="node namespace pod container reason", minutes=30,
    ),
    "HamiContainerIdle": gauge(
        "hami_node_container_last_kernel_age_seconds", HELD, bad=15000, good=60,
        says="node namespace pod container uuid", minutes=30,
    ),
    "HamiFilesLeft": gauge(
        "hami_node_container_files_stuck", NODE, bad=2, good=0, says="node", minutes=90
    ),
    "HamiRecordNotWritten": from_zero("hami_node_record_write_failures_total"),
    "HamiRecordLost": counter(
        "hami_node_record_rebuilt_total", f'{NODE},reason="damaged"',
        harmless=f'{NODE},reason="missing"', says="node", minutes=90,
    ),
    "HamiAnnotationsEdited": gauge(
        "hami_node_record_drift_pods", NODE, bad=1, good=0, says="node", minutes=30
    ),
    "HamiNodeConfigRefused": from_zero("hami_node_config_reload_failures_total"),
    "HamiNodeApiErrors": failing(
        "hami_node_api_requests_total", f'{NODE},verb="patch",resource="nodes",code="0"',
        f'{NODE},verb="patch",resource="nodes",code="200"',
    ),
    "HamiPartCallsFail": Case(
        fires={
            f'hami_node_part_call_failures_total{{{NODE},function="create",reason="in use"}}':
            f"0+1x{ALL_DAY}"
        },
        quiet={
            f'hami_node_part_call_failures_total{{{NODE},function="create",reason="in use"}}':
            from_then(50, 0, 1)
        },
        labels={"node": "n1", "function": "create", "reason": "in use"},
        minutes=60,
    ),
    "HamiSimulatedCards": gauge(
        "hami_node_simulated", NODE, bad=1, good=0, says="node", minutes=10
    ),
    "HamiSeveralVersions": Case(
        fires={
            f'hami_node_build_info{{{NODE},version="1"}}': held(1),
            'hami_node_build_info{node="n2",version="2"}': held(1),
        },
        quiet={
            f'hami_node_build_info{{{NODE},version="1"}}': held(1),
            'hami_node_build_info{node="n2",version="1"}': held(1),
        },
        labels={},
        minutes=1500,
    ),
}  # fmt: skip

LEADING: Final = {f'{X}leading{{pod="e-1"}}': held(1)}
WAITING: Final = f'{X}waiting_pods{{reason="CardInsufficientMemory",pod="e-1"}}'

SCHEDULER_CASES: Final[Mapping[str, Case]] = {
    "HamiNobodyDecides": Case(
        fires={f'{X}leading{{pod="e-1"}}': held(0)},
        quiet={f'{X}leading{{pod="e-1"}}': held(0), f'{X}leading{{pod="e-2"}}': held(1)},
        labels={},
        minutes=10,
    ),
    "HamiSeveralDecide": Case(
        fires={**LEADING, f'{X}leading{{pod="e-2"}}': held(1)},
        quiet={**LEADING, f'{X}leading{{pod="e-2"}}': held(0)},
        labels={},
        minutes=10,
    ),
    "HamiPodsWait": Case(
        fires={f'{X}longest_wait_seconds{{pod="e-1"}}': held(4000)},
        quiet={f'{X}longest_wait_seconds{{pod="e-1"}}': held(600)},
        labels={},
        minutes=10,
    ),
    "HamiPodsNeverFit": Case(
        fires={f'{X}waiting_pods{{reason="PodRefused",pod="e-1"}}': held(1)},
        quiet={WAITING: held(3)},
        labels={"reason": "PodRefused"},
        minutes=30,
    ),
    "HamiMemoryFragmented": Case(
        fires={WAITING: held(1), **offered(80 * GIB, 40 * GIB)},
        quiet={WAITING: held(1), **offered(80 * GIB, 79 * GIB)},
        labels={},
        minutes=60,
    ),
    "HamiClusterFull": Case(
        fires=offered(80 * GIB, 20 * GIB, slots=10, used=10),
        quiet=offered(80 * GIB, 79 * GIB),
        labels={"size": "1Gi"},
        minutes=60,
    ),
    "HamiCardOvercommitted": Case(
        fires=offered(16 * GIB, 20 * GIB),
        quiet=offered(0, 20 * GIB, slots=0),  # it is not offered now: its node is cordoned
        labels={"node": "n1", "uuid": "GPU-1"},
        minutes=20,
    ),
    "HamiDaemonMissing": Case(
        fires={
            f'hami_node_build_info{{{NODE},version="1"}}': from_then(60, 1, "_"),
            f'{X}card_info{{node="n1",uuid="GPU-1"}}': held(1),
        },
        quiet={
            # updated: there is another pod
            f'hami_node_build_info{{{NODE},version="1"}}': from_then(60, 1, "_"),
            'hami_node_build_info{node="n1",pod="d-2",version="2"}': from_then(62, "_", 1),
            f'{X}card_info{{node="n1",uuid="GPU-1"}}': held(1),
            # removed
            'hami_node_build_info{node="n2",pod="d-3",version="1"}': from_then(60, 1, "_"),
            f'{X}card_info{{node="n2",uuid="GPU-2"}}': from_then(60, 1, "_"),
        },
        labels={"node": "n1"},
        minutes=120,
    ),
    "HamiNodesSilent": gauge(
        f"{X}silent_nodes", TARGET, bad=1, good=0, says="", minutes=20
    ),
    "HamiNodesBackedOff": gauge(
        f"{X}nodes_backed_off", f'{TARGET},reason="plugin-unavailable"',
        bad=1, good=0, says="", minutes=20,
    ),
    "HamiNodeLockHeld": gauge(
        f"{X}oldest_lock_seconds", TARGET, bad=500, good=20, says="", minutes=20
    ),
    "HamiBindsFail": failing(
        f"{X}decisions_total", 'call="bind",result="failed"', 'call="bind",result="bound"'
    ),
    "HamiExtenderSlow": slow(
        f"{X}request_seconds", 'route="/filter",code="200"', {"route": "/filter"}
    ),
    "HamiExtenderErrors": failing(
        f"{X}request_seconds_count", 'route="/filter",code="500"', 'route="/filter",code="200"'
    ),
    "HamiExtenderApiErrors": failing(
        f"{X}api_requests_total", 'verb="patch",resource="pods",code="0"',
        'verb="patch",resource="pods",code="200"',
    ),
}  # fmt: skip
