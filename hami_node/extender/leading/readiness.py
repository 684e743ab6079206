"""Whether this replica has synced with the cluster, and whether it is the leader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hami_node.cluster.watching.views import WatchedCluster
from hami_node.cluster.watching.watches import ResourceWatch
from hami_node.errors import NotLeading
from hami_node.extender.leading.catching_up import CatchingUp, Source, Touch
from hami_node.extender.leading.leader import Leader
from hami_node.ports import Clock, Fence
from hami_node.wire.quotas import ResourceQuota

SILENCE_LIMIT_S: Final = 180.0
"""Watches that receive nothing for this long make the extender unready."""

LEAVES: Final = "this replica hands over to another one"
UNLISTED: Final = "nodes, pods and quotas have not been listed yet"

MakeLeader = Callable[[Callable[[bool], None]], Leader]
"""Builds the election; its argument is called when this replica starts or stops leading."""

Touches = tuple[Touch | None, Touch | None]
"""Make something pass on the watches of pods and of nodes."""


class Readiness:
    """Answers from any thread. Decisions begin once the state is `settled`.

    Attributes:
        leader: the election; None where replicas are not elected.
        settled: set once the state has caught up with the first lists.
        catching_up: what a new leader does before it decides.
        begun: set whenever a term has begun.
        on_begun: called then.
    """

    def __init__(
        self,
        view: WatchedCluster,
        quotas: ResourceWatch[ResourceQuota],
        make_leader: MakeLeader | None,
        clock: Clock,
        on_term: Callable[[], None] = lambda: None,
        touches: Touches = (None, None),
    ) -> None:
        """Check these watches.

        Args:
            view: nodes and pods.
            quotas: the quotas of all namespaces.
            make_leader: makes the election; None where this replica always decides.
            clock: for the waits of a new leader.
            on_term: called when a term begins: the watches show all that the leader before has
                stored, and nothing has been decided yet.
            touches: see `catching_up`.
        """
        self._view, self._quotas, self._on_term = view, quotas, on_term
        self._lock = threading.Lock()
        self._fresh_term = 0
        self._is_closed = False
        self.begun = threading.Event()
        self.on_begun: Callable[[], None] = lambda: None
        self.settled = threading.Event()
        touch_pod, touch_node = touches
        sources = (
            Source(view.pod_watch, touch_pod),
            Source(view.node_watch, touch_node),
            Source(quotas),
        )
        self.catching_up = CatchingUp(sources, clock, self._begin)
        self.leader = make_leader(self._lead_changed) if make_leader else None
        if self.leader is not None:  # one that has to list everything first leaves it to others
            self.leader.may_take = self.settled.is_set

    def is_listed(self) -> bool:
        """True once nodes, pods and quotas have been listed."""
        return self._view.is_synced() and self._quotas.is_synced()

    def is_synced(self) -> bool:
        """True once everything has been listed and settled."""
        return self.settled.is_set() and self.is_listed()

    def is_leading(self) -> bool:
        """True while this replica decides."""
        return self.is_synced() and not self.why_not_leading()

    def close(self) -> None:
        """Begin no more decisions; those that run are finished."""
        self._is_closed = True

    def require_lead(self) -> Fence:
        """The fence of a decision that begins now: raises NotLeading once its term is over.

        What was decided in one term is not written in the next: another replica may have decided
        in between.

        Raises:
            NotLeading: this replica does not decide, or is not in contact with the API server.
        """
        if self._is_closed:
            raise NotLeading(LEAVES)
        term = self._deciding_term()

        def fence() -> None:
            if self._deciding_term() != term:
                raise NotLeading("this replica has begun to lead again since this was decided")

        return fence

    def _deciding_term(self) -> int:
        term = 0 if self.leader is None else self.leader.term()
        why = self.why_not_synced() or self._why_not_in(term)
        if why:
            raise NotLeading(why)
        return term

    def why_not_synced(self) -> str:
        """Why the view of the cluster is not complete or current; "" when it is."""
        return self._why_silent() if self.is_synced() else UNLISTED

    def why_not_ready(self) -> str:
        """Why /readyz fails; "" once everything was listed, also while a new leader lists again.

        All replicas may be doing that at once, and each can answer the webhook.
        """
        return self._why_silent() if self.settled.is_set() else UNLISTED

    def _why_silent(self) -> str:
        age_s = self._view.last_contact_age_s()
        if age_s is not None and age_s > SILENCE_LIMIT_S:
            return f"nothing has been received from the API server for {age_s:.0f} s"
        return ""

    def why_not_leading(self) -> str:
        """Why this replica must not decide, apart from missing lists; "" when it may."""
        return "" if self.leader is None else self._why_not_in(self.leader.term())

    def _why_not_in(self, term: int) -> str:
        if self.leader is None:
            return ""
        if not term:
            return f"replica {self.leader.holder() or 'nobody'} decides"
        return "" if term == self._fresh_term else "this replica became the leader only just now"

    def _lead_changed(self, is_leading: bool) -> None:
        """Our watches may not show the previous leader's last decisions yet."""
        if is_leading and self.leader is not None:
            self.catching_up.begin(self.leader.term())
        else:
            self.catching_up.end()

    def _begin(self, term: int) -> None:
        """The watches have caught up with the Lease of this term."""
        with self._lock:
            if self.leader is None or self.leader.term() != term:
                return
            self._on_term()
            self._fresh_term = term
        self.begun.set()
        self.on_begun()
