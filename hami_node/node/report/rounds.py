"""What is looked at shortly after every change, and every few seconds besides."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from hami_node.logs import kv
from hami_node.model import Device
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.strangers import Drift
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import EventNote
from hami_node.vendors.holding import rerun_in_words
from hami_node.vendors.on_node.limiter import LimiterState

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
RERUN_EVENT: Final = "InitContainersRunAgain"


class Rounds:
    """A step of the loop; what was seen last is read by others, who never wait."""

    def __init__(
        self,
        owners: Sequence[VendorCards],
        *,
        live: LiveUse,
        cards: Callable[[], tuple[Device, ...]],
        drift: Drift,
        notify: Callable[[EventNote], None],
        steps: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Nothing has been looked at yet. `steps` are what others have to do now and then."""
        self._owners, self._live, self._cards = tuple(owners), live, cards
        self._drift, self._notify = drift, notify
        self._steps = (*steps, self.look_at_limiters, self._look_at_pods)
        self._rerunning: Collection[str] = ()
        self.limiters: tuple[LimiterState, ...] = ()
        """What limits the containers that start now."""
        self._is_first = True
        self.drifted = 0
        """Pods whose annotations say otherwise than the ledger."""

    @property
    def reruns(self) -> int:
        """Pods whose init containers run again where others have got their share."""
        return len(self._rerunning)

    def look(self) -> float:
        """One look at everything; a step that fails keeps no other from its turn."""
        for step in self._steps:
            try:
                step()
            except Exception:  # any bug: the daemon serves on
                log.exception("look_broken")
        return INTERVAL_S

    def look_at_limiters(self) -> None:
        """Look at the files that limit containers; the first report names what is there."""
        self.limiters = tuple(owner.responder.limiter() for owner in self._owners)
        self._is_first = False

    def limiter_versions(self) -> str:
        """The versions that new containers get, for the node's annotation; "" for none."""
        return ",".join(state.version for state in self.limiters if state.version)

    def why_unready(self) -> str:
        """Why this node may serve nobody, by its limiters; "" while it may."""
        unknown = "what limits containers has not been looked at yet" if self._is_first else ""
        return next((state.unready for state in self.limiters if state.unready), unknown)

    def _look_at_pods(self) -> None:
        """Pods that differ from the record, and init containers that run again; each is told."""
        pods, holders = self._live.pods(), self._live.holders()
        self.drifted = self._drift.look(pods)
        usage = self._live.cards(self._cards())
        held = ((pod, holders[pod.uid]) for pod in pods if pod.uid in holders)
        found = {pod.uid: (pod, rerun_in_words(pod, grants, usage)) for pod, grants in held}
        found = {uid: told for uid, told in found.items() if told[1]}
        for uid in found.keys() - self._rerunning:
            pod, why = found[uid]
            log.error("init_containers_run_again", extra=kv(pod=pod.key, why=why))
            self._notify(EventNote.about(pod, RERUN_EVENT, why))
        self._rerunning = frozenset(found)
