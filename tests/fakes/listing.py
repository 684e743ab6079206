"""An API server as commands that only read see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from hami_node.cluster.calls import ApiCall
from hami_node.errors import KubeError
from hami_node.simulate.store import KINDS
from tests.fakes.local_kube import LocalKube

_RESOURCES: Final = {kind.kind: kind.resource for kind in KINDS.values()}


class Listing(LocalKube):
    """A cluster that is there.

    Attributes:
        refusals: what requests answer: `pods` to a list of all, `pods in NAMESPACE`, `pod` to one.
        pages: what pods say on /metrics.
    """

    def __init__(
        self, *items: Mapping[str, Any], refusals: Mapping[str, KubeError] | None = None
    ) -> None:
        super().__init__()
        self.refusals, self.pages = dict(refusals or {}), dict[str, bytes]()
        for item in items:
            namespace = item["metadata"].get("namespace", "")
            self.store.create(_RESOURCES[item["kind"]], namespace, item)

    def around(self, call: ApiCall, serve: Callable[[], bytes]) -> bytes:
        what, _, namespace = call.resource, *call.path.partition("/namespaces/")[1:]
        if what == "pods/proxy":
            pod = call.path.split("/")[-3]
            what = f"metrics of {pod}"
            serve = lambda: self._page(pod.partition(":")[0], call)  # noqa: E731
        elif call.verb == "get":
            what = what.removesuffix("s")
        elif what == "pods" and namespace:
            what = f"pods in {namespace.partition('/')[0]}"
        if what in self.refusals:
            raise self.refusals[what]
        return serve()

    def _page(self, pod: str, call: ApiCall) -> bytes:
        if pod not in self.pages:
            raise KubeError(f"can't {call}: no answer")
        return self.pages[pod]
