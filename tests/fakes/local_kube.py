"""The simulated API server without HTTP: what the real client sends is served in the caller."""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import urlencode

from hami_node.clock import Deadline
from hami_node.cluster.calls import ApiCall
from hami_node.cluster.client import KubeClient
from hami_node.cluster.transport.connection import Connection, Sender, decode_status, failure_of
from hami_node.simulate.api import read_request, serve, status_object
from hami_node.simulate.store import ApiRefusal, Store
from tests.fakes.clock import FakeClock


class _LocalConnection(Connection):
    """Gives each call to `around`, together with what serves it."""

    def __init__(
        self, store: Store, around: Callable[[ApiCall, Callable[[], bytes]], bytes]
    ) -> None:
        self._store, self._around = store, around

    def send(self, call: ApiCall, deadline: Deadline | None = None) -> bytes:
        del deadline
        return self._around(call, lambda: self._served(call))

    def _served(self, call: ApiCall) -> bytes:
        target = call.path + (f"?{urlencode(call.query)}" if call.query else "")
        try:
            request = read_request(call.method, target, call.content_type)
            answer = serve(self._store, request, json.dumps(call.body).encode())[1]
        except ApiRefusal as refusal:
            status = decode_status(json.dumps(status_object(refusal)).encode())
            raise failure_of(call, refusal.status, status) from refusal
        return json.dumps(answer).encode()


class LocalKube(KubeClient):
    """The real client on this store; `around` may do something else than serve a call."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or Store()
        sender = Sender(_LocalConnection(self.store, self.around))
        super().__init__(sender, component="test", clock=FakeClock())

    def around(self, call: ApiCall, serve: Callable[[], bytes]) -> bytes:
        """Serve a call."""
        del call
        return serve()
