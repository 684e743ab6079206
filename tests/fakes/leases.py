"""Leases in the simulated API server's store, without HTTP, and with trouble around each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hami_node.errors import Conflict, KubeError, NotFound
from hami_node.simulate.store import ApiRefusal, Json, Store

NAMESPACE, NAME = "hami-system", "extender"


@dataclass
class Hooks:
    """What happens around a call."""

    before: Callable[[str], None] = lambda _verb: None
    after: Callable[[str], None] = lambda _verb: None


@dataclass
class StoreLeases:
    """Leases in the simulated API server's store, without HTTP."""

    store: Store = field(default_factory=Store)
    hooks: Hooks = field(default_factory=Hooks)
    calls: list[str] = field(default_factory=list)

    def read_lease(self, namespace: str, name: str) -> Json:
        return self._served("get", lambda: self.store.read("leases", namespace, name))

    def create_lease(self, namespace: str, lease: Mapping[str, object]) -> Json:
        return self._served("create", lambda: self.store.create("leases", namespace, lease))

    def update_lease(self, namespace: str, name: str, lease: Mapping[str, object]) -> Json:
        assert isinstance(lease["metadata"], Mapping)
        assert lease["metadata"]["resourceVersion"]
        return self._served("update", lambda: self._replace(namespace, name, lease))

    def _replace(self, namespace: str, name: str, lease: Mapping[str, object]) -> Json:
        return self.store.change("leases", namespace, name, lambda _: copy.deepcopy(dict(lease)))

    def shared_by(self, hooks: Hooks) -> StoreLeases:
        return StoreLeases(self.store, hooks)

    def _served(self, verb: str, serve: Callable[[], Json]) -> Json:
        self.calls.append(verb)
        self.hooks.before(verb)
        try:
            answer = serve()
        except ApiRefusal as e:
            raise {404: NotFound, 409: Conflict}.get(e.status, KubeError)(str(e), e.status) from e
        self.hooks.after(verb)
        return answer

    def spec(self) -> dict[str, Any]:
        return dict(self.store.read("leases", NAMESPACE, NAME)["spec"])

    def put(self, spec: object) -> None:
        body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec}
        try:
            self.store.create("leases", NAMESPACE, body)
        except ApiRefusal:
            self._replace(NAMESPACE, NAME, body)
