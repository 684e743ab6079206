"""An API server as commands that only list see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_node.clock import Deadline
from hami_node.errors import KubeError, NotFound
from hami_node.inspection.saved import read_saved
from hami_node.model import Node, Pod
from tests.fakes.saved_cluster import saved


class Listing:
    """A cluster that is there; `refusals` is what requests answer, by resource."""

    def __init__(
        self,
        *items: Mapping[str, Any],
        quotas: tuple[dict[str, object], ...] = (),
        refusals: Mapping[str, KubeError] | None = None,
    ) -> None:
        self.found = read_saved(saved(*items), "f")
        self.quotas, self.refusals = quotas, dict(refusals or {})
        self.asked: list[str] = []
        self.pages: dict[str, bytes] = {}

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if what in self.refusals:
            raise self.refusals[what]

    def read_node(self, name: str) -> Node:
        self._ask("node")
        return next(node for node in self.found.nodes if node.name == name)

    def list_nodes(self) -> tuple[Node, ...]:
        self._ask("nodes")
        return self.found.nodes

    def list_pods(self, node_name: str | None = None) -> tuple[Pod, ...]:
        self._ask("pods")
        return tuple(pod for pod in self.found.pods if node_name in (None, pod.node_name))

    def list_pods_in(self, namespace: str) -> tuple[Pod, ...]:
        self._ask(f"pods in {namespace}")
        return tuple(pod for pod in self.found.pods if pod.namespace == namespace)

    def list_resource_quotas(self) -> tuple[dict[str, object], ...]:
        self._ask("resourcequotas")
        return self.quotas

    def read_plain_pod(self, namespace: str, name: str) -> Mapping[str, object]:
        self._ask("pod")
        found = self.found.plain_pods.get(f"{namespace}/{name}")
        if found is None:
            raise NotFound(f"pods {name} not found")
        return found

    def list_events(self, namespace: str, name: str) -> tuple[Mapping[str, object], ...]:
        self._ask("events")
        return self.found.events

    def read_pod_metrics(self, pod: Pod, port: str, deadline: Deadline) -> bytes:
        self._ask(f"metrics of {pod.name}:{port}")
        if pod.name not in self.pages:
            raise KubeError(f"can't get pods/{pod.key}/proxy: no answer")
        return self.pages[pod.name]
