"""What limits the containers that start on this node now, looked at on every pass of the gauges."""

from __future__ import annotations

from collections.abc import Sequence

from hami_node.metrics.daemon import DaemonMetrics
from hami_node.node.vendor_cards import VendorCards
from hami_node.vendors.on_node.limiter import LimiterState


class Limiters:
    """One thread looks; the reporter and the probes get what it saw last, and never wait."""

    def __init__(self, owners: Sequence[VendorCards], metrics: DaemonMetrics) -> None:
        """Nothing has been looked at yet."""
        self._owners, self._metrics = tuple(owners), metrics
        self._states: tuple[LimiterState, ...] = ()

    def look(self) -> None:
        """Look at the files, and show them in the metrics."""
        states = tuple(owner.responder.limiter() for owner in self._owners)
        self._metrics.set_limiters(
            [(state.version, state.sha256) for state in states if state.version],
            is_missing=any(state.is_missing for state in states),
            is_defective=any(state.is_defective for state in states),
        )
        self._states = states

    def versions(self) -> str:
        """The versions that new containers get, for the node's annotation; "" for none."""
        return ",".join(state.version for state in self._states if state.version)

    def why_unready(self) -> str:
        """Why this node may serve nobody; "" while it may."""
        return next((state.unready for state in self._states if state.unready), "")
