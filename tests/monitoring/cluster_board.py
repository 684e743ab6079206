"""The dashboard of the whole cluster."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import (
    BYTES,
    GOOD_BELOW,
    NONE_IS_GOOD,
    RATIO,
    SECONDS,
    Json,
    dashboard,
    graph,
    row,
    stat,
    table,
)

X: Final = "hami_node_extender_"


def per_card(name: str) -> str:
    """A gauge of the extender, once for each card whoever was scraped."""
    return f"max by (node, uuid) ({X}{name})"


def by_type(name: str) -> str:
    """Its sum for each type of card."""
    info = f"max by (node, uuid, type) ({X}card_info)"
    return f"sum by (type) ({per_card(name)} * on (node, uuid) group_right () {info})"


CAPACITY: Final = (
    row("Capacity"),
    stat(
        "Cards offered", "hami_node:cards_offered:count", "Cards that pods can get a share of now."
    ),
    stat("Memory offered", "hami_node:memory_offered_bytes:sum", "Scaling included.", BYTES),
    stat(
        "Memory granted",
        "hami_node:memory_granted_bytes:sum / hami_node:memory_offered_bytes:sum",
        "What pods hold, as a share of what is offered.",
        RATIO,
        GOOD_BELOW,
    ),
    stat(
        "Memory in use",
        "hami_node:memory_used_bytes:sum / hami_node:memory_offered_bytes:sum",
        "What everybody really uses, as the driver says, as a share of what is offered.",
        RATIO,
    ),
    stat("Containers", f"sum({per_card('card_slots_used')})", "Shares of cards that are held."),
    stat(
        "Pods waiting",
        f"sum({X}waiting_pods) or vector(0)",
        "Pods for which the last call found no node.",
        steps=(("green", None), ("yellow", 1)),
    ),
    graph(
        "Memory",
        "Offered by all cards, granted to pods, and used by anybody.",
        ("hami_node:memory_offered_bytes:sum", "offered"),
        ("hami_node:memory_granted_bytes:sum", "granted"),
        ("hami_node:memory_used_bytes:sum", "used"),
        unit=BYTES,
    ),
    graph(
        "Cores",
        "In whole cards: offered, granted, and the share of time in which a kernel ran.",
        (f"sum({per_card('card_cores_ratio')})", "offered"),
        (f"sum({per_card('card_cores_granted_ratio')})", "granted"),
        ("sum(max by (node, uuid) (hami_node_card_core_use_ratio))", "used"),
    ),
    graph(
        "Memory granted by card type",
        "As a share of what cards of that type offer.",
        (
            f"{by_type('card_memory_granted_bytes')} / ({by_type('card_memory_bytes')} > 0)",
            "{{type}}",
        ),
        unit=RATIO,
    ),
)
WAITS: Final = (
    row("Waiting and refusals"),
    graph(
        "Waiting pods",
        "By the reason of most nodes.",
        (f"sum by (reason) ({X}waiting_pods)", "{{reason}}"),
        is_stacked=True,
    ),
    graph(
        "Longest wait",
        "Age of the oldest pod that waits.",
        (f"max({X}longest_wait_seconds)", "oldest"),
        unit=SECONDS,
    ),
    graph(
        "Decisions",
        "Answers to the scheduler and of the webhook, a minute.",
        (
            f"60 * sum by (call, result) (rate({X}decisions_total[$__rate_interval]))",
            "{{call}} {{result}}",
        ),
    ),
    graph(
        "Refused by nodes",
        "Pods that a daemon refused although a scheduler had sent them, within 15 minutes.",
        ("sum by (node, result) (hami_node:allocate_refused:increase15m)", "{{node}} {{result}}"),
        width=12,
    ),
    graph(
        "Node locks",
        "Nodes on which a pod is being bound, and how long the oldest of them has been.",
        (f"max({X}locked_nodes)", "locked nodes"),
        (f"max({X}oldest_lock_seconds)", "age of the oldest, seconds"),
        width=12,
    ),
)
FRAGMENTATION: Final = (
    row("Fragmentation"),
    graph(
        "Pods that still fit",
        "How many more pods of a size find a card, each size for itself.",
        ("hami_node:slices_free:sum", "{{size}}"),
        width=12,
    ),
    graph(
        "Free memory",
        "All that is free on healthy cards with a free slot, and the largest piece of it.",
        ("hami_node:memory_free_bytes:sum", "all"),
        ("hami_node:memory_free_bytes:max", "largest piece"),
        unit=BYTES,
        width=12,
    ),
    table(
        "Nodes with the largest pieces",
        "The largest pod that each node could still take, by memory.",
        "topk(20, max by (node) (hami_node:card_memory_free_bytes))",
        "largest piece",
        unit=BYTES,
    ),
    table(
        "Nodes with the most free memory",
        "Over all cards of a node; a pod gets it only in pieces.",
        "topk(20, sum by (node) (hami_node:card_memory_free_bytes))",
        "free",
        unit=BYTES,
    ),
)
WASTE: Final = (
    row("Waste"),
    graph(
        "Memory by namespace: granted",
        "What the containers of a namespace hold.",
        ("topk(15, hami_node:namespace_memory_granted_bytes:sum)", "{{namespace}}"),
        unit=BYTES,
        is_stacked=True,
    ),
    graph(
        "Memory by namespace: used",
        "What they really use.",
        ("topk(15, hami_node:namespace_memory_used_bytes:sum)", "{{namespace}}"),
        unit=BYTES,
        is_stacked=True,
    ),
    graph(
        "Granted and not used",
        "Of all memory that containers hold.",
        ("sum(hami_node:container_memory_unused_bytes:sum)", "not used"),
        unit=BYTES,
    ),
    table(
        "Containers that use least of what they hold",
        "Memory that they hold and don't use.",
        "topk(20, hami_node:container_memory_unused_bytes:sum)",
        "not used",
        unit=BYTES,
    ),
    table(
        "Containers that have been idle longest",
        "Time since they last launched a kernel.",
        "topk(20, max by (node, namespace, pod, container) "
        "(hami_node_container_last_kernel_age_seconds))",
        "idle",
        unit=SECONDS,
    ),
)
HEALTH: Final = (
    row("Health"),
    stat(
        "Unhealthy cards",
        "count(max by (node, uuid) (hami_node_card_healthy) == 0) or vector(0)",
        "Cards that get no new pods.",
        steps=NONE_IS_GOOD,
    ),
    stat(
        "Silent nodes",
        f"max({X}silent_nodes) or vector(0)",
        "Nodes whose daemons no longer answer the scheduler.",
        steps=NONE_IS_GOOD,
    ),
    stat(
        "Oldest lock",
        f"max({X}oldest_lock_seconds) or vector(0)",
        "Age of the oldest node lock.",
        SECONDS,
        (("green", None), ("yellow", 60), ("red", 300)),
    ),
    stat(
        "Nodes without limiter",
        "count(max by (node) (hami_node_limiter_missing) == 1) or vector(0)",
        "Pods that need a limit are refused there.",
        steps=NONE_IS_GOOD,
    ),
    stat(
        "Oldest report",
        "max(hami_node_report_age_seconds)",
        "Schedulers give a node up after 60 seconds.",
        SECONDS,
        (("green", None), ("yellow", 45), ("red", 60)),
    ),
    stat(
        "Versions",
        "count(count by (version) (hami_node_build_info))",
        "Different versions of the daemon.",
        steps=(("green", None), ("yellow", 2)),
    ),
    table(
        "Unhealthy cards",
        "With the reason.",
        "max by (node, index, type, uuid, reason) (hami_node_card_unhealthy)",
        "unhealthy",
    ),
    table(
        "Cards that are not offered",
        "Registered, but their node is cordoned or its daemon is silent.",
        f"{per_card('card_slots')} == 0",
        "slots",
    ),
    graph(
        "Driver errors",
        "XID errors that are not harmless, within 15 minutes.",
        ("hami_node:driver_errors:increase15m", "{{node}} {{uuid}} XID {{xid}}"),
        width=12,
    ),
    table(
        "Alerts",
        "Of ours, that fire now.",
        'sum by (alertname, severity, node) (ALERTS{alertname=~"Hami.*",alertstate="firing"})',
        "firing",
    ),
)


def cluster_board() -> Json:
    """Everything at a glance."""
    panels = (*CAPACITY, *WAITS, *FRAGMENTATION, *WASTE, *HEALTH)
    doc = "Cards of all nodes: what is offered, granted and used, who waits, what is wrong."
    return dashboard("hami-node-cluster", "hami-node / Cluster", doc, panels)
