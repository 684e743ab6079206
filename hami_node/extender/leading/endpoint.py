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
LOOK_AFTER_S: Final = 0.05
"""How often the slice is read after a term, until another replica stands there."""
LATELY_S: Final = 10.0
"""Calls may still come for so long after the end of a term."""
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
        self._is_failing = self._is_elsewhere = False
        self._led_s: float | None = None
        self._wake = threading.Event()

    def name(self) -> str:
        """The slice's."""
        return self._place().slice_name

    def wake(self) -> None:
        """A term has begun: look now."""
        self._wake.set()

    def has_led_lately(self) -> bool:
        """True during a term, and for a while after it."""
        led_s = self._led_s
        return led_s is not None and self._clock.monotonic() - led_s < LATELY_S

    def is_elsewhere(self) -> bool:
        """True once another replica has written its address, after a term of this one."""
        return self._is_elsewhere

    def run(self, stop: threading.Event) -> None:
        """Write whenever this replica has begun to lead, and check from time to time."""
        due_s, is_looking = 0.0, False
        while not stop.is_set():
            self._wake.wait(LOOK_AFTER_S if is_looking else LOOK_S)
            self._wake.clear()
            if not self._is_leading():
                due_s, is_looking = 0.0, self.look_after_term()
                continue
            is_looking = False
            self._led_s, self._is_elsewhere = self._clock.monotonic(), False
            if self._clock.monotonic() >= due_s:
                due_s = self._clock.monotonic() + self.step()

    def look_after_term(self) -> bool:
        """Find out whether another replica has taken the place that this one had lately.

        True while that is not known.
        """
        if self._is_elsewhere or not self.has_led_lately():
            return False
        place = self._place()
        try:
            served = _served(read_mapping(self._api.request("GET", place.path)))
        except Exception as error:  # noqa: BLE001 - looked up again in a moment
            log.debug("leader_endpoint_not_read", extra=kv(slice=place.slice_name, error=error))
            return True
        self._is_elsewhere = served is not None and served != (place.ip, place.port)
        return not self._is_elsewhere

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
