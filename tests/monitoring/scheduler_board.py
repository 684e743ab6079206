"""The dashboard of the extender."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import (
    BYTES,
    PER_SECOND,
    SECONDS,
    Json,
    dashboard,
    graph,
    row,
    stat,
)

X: Final = "hami_node_extender_"
RATE: Final = "[$__rate_interval]"
MINE: Final = f"on (instance) group_left () max by (instance) ({X}build_info)"


def quantile(share: float) -> str:
    """Of the times of all routes."""
    rates = f"rate({X}request_seconds_bucket{RATE})"
    return f"histogram_quantile({share}, sum by (route, le) ({rates}))"


PANELS: Final = (
    row("State"),
    stat(
        "Replicas that lead",
        f"sum({X}leading)",
        "Exactly one decides.",
        steps=(("red", None), ("green", 1), ("red", 2)),
    ),
    stat("Replicas", f"count({X}build_info)", "That are scraped."),
    stat("Nodes", f"max({X}nodes)", "That offer cards."),
    stat("Pods", f"max({X}pods)", "That hold cards, or have a reservation."),
    stat("Pods waiting", f"sum({X}waiting_pods) or vector(0)", "For which no node was found."),
    stat("Locked nodes", f"max({X}locked_nodes)", "On which a pod is being bound."),
    row("Calls"),
    graph(
        "Calls",
        "A second, by route and answer.",
        (f"sum by (route, code) (rate({X}request_seconds_count{RATE}))", "{{route}} {{code}}"),
        unit=PER_SECOND,
    ),
    graph(
        "Time of a call",
        "Of 100 calls, 99 are faster.",
        (quantile(0.99), "{{route}}"),
        unit=SECONDS,
    ),
    graph(
        "Time of a call, the half",
        "Of 100 calls, 50 are faster.",
        (quantile(0.5), "{{route}}"),
        unit=SECONDS,
    ),
    graph(
        "Decisions",
        "A minute: which pods got a node, which did not.",
        (f"60 * sum by (call, result) (rate({X}decisions_total{RATE}))", "{{call}} {{result}}"),
        width=12,
    ),
    graph(
        "Waiting pods",
        "By the reason of most nodes.",
        (f"sum by (reason) ({X}waiting_pods)", "{{reason}}"),
        width=12,
        is_stacked=True,
    ),
    row("What it depends on"),
    graph(
        "Requests to the API server",
        "A second, by answer; 0 is no answer.",
        (
            f"sum by (verb, resource, code) (rate({X}api_requests_total{RATE}))",
            "{{verb}} {{resource}} {{code}}",
        ),
        unit=PER_SECOND,
        width=12,
    ),
    graph(
        "Silent nodes and old locks",
        "Nodes whose daemons no longer answer; age of the oldest node lock, seconds.",
        (f"max({X}silent_nodes)", "silent nodes"),
        (f"max({X}oldest_lock_seconds)", "oldest lock"),
    ),
    graph(
        "Leaders",
        "1 for the replica that decides.",
        (f"{X}leading", "{{pod}} {{instance}}"),
        width=6,
    ),
    graph(
        "Memory",
        "Resident, of each replica.",
        (f"process_resident_memory_bytes * {MINE}", "{{pod}} {{instance}}"),
        unit=BYTES,
        width=6,
    ),
    graph(
        "CPU",
        "Cores, of each replica.",
        (f"rate(process_cpu_seconds_total{RATE}) * {MINE}", "{{pod}} {{instance}}"),
        width=6,
    ),
    graph(
        "Events that were left out, and resizes",
        "A minute.",
        (f"60 * sum(rate({X}events_dropped_total{RATE}))", "events left out"),
        (f"60 * sum by (result) (rate({X}resizes_total{RATE}))", "resize {{result}}"),
        width=6,
    ),
)


def scheduler_board() -> Json:
    """All replicas together."""
    doc = "The extender: what it decides, how fast, and what keeps it."
    return dashboard("hami-node-scheduler", "hami-node / Scheduler", doc, PANELS)
