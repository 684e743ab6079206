"""The dashboard of a node, or of some."""

from __future__ import annotations

from typing import Final

from tests.monitoring.panels import (
    BYTES,
    GOOD_BELOW,
    RATIO,
    SECONDS,
    Json,
    choice,
    dashboard,
    graph,
    row,
    stat,
    table,
)

D: Final = "hami_node_"
ON: Final = '{node=~"$node"}'
CARD: Final = "{{node}} {{index}}"
OWNER: Final = "{{namespace}}/{{pod}} {{container}}"


def card(name: str) -> str:
    """A gauge of the node's cards."""
    return f"max by (node, index, uuid) ({D}{name}{ON})"


CARDS: Final = (
    row("Cards"),
    stat("Cards", f"count({card('card_healthy')})", "Cards of these nodes."),
    stat("Healthy", f"sum({card('card_healthy')})", "Cards that can be used."),
    stat(
        "Memory granted",
        f"sum({card('card_memory_granted_bytes')}) / sum({card('card_memory_bytes')})",
        "As a share of what is offered.",
        RATIO,
        GOOD_BELOW,
    ),
    stat(
        "Memory in use",
        f"sum({card('card_memory_used_bytes')}) / sum({card('card_memory_physical_bytes')})",
        "By anybody, as a share of what the cards have.",
        RATIO,
        GOOD_BELOW,
    ),
    stat(
        "Cores granted",
        f"sum({card('card_cores_granted_ratio')}) / sum({card('card_cores_ratio')})",
        "As a share of what is offered.",
        RATIO,
    ),
    stat("Containers", f"sum({card('card_slots_used')})", "Shares that are held."),
    graph(
        "Memory granted",
        "Of each card.",
        (card("card_memory_granted_bytes"), CARD),
        unit=BYTES,
    ),
    graph(
        "Memory used",
        "Of each card, by anybody on the node, as the driver says.",
        (card("card_memory_used_bytes"), CARD),
        unit=BYTES,
    ),
    graph(
        "Containers on each card",
        "Beside them: how many there may be.",
        (card("card_slots_used"), CARD),
        (f"max({card('card_slots')})", "slots of a card"),
    ),
    graph(
        "Time in which a kernel ran",
        "Of each card, as the driver says.",
        (card("card_core_use_ratio"), CARD),
        unit=RATIO,
    ),
    graph(
        "Time in which memory was read or written",
        "Of each card, as the driver says.",
        (card("card_memory_controller_use_ratio"), CARD),
        unit=RATIO,
    ),
    graph(
        "Cores granted",
        "Of each card; 1 is the whole card.",
        (card("card_cores_granted_ratio"), CARD),
        unit=RATIO,
    ),
    table(
        "What the cards are",
        "Facts of each card.",
        f"max by (node, index, type, vendor, mode, numa, pci_bus, uuid) ({D}card_info{ON})",
        "card",
        width=24,
    ),
)
CONTAINERS: Final = (
    row("Containers"),
    graph(
        "Memory that containers use",
        "As their limiters count it.",
        (f"hami_node:container_memory_used_bytes:sum{ON}", OWNER),
        unit=BYTES,
        is_stacked=True,
    ),
    graph(
        "Cores that containers use",
        "1 is one card.",
        (
            f"max by (node, namespace, pod, container, uuid) ({D}container_core_use_ratio{ON})",
            OWNER,
        ),
        unit=RATIO,
        is_stacked=True,
    ),
    graph(
        "Held and not used",
        "Memory.",
        (f"topk(15, hami_node:container_memory_unused_bytes:sum{ON})", OWNER),
        unit=BYTES,
    ),
    table(
        "Who holds what",
        "Memory that containers were granted.",
        f"max by (node, namespace, pod, container, uuid) ({D}allocation_memory_bytes{ON})",
        "granted",
        unit=BYTES,
    ),
    table(
        "Use that can't be read",
        "With the reason.",
        f"max by (node, namespace, pod, container, reason) ({D}container_usage_unreadable{ON})",
        "unreadable",
    ),
)
PARTS: Final = (
    row("Divided cards"),
    graph(
        "Parts",
        "By state.",
        (f"sum by (node, index, state) ({D}card_parts{ON})", CARD + " {{state}}"),
        is_stacked=True,
    ),
    table(
        "Modes",
        "And the one after the next reset.",
        f"max by (node, index, mode, pending) ({D}card_mode_info{ON})",
        "card",
        width=8,
    ),
    graph(
        "Failed calls into the driver",
        "About parts, a minute.",
        (
            f"60 * sum by (node, function, reason) (rate({D}part_call_failures_total{ON}"
            "[$__rate_interval]))",
            "{{function}} {{reason}}",
        ),
    ),
)
DAEMON: Final = (
    row("The daemon"),
    graph(
        "Allocate",
        "Containers that were given cards or refused, a minute.",
        (
            f"60 * sum by (node, result) (rate({D}allocate_total{ON}[$__rate_interval]))",
            "{{node}} {{result}}",
        ),
    ),
    graph(
        "Time of an Allocate call",
        "99 and 50 of 100 are faster.",
        *(
            (
                f"histogram_quantile({share}, sum by (node, le) "
                f"(rate({D}allocate_seconds_bucket{ON}[$__rate_interval])))",
                f"{{{{node}}}} {name}",
            )
            for share, name in ((0.99, "p99"), (0.5, "p50"))
        ),
        unit=SECONDS,
    ),
    graph(
        "Age of report and scan",
        "Reports are due every 30 seconds, scans every second.",
        (f"max by (node) ({D}report_age_seconds{ON})", "{{node}} report"),
        (f"max by (node, backend) ({D}backend_pass_age_seconds{ON})", "{{node}} scan {{backend}}"),
        unit=SECONDS,
    ),
    graph(
        "Requests to the API server",
        "By answer, a second; 0 is no answer.",
        (
            f"sum by (node, code) (rate({D}api_requests_total{ON}[$__rate_interval]))",
            "{{node}} {{code}}",
        ),
    ),
    graph(
        "Files of containers",
        "On the node's disk.",
        (f"max by (node) ({D}container_files_bytes{ON})", "{{node}}"),
        unit=BYTES,
    ),
    graph(
        "Memory of the daemon",
        "Resident.",
        (
            f"max by (node) (process_resident_memory_bytes * on (instance) group_left (node) "
            f"max by (instance, node) ({D}build_info{ON}))",
            "{{node}}",
        ),
        unit=BYTES,
    ),
    graph(
        "Driver errors",
        "XID errors of cards, all of them, an hour.",
        (
            f"sum by (node, uuid, xid, ignored) (increase({D}xid_events_total{ON}[1h]))",
            "{{node}} {{uuid}} XID {{xid}}",
        ),
    ),
    table(
        "Limiter",
        "What new containers are limited by.",
        f"max by (node, version, sha256) ({D}limiter_info{ON})",
        "limiter",
        width=8,
    ),
    table(
        "Registered with kubelet",
        "1 while kubelet has it.",
        f"max by (node, resource) ({D}registered{ON})",
        "registered",
        width=8,
    ),
)


def node_board() -> Json:
    """The nodes that its reader chooses."""
    doc = "Cards, containers and the daemon of some nodes."
    nodes = choice("node", "Node", f"{D}build_info", "node")
    panels = (*CARDS, *CONTAINERS, *PARTS, *DAEMON)
    return dashboard("hami-node-node", "hami-node / Node", doc, panels, (nodes,))
