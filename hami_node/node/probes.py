"""Is this daemon alive, and is it ready? Each answer is "" or the reason why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import Settings
from hami_node.metrics.server import Probes
from hami_node.node.vendor_cards import VendorCards
from hami_node.vendors.spec import AnyVendor

SILENCE_LIMIT_S: Final = 180.0
"""Watches that receive nothing for this long make the daemon unready."""


class NodeProbes:
    """Checks the parts; never blocks."""

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        vendors: Sequence[AnyVendor],
        vendor_cards: Sequence[VendorCards],
        view: WatchedCluster,
        is_reported: Callable[[], bool],
        why_taken: Callable[[str], str],
        limiter: Callable[[], str] = str,
        hand_over: Callable[[], str] = str,
    ) -> None:
        """Wire the parts.

        `is_reported`: whether the node object has been written once; `why_taken`: why another
        plugin serves a resource of ours, or ""; `limiter`: why what limits containers is not the
        wanted one, or ""; `hand_over`: why containers can't be given cards, or "".
        """
        self._settings, self._view, self._is_reported = settings, view, is_reported
        self._vendors, self._vendor_cards = tuple(vendors), tuple(vendor_cards)
        self._why_taken, self._limiter, self._hand_over = why_taken, limiter, hand_over

    def questions(self) -> Probes:
        """The checks behind /healthz and /readyz."""
        return Probes(
            live={"cards": self._cards},
            ready={
                "api-server": self._api_server,
                "kubelet": self._registered,
                "hand-over": self._hand_over,
                "report": self._reported,
                "limiter": self._limiter,
            },
        )

    def _cards(self) -> str:
        limit_s = self._settings().stall_limit_s
        ages_s = (owner.backend.last_pass_age_s() for owner in self._vendor_cards)
        age_s = max(ages_s, default=0.0)
        if age_s <= limit_s:
            return ""
        return f"no scan of the cards has finished for {age_s:.0f} s (limit {limit_s:.0f} s)"

    def _api_server(self) -> str:
        if not self._view.is_synced():
            return "nodes and pods have not been listed yet"
        age_s = self._view.last_contact_age_s()
        if age_s is not None and age_s > SILENCE_LIMIT_S:
            return f"nothing has been received from the API server for {age_s:.0f} s"
        return ""

    def _registered(self) -> str:
        """Every resource with cards is registered and ours, or all cards are served by others."""
        every = [(owner, each) for owner in self._vendor_cards for each in owner.resources]
        taken = (self._why_taken(resource.name) for _, resource in every)
        if why := next(filter(None, taken), ""):
            return why
        waiting = [pair for pair in every if not pair[1].lifecycle.registered.is_set()]
        is_any = len(waiting) < len(every) or self._is_served_by_others()
        if is_any and not any(resource.is_offering() for _, resource in waiting):
            return ""
        errors = (
            owner.scanner.state.error or resource.lifecycle.problem for owner, resource in waiting
        )
        return next(filter(None, errors), "not registered with kubelet yet")

    def _is_served_by_others(self) -> bool:
        node, settings = self._view.node(), self._settings()
        return node is not None and any(
            vendor.is_on(node, settings.of(vendor.settings.kind)) for vendor in self._vendors
        )

    def _reported(self) -> str:
        return "" if self._is_reported() else "the node object has not been written yet"
