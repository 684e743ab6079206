"""Is this daemon alive, and is it ready? Each answer is "" or the reason why not; none waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hami_node.metrics.server import Probes
from hami_node.node.state import NodeState

SILENCE_LIMIT_S: Final = 180.0
"""Watches that receive nothing for this long make the daemon unready."""


def node_probes(
    node: NodeState,
    *,
    report: Callable[[], float | None],
    why_taken: Callable[[str], str],
    limiter: Callable[[], str],
    hand_over: Callable[[], str],
) -> Probes:
    """The checks behind /healthz and /readyz.

    Args:
        node: this node.
        report: the age of what the node object says; None before it was written once.
        why_taken: why another plugin serves a resource of ours, or "".
        limiter: why what limits containers is not the wanted one, or "".
        hand_over: why containers can't be given cards, or "".
    """
    unwritten = "the node object has not been written yet"
    return Probes(
        live={"cards": lambda: _stalled(node)},
        ready={
            "api-server": lambda: _unheard(node),
            "kubelet": lambda: _unregistered(node, why_taken),
            "hand-over": hand_over,
            "report": lambda: unwritten if report() is None else "",
            "limiter": limiter,
        },
    )


def _stalled(node: NodeState) -> str:
    limit_s = node.settings().stall_limit_s
    age_s = max((owner.backend.last_pass_age_s() for owner in node.vendor_cards), default=0.0)
    if age_s <= limit_s:
        return ""
    return f"no scan of the cards has finished for {age_s:.0f} s (limit {limit_s:.0f} s)"


def _unheard(node: NodeState) -> str:
    if not node.view.is_synced():
        return "nodes and pods have not been listed yet"
    age_s = node.view.last_contact_age_s()
    if age_s is not None and age_s > SILENCE_LIMIT_S:
        return f"nothing has been received from the API server for {age_s:.0f} s"
    return ""


def _unregistered(node: NodeState, why_taken: Callable[[str], str]) -> str:
    """Every resource with cards is registered and ours, or all cards are served by others."""
    every = [(owner, each) for owner in node.vendor_cards for each in owner.resources]
    if why := next(filter(None, (why_taken(resource.name) for _, resource in every)), ""):
        return why
    waiting = [pair for pair in every if not pair[1].lifecycle.registered.is_set()]
    is_any = len(waiting) < len(every) or _is_served_by_others(node)
    if is_any and not any(resource.is_offering() for _, resource in waiting):
        return ""
    errors = (owner.error or resource.lifecycle.problem for owner, resource in waiting)
    return next(filter(None, errors), "not registered with kubelet yet")


def _is_served_by_others(node: NodeState) -> bool:
    shown, settings = node.view.node(), node.settings()
    return shown is not None and any(
        vendor.is_on(shown, settings.of(vendor.settings.kind)) for vendor in node.vendors
    )
