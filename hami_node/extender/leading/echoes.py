"""Harmless writes of a new leader, to its own pod and that pod's node; its watches show them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.errors import KubeError
from hami_node.extender.leading.catching_up import Seen
from hami_node.logs import kv
from hami_node.wire import names

log: Final = logging.getLogger(__name__)


class Echoes:
    """Writes that are shown to the writer; outside of a cluster there is nothing to write to."""

    def __init__(self, kube: KubeClient, view: WatchedCluster, namespace: str, name: str) -> None:
        """Of the pod with this name, if there is one; the calls have to be bounded in time."""
        self._kube, self._view = kube, view
        self._namespace, self._name = namespace, name

    def on_pod(self, mark: str) -> Seen | None:
        """Mark our own pod."""
        pod = self._view.pod(self._namespace, self._name)
        if pod is None:
            return None
        any_version = replace(pod, resource_version="")
        try:
            self._kube.patch_pod_exactly(any_version, {names.NODE_LEADING_SINCE: mark})
        except KubeError as error:
            _note_unmarked(f"pods/{pod.key}", error)
            return None

        def is_seen() -> bool:
            now = self._view.pod(self._namespace, self._name)
            return now is not None and now.annotations.get(names.NODE_LEADING_SINCE) == mark

        return is_seen

    def on_node(self, mark: str) -> Seen | None:
        """Mark the node on which our pod runs."""
        pod = self._view.pod(self._namespace, self._name)
        if pod is None or not pod.node_name:
            return None
        cache, name = self._view.node_watch.cache, pod.node_name
        try:
            self._kube.merge_patch_node(name, {names.NODE_LEADING_SINCE: mark})
        except KubeError as error:
            _note_unmarked(f"nodes/{name}", error)
            return None

        def is_seen() -> bool:
            now = cache.find("", name)
            return now is not None and now.annotations.get(names.NODE_LEADING_SINCE) == mark

        return is_seen


def _note_unmarked(what: str, error: KubeError) -> None:
    hint = "all of its kind are listed again instead; are the manifests of this version?"
    log.warning("lead_not_marked", extra=kv(object=what, error=error, hint=hint))
