"""Which pods may still use what they were given: by the API server, kubelet's list, the record."""

from __future__ import annotations

import logging

from hami_node.errors import KubeletError
from hami_node.logs import kv
from hami_node.node.probes import SILENCE_LIMIT_S
from hami_node.node.state import NodeState
from hami_node.ports import HeldContainer

log = logging.getLogger(__name__)


class PresentPods:
    """Asked before something of an ended pod is removed."""

    def __init__(self, node: NodeState) -> None:
        """Of this node."""
        self._node = node

    def held(self) -> set[str]:
        """The uids on record, and of the pods that the API server has and that have not ended."""
        live = {pod.uid for pod in self._node.live.pods() if not pod.is_over}
        return live | {entry.pod_uid for entry in self._node.ledger.entries()}

    def over(self) -> set[str]:
        """The uids of pods that have ended, and that the API server still has."""
        return {pod.uid for pod in self._node.live.pods() if pod.is_over}

    def listed(self) -> set[str] | None:
        """The uids that kubelet may mean by the names in its list, ended pods included.

        None while the API server or that list can't be read, or while it has a name that nobody is
        known by: the list names no uid, so it may be anybody's.
        """
        view = self._node.view
        age_s = view.last_contact_age_s()
        if not view.is_synced() or age_s is None or age_s > SILENCE_LIMIT_S:
            return None
        try:
            listed = self._node.kubelet.list()
        except KubeletError as e:
            log.debug("present_pods_unknown", extra=kv(error=str(e)))
            return None
        by_name, uids = self._uids_by_name(), set[str]()
        for item in listed:
            if not self._has_cards(item):
                continue
            named = by_name.get((item.namespace, item.pod))
            if not named:
                return None
            uids |= named
        return uids

    def _has_cards(self, item: HeldContainer) -> bool:
        names = (each.name for owner in self._node.vendor_cards for each in owner.resources)
        return any(item.device_ids.get(name) for name in names)

    def _uids_by_name(self) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for pod in self._node.live.pods():
            found.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
        for entry in self._node.ledger.entries():
            found.setdefault((entry.namespace, entry.pod), set()).add(entry.pod_uid)
        return found
