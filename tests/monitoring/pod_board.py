"""The dashboard of a pod, or of those of a namespace."""

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
OF: Final = '{namespace=~"$namespace",pod=~"$pod"}'
NAME: Final = "{{pod}} {{container}} {{uuid}}"
GRANTED: Final = f"hami_node:allocation_memory_bytes:sum{OF}"
USED: Final = f"hami_node:container_memory_used_bytes:sum{OF}"


def each(name: str) -> str:
    """A gauge of containers on cards."""
    return f"max by (namespace, pod, container, uuid, part) ({D}container_{name}{OF})"


PANELS: Final = (
    row("Memory"),
    stat("Granted", f"sum({GRANTED})", "Memory that these containers hold.", BYTES),
    stat("Used", f"sum({USED})", "Memory that they really use.", BYTES),
    stat(
        "Used of granted",
        f"sum({USED}) / sum({GRANTED})",
        "Near 1 they may run out of memory; near 0 they hold it for nothing.",
        RATIO,
        GOOD_BELOW,
    ),
    stat(
        "Containers",
        f"count(count by (namespace, pod, container) ({GRANTED}))",
        "Containers that hold a share.",
    ),
    stat(
        "Cores used",
        f"sum({each('core_use_ratio')})",
        "In whole cards.",
        RATIO,
    ),
    stat(
        "Idle for",
        f"min({each('last_kernel_age_seconds')})",
        "Since any of them last launched a kernel.",
        SECONDS,
    ),
    graph(
        "Granted, limit in force, used",
        "The limit is in the container's own file: it should be what was granted.",
        (GRANTED, NAME + " granted"),
        (each("memory_limit_bytes"), NAME + " limit"),
        (each("memory_used_bytes"), NAME + " used"),
        unit=BYTES,
        width=12,
    ),
    graph(
        "What memory is used for",
        "As far as the limiter tells it apart.",
        (f"sum({each('memory_data_bytes')})", "buffers"),
        (f"sum({each('memory_context_bytes')})", "contexts"),
        (f"sum({each('memory_module_bytes')})", "modules"),
        unit=BYTES,
        width=12,
        is_stacked=True,
    ),
    row("Cores"),
    graph(
        "Cores used and limited",
        "1 is one card.",
        (each("core_use_ratio"), NAME + " used"),
        (each("core_limit_ratio"), NAME + " limit"),
        unit=RATIO,
        width=12,
    ),
    graph(
        "Time since the last kernel",
        "Long times are shares that somebody else could use.",
        (each("last_kernel_age_seconds"), NAME),
        unit=SECONDS,
        width=12,
    ),
    row("Where"),
    table(
        "Cards",
        "Cores that each container was granted of each card; 1 is one card.",
        f"max by (namespace, pod, container, node, uuid) ({D}allocation_cores_ratio{OF})",
        "cores",
        unit=RATIO,
    ),
    table(
        "Parts of divided cards",
        "That containers have, or had last.",
        f"max by (namespace, pod, container, node, uuid, part) ({D}container_part_info{OF})",
        "part",
    ),
    table(
        "Limiters",
        "The version that each container was given.",
        f"max by (namespace, pod, container, version) ({D}container_limiter_info{OF})",
        "limiter",
    ),
    table(
        "Use that can't be read",
        "With the reason.",
        f"max by (namespace, pod, container, reason) ({D}container_usage_unreadable{OF})",
        "unreadable",
    ),
    graph(
        "Errors of parts",
        "XID errors that the driver blames on them, an hour.",
        (
            "sum by (namespace, pod, container, part, xid) "
            f"(increase({D}container_part_xid_events_total{OF}[1h]))",
            "{{pod}} {{container}} {{part}} XID {{xid}}",
        ),
        width=12,
    ),
)


def pod_board() -> Json:
    """The pods that its reader chooses."""
    series = f"{D}allocation_memory_bytes"
    choices = (
        choice("namespace", "Namespace", series, "namespace"),
        choice("pod", "Pod", f'{series}{{namespace=~"$namespace"}}', "pod"),
    )
    doc = "What the containers of some pods hold and use."
    return dashboard("hami-node-pod", "hami-node / Pod", doc, PANELS, choices)
