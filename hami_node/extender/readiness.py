"""Whether this replica has synced with the cluster, and whether it is the leader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hami_node.cluster.watching.views import WatchedCluster
from hami_node.cluster.watching.watches import ResourceWatch
from hami_node.errors import NotLeading
from hami_node.extender.leader import Leader
from hami_node.wire.quotas import ResourceQuota

SILENCE_LIMIT_S: Final = 180.0
"""Watches that receive nothing for this long make the extender unready."""

MakeLeader = Callable[[Callable[[bool], None]], Leader]
"""Builds the election; its argument is called when this replica starts or stops leading."""


class Readiness:
    """Answers from any thread. Decisions begin once the state is `settled`.

    Attributes:
        leader: the election; None where replicas are not elected.
        settled: set once the state has caught up with the first lists.
    """

    def __init__(
        self,
        view: WatchedCluster,
        quotas: ResourceWatch[ResourceQuota],
        make_leader: MakeLeader | None,
    ) -> None:
        """Check these watches; without `make_leader` this replica always decides."""
        self._view, self._quotas = view, quotas
        self._has_caught_up = make_leader is None
        self.settled = threading.Event()
        self.leader = make_leader(self._lead_changed) if make_leader else None

    def is_listed(self) -> bool:
        """True once nodes, pods and quotas have been listed."""
        return self._view.is_synced() and self._quotas.is_synced()

    def is_synced(self) -> bool:
        """True once everything has been listed and settled."""
        return self.settled.is_set() and self.is_listed()

    def is_leading(self) -> bool:
        """True while this replica decides."""
        return self.is_synced() and not self.why_not_leading()

    def require_lead(self) -> None:
        """Raise NotLeading unless this replica decides and is in contact with the API server."""
        why = self.why_not_synced() or self.why_not_leading()
        if why:
            raise NotLeading(why)

    def why_not_synced(self) -> str:
        """Why the view of the cluster is not complete or current; "" when it is."""
        if not self.is_synced():
            return "nodes, pods and quotas have not been listed yet"
        age_s = self._view.last_contact_age_s()
        if age_s is not None and age_s > SILENCE_LIMIT_S:
            return f"nothing has been received from the API server for {age_s:.0f} s"
        return ""

    def why_not_leading(self) -> str:
        """Why this replica must not decide, apart from missing lists; "" when it may."""
        if self.leader is None:
            return ""
        if self.leader.is_leading():
            return "" if self._has_caught_up else "this replica became the leader only just now"
        return f"replica {self.leader.holder() or 'nobody'} decides"

    def _lead_changed(self, is_leading: bool) -> None:
        """Our watch may not show the previous leader's last decisions yet: list again."""
        self._has_caught_up = False
        if is_leading:
            self._view.pod_watch.relist()
            self._view.node_watch.relist()
            self._has_caught_up = True
