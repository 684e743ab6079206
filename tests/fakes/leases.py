"""Leases in the simulated API server's store, without HTTP, and with trouble around each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hami_node.cluster.calls import ApiCall
from hami_node.simulate.store import ApiRefusal, Store
from tests.fakes.local_kube import LocalKube

NAMESPACE, NAME = "hami-system", "extender"


@dataclass
class Hooks:
    """What happens around a call."""

    before: Callable[[str], None] = lambda _verb: None
    after: Callable[[str], None] = lambda _verb: None


class StoreLeases(LocalKube):
    """The client, with its calls by verb."""

    def __init__(self, store: Store | None = None, hooks: Hooks | None = None) -> None:
        super().__init__(store)
        self.hooks = hooks or Hooks()
        self.calls: list[str] = []

    def around(self, call: ApiCall, serve: Callable[[], bytes]) -> bytes:
        self.calls.append(call.verb)
        self.hooks.before(call.verb)
        if call.verb == "update":
            assert isinstance(call.body, Mapping)
            assert call.body["metadata"]["resourceVersion"]
        answer = serve()
        self.hooks.after(call.verb)
        return answer

    def shared_by(self, hooks: Hooks) -> StoreLeases:
        return StoreLeases(self.store, hooks)

    def spec(self) -> dict[str, Any]:
        return dict(self.store.read("leases", NAMESPACE, NAME)["spec"])

    def put(self, spec: object) -> None:
        body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec}
        try:
            self.store.create("leases", NAMESPACE, body)
        except ApiRefusal:
            self.store.change("leases", NAMESPACE, NAME, lambda _: body)
