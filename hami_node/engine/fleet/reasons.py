"""Why each of many nodes can't take a pod: exactly as far as the effort lasts, then in one word."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.fleet.effort import Effort
from hami_node.engine.fleet.explain import NO_ROOM, Explainer
from hami_node.engine.fleet.node_state import NodeState

UNKNOWN: Final = Rejection(whole=Reason.NOT_REGISTERED)
"""The node has registered nothing."""
NO_SUCH_CARD: Final = Rejection(whole=Reason.UUID_MISMATCH)
"""The request names the cards that it accepts, and the node has none of them."""


class Reasons:
    """Of one request, for nodes as they are at this moment."""

    def __init__(
        self,
        explainer: Explainer,
        nodes: Mapping[str, NodeState],
        named: Collection[str],
        owners: Collection[str] | None,
        effort: Effort,
    ) -> None:
        """What `explainer` knows of `nodes`, and finds out within the effort.

        `named` are the nodes with a card that the request names; `owners`, where it names those
        that it accepts, the nodes that have one.
        """
        self._explainer, self._nodes, self._effort = explainer, nodes, effort
        self._named, self._owners = named, owners

    def of(self, names: Iterator[str], is_time_up: Callable[[], bool]) -> dict[str, Rejection]:
        """Those of these nodes which can't; if the time is up, `names` has the rest."""
        found: dict[str, Rejection] = {}
        known, nodes, named = self._explainer.answers, self._nodes, self._named
        while not self._effort.is_spent:
            name = next(names, None)
            if name is None:
                return found
            state = nodes.get(name)
            if state is None or not state.kinds:
                found[name] = UNKNOWN
                continue
            if state.group in known and name not in named:
                if (rejection := known[state.group]) is not None:
                    found[name] = rejection
                continue
            if (rejection := self._found_out(name, state)) is not None:
                found[name] = rejection
            if is_time_up():
                return found
        self._add_rest(names, found)
        return found

    def _found_out(self, name: str, state: NodeState) -> Rejection | None:
        is_named = name in self._named
        why = self._explainer.rejection(state, is_named=is_named, effort=self._effort)
        if why is not False:
            return why
        why = self._explainer.known_refusal(state, is_named=is_named)
        return self._by_owner(name) if why is None else why

    def _by_owner(self, name: str) -> Rejection | None:
        """What is certain of a node of which nothing else is."""
        is_other = self._owners is not None and name not in self._owners
        return NO_SUCH_CARD if is_other else None

    def _add_rest(self, names: Iterator[str], found: dict[str, Rejection]) -> None:
        """What is known of the other nodes: of most only that they can't. There are thousands."""
        explainer, nodes, named = self._explainer, self._nodes, self._named
        known, refused, hopeless = explainer.answers, explainer.refused, explainer.hopeless
        is_impossible = explainer.needs().impossible
        for name in names:
            state = nodes.get(name)
            if state is None or not state.kinds:
                found[name] = UNKNOWN
                continue
            group, rejection = state.group, None
            if name in named:
                rejection = explainer.known_refusal(state, is_named=True) or self._by_owner(name)
            elif group in known:
                rejection = known[group]
            elif is_impossible or group in refused or group in hopeless:
                rejection = NO_ROOM
            else:
                rejection = self._by_owner(name)
            if rejection is not None:
                found[name] = rejection
