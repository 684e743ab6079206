"""Where the leader is reached: it writes its address into an EndpointSlice of a Service.

Two replicas can't both stand there: the slice is replaced as a whole, by the version that was read
before this replica was found to lead. A write that was delayed until after a change of leader
fails, because the new leader has written since, or is replaced by the new leader's write.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from hami_node.cluster.paths import segment
from hami_node.cluster.watching.frames import read_mapping
from hami_node.errors import Conflict, HamiError, KubeError, NotFound
from hami_node.logs import kv
from hami_node.ports import Clock

log: Final = logging.getLogger(__name__)

LOOK_S: Final = 0.1
"""How soon a new leader is noticed; this asks nobody."""
CHECK_S: Final = 10.0
"""How often the slice is read again: somebody else may have changed it."""
RETRY_S: Final = 1.0
CONFLICT_RETRY_S: Final = 0.1

Json = Mapping[str, object]


class Api(Protocol):
    """The only call of the Kubernetes client that is needed here."""

    def request(self, method: str, path: str, *, body: object = None) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The EndpointSlice, and what this replica writes there."""

    namespace: str
    slice_name: str
    pod: str
    ip: str
    port: int

    @property
    def path(self) -> str:
        """Of the slice."""
        space, name = segment(self.namespace), segment(self.slice_name)
        return f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices/{name}"

    @property
    def family(self) -> str:
        """The slice's addressType."""
        return "IPv6" if ":" in self.ip else "IPv4"

    def endpoints(self) -> list[Json]:
        """This replica alone."""
        target = {"kind": "Pod", "namespace": self.namespace, "name": self.pod}
        ready = {"ready": True, "serving": True, "terminating": False}
        return [{"addresses": [self.ip], "conditions": ready, "targetRef": target}]


class LeaderEndpoint:
    """Keeps the slice while this replica leads. `run` is a thread's body."""

    def __init__(
        self, api: Api, place: Callable[[], Place], clock: Clock, is_leading: Callable[[], bool]
    ) -> None:
        """`place` is known once the server listens; the API's calls have to be bounded in time."""
        self._api, self._place = api, place
        self._clock, self._is_leading = clock, is_leading
        self._is_failing = False
        self._wake = threading.Event()

    def wake(self) -> None:
        """A term has begun: look now."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Write whenever this replica has begun to lead, and check from time to time."""
        due_s = 0.0
        while not stop.is_set():
            self._wake.wait(LOOK_S)
            self._wake.clear()
            if not self._is_leading():
                due_s = 0.0
            elif self._clock.monotonic() >= due_s:
                due_s = self._clock.monotonic() + self.step()

    def step(self) -> float:
        """Read the slice and write it if it differs; seconds until the next time."""
        try:
            self._keep()
        except Conflict:  # written since it was read
            return CONFLICT_RETRY_S
        except Exception as error:  # noqa: BLE001 - the address has to be written in the end
            self._fail(error)
            return RETRY_S
        self._is_failing = False
        return CHECK_S

    def _keep(self) -> None:
        place = self._place()
        found = read_mapping(self._api.request("GET", place.path))
        if found.get("addressType") != place.family:
            wrong = f"its addressType is {found.get('addressType')}, this pod has {place.family}"
            raise KubeError(f"endpointslices/{place.slice_name}: {wrong}: create it again")
        if _served(found) == (place.ip, place.port):
            return
        if not self._is_leading():  # after the slice was read: see above
            return
        port = {"name": "https", "protocol": "TCP", "port": place.port}
        wanted = {**found, "endpoints": place.endpoints(), "ports": [port]}
        self._api.request("PUT", place.path, body=wanted)
        log.info("leader_endpoint_written", extra=kv(slice=place.slice_name, ip=place.ip))

    def _fail(self, error: Exception) -> None:
        """Log the first of consecutive failures."""
        was_failing, self._is_failing = self._is_failing, True
        if was_failing:
            return
        hint = "retried; kube-scheduler does not reach this replica until it is written"
        if isinstance(error, NotFound):
            hint = "apply the manifests: they contain this EndpointSlice"
        trace = None if isinstance(error, HamiError) else error
        fields = kv(slice=self._place().slice_name, error=error, hint=hint)
        log.error("leader_endpoint_not_written", extra=fields, exc_info=trace)


def _served(found: Json) -> tuple[object, object] | None:
    """The only address and port in a slice; None for anything else."""
    endpoints, ports = found.get("endpoints"), found.get("ports")
    try:
        (endpoint,), (port,) = cast("list[Json]", endpoints), cast("list[Json]", ports)
        (address,) = cast("list[object]", endpoint["addresses"])
        conditions = cast("Json", endpoint.get("conditions") or {})
        return (address, port["port"]) if conditions.get("ready") is not False else None
    except (TypeError, ValueError, KeyError):
        return None
