"""Which replica decides: a Lease in the cluster, and our own clock as the fence.

A record counts as expired when it has not changed for its duration by our monotonic clock, so the
replicas' wall clocks may differ. A leader considers itself leading for a shorter time than the
others wait (`renew_deadline_s` < `duration_s`), counted from before it sent its last renewal.
Source: the algorithm of client-go, tools/leaderelection.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from hami_node.errors import Conflict, HamiError, KubeError, NotFound
from hami_node.logs import kv
from hami_node.ports import Clock

log: Final = logging.getLogger(__name__)

MAX_FOREIGN_DURATION_S: Final = 120.0
"""A record that claims to be valid for longer is an error that must not stop the scheduler."""
MAX_TRANSITIONS: Final = 2**31 - 1
RELEASE_ATTEMPTS: Final = 3

Json = Mapping[str, object]


class Leases(Protocol):
    """The API calls that are needed. Every call has to be bounded in time.

    Raises (every method): KubeError or a subclass.
    """

    def read_lease(self, namespace: str, name: str) -> Json:
        """GET. Raises NotFound."""

    def create_lease(self, namespace: str, lease: Json) -> Json:
        """POST. Raises Conflict when it exists."""

    def update_lease(self, namespace: str, name: str, lease: Json) -> Json:
        """PUT. Raises Conflict when it was written since it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Seconds. The difference of the first two is the tolerance for slow clocks and calls.

    A dead leader is replaced after `duration_s` and up to 1.2 times `retry_s`: short, because a new
    term costs little. A hung renewal is survived, if it ends within a second.
    """

    duration_s: float = 3.0
    renew_deadline_s: float = 2.4
    retry_s: float = 0.5

    def __post_init__(self) -> None:
        """Refuse times with which two replicas could lead."""
        if not 0 < self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError("0 < retry_s < renew_deadline_s < duration_s must hold")


class Leader:
    """Acquires and renews the Lease. `run` is a thread's body; the rest may be called anywhere.

    Attributes:
        may_take: False while this replica could not decide: then another may take the Lease.
        await_sent: waits, so many seconds at most, for what is under way and the next leader must
            not miss; the Lease is not released before.
    """

    def __init__(
        self,
        kube: Leases,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        times: LeaseTimes | None = None,
        on_change: Callable[[bool], None] = lambda _is_leading: None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Prepare; no request is made before `run`.

        Args:
            kube: the API; a client of its own whose calls end well before `renew_deadline_s`.
            namespace: where the Lease is; it is created when it is missing.
            name: of the Lease.
            identity: this replica's name in it. Not "".
            clock: wall time is written to the record, monotonic time decides.
            times: how long a record is valid, and how often it is renewed.
            on_change: called in `run`'s thread when a term ends or begins; must return at once.
            jitter: 0 to 1, so that replicas do not send requests at the same moment.
        """
        if not identity:
            raise ValueError("an empty identity means that nobody holds the Lease")
        self._kube, self._namespace, self._name = kube, namespace, name
        self._identity, self._clock, self._times = identity, clock, times or LeaseTimes()
        self._on_change, self._jitter = on_change, jitter
        self.may_take: Callable[[], bool] = lambda: True
        self.await_sent: Callable[[float], object] = lambda _: None
        # Written by run's thread only, each atomically, so that readers need no lock. `_lead` is
        # the term and the time of its last renewal.
        self._lead: tuple[int, float] | None = None
        self._holder = ""
        # Used by run's thread only.
        self._announced = self._last_term = 0
        self._is_failing = False
        self._fresh: Json | None = None
        self._observed: tuple[Json, float] | None = None
        self._stamps: deque[str] = deque(maxlen=32)

    def term(self) -> int:
        """The number of the present term, from 1; 0 while another replica may lead.

        A term lasts while each successful renewal was started less than `renew_deadline_s` after
        the one before. After a longer pause of this process (SIGSTOP, a frozen machine) the next
        renewal begins a new term, also if nobody noticed the pause.
        """
        lead = self._lead
        return 0 if lead is None or self._is_late(lead[1]) else lead[0]

    def is_leading(self) -> bool:
        """True during a term."""
        return bool(self.term())

    def left_s(self) -> float:
        """Seconds for which no other replica can lead, whatever happens."""
        lead = self._lead
        return 0.0 if lead is None else self._ends_s(lead[1]) - self._clock.monotonic()

    def _ends_s(self, renewed_at: float) -> float:
        return renewed_at + self._times.duration_s

    def _is_late(self, renewed_at: float) -> bool:
        return self._clock.monotonic() - renewed_at >= self._times.renew_deadline_s

    def holder(self) -> str:
        """The holder when the Lease was last seen; "" for nobody."""
        return self._holder

    def run(self, stop: threading.Event) -> None:
        """Take part until stopped, then release the Lease. Only `stop` ends it."""
        while not stop.is_set():
            stop.wait(self.step())
        self.release()

    def step(self) -> float:
        """Try once to acquire or renew the Lease; seconds until the next try."""
        self._announce()
        try:
            wait_s = self._campaign()
        except Conflict:  # another replica was faster: find out which
            self._fresh = None
            wait_s = self._times.retry_s * (0.1 + self._jitter() / 10)
        except Exception as error:  # noqa: BLE001 - a bug here must not end all scheduling
            self._fail(error)
            wait_s = self._times.retry_s * (0.5 + self._jitter() / 2)
        self._announce()
        return wait_s

    def release(self) -> None:
        """Stop leading and let another replica take over at once."""
        lead, self._lead = self._lead, None
        # Before the record is written: the next leader may begin with that write.
        self._announce(logging.INFO)
        if lead is None:
            return
        self.await_sent(max(self._ends_s(lead[1]) - self._clock.monotonic(), 0.0))
        for _ in range(RELEASE_ATTEMPTS):
            try:
                lease = self._kube.read_lease(self._namespace, self._name)
                if not self._is_ours(_spec_of(lease)):
                    return
                self._kube.update_lease(self._namespace, self._name, self._released(lease))
            except NotFound:
                return
            except HamiError as error:
                log.warning("lease_not_released", extra=kv(error=error))
            else:
                self._holder = ""
                log.info("leader_released", extra=kv(identity=self._identity))
                return

    # -- inside --------------------------------------------------------------------------------

    def _campaign(self) -> float:
        lease, self._fresh = self._fresh, None
        try:
            lease = lease or self._kube.read_lease(self._namespace, self._name)
        except NotFound:
            return self._take_after(self._seen_time_left(), None)
        spec = _spec_of(lease)
        if self._is_ours(spec):
            self._take(lease)
            return self._times.retry_s
        self._lead = None
        self._observe(spec)
        return self._take_after(self._seen_time_left(), lease)

    def _take_after(self, left_s: float, lease: Json | None) -> float:
        if left_s > 0 or not self.may_take():
            polled_s = self._times.retry_s * (1 + self._jitter() / 5)
            if left_s <= 0:
                return polled_s
            return min(polled_s, left_s + self._times.retry_s * self._jitter() / 10)
        self._take(lease)
        return self._times.retry_s

    def _observe(self, spec: Json) -> None:
        if self._observed is None or self._observed[0] != spec:
            self._observed = (spec, self._clock.monotonic())
        holder = _holder_of(spec)
        if holder != self._holder:
            log.info("leader_observed", extra=kv(holder=holder, identity=self._identity))
            self._holder = holder

    def _seen_time_left(self) -> float:
        """Seconds until the record that was seen last expires, also if it was deleted since.

        Its writer keeps leading until it fails to renew.
        """
        if self._observed is None:
            return 0.0
        spec, since = self._observed
        if not _holder_of(spec):
            return 0.0
        return since + self._duration_of(spec) - self._clock.monotonic()

    def _duration_of(self, spec: Json) -> float:
        given = spec.get("leaseDurationSeconds")
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            return self._times.duration_s
        return min(float(given), MAX_FOREIGN_DURATION_S)

    def _is_ours(self, spec: Json) -> bool:
        """Also if a response was lost, but not if another process wrote it under our name."""
        return _holder_of(spec) == self._identity and spec.get("renewTime") in self._stamps

    def _take(self, lease: Json | None) -> None:
        """Write ourselves as the holder."""
        start = self._clock.monotonic()
        is_renewal = lease is not None and self._is_ours(_spec_of(lease)) and self.is_leading()
        wanted = self._held(lease)
        if lease is None:
            written = self._kube.create_lease(self._namespace, wanted)
        else:
            written = self._kube.update_lease(self._namespace, self._name, wanted)
        if not is_renewal:
            self._last_term += 1
        self._lead = (self._last_term, start)
        self._holder, self._fresh, self._is_failing = self._identity, written, False

    def _held(self, lease: Json | None) -> Json:
        spec = _spec_of(lease) if lease is not None else {}
        stamp = _micro_time(self._clock.now())
        is_renewal = self._is_ours(spec)
        self._stamps.append(stamp)
        count = spec.get("leaseTransitions")
        transitions = count if isinstance(count, int) and 0 <= count < MAX_TRANSITIONS else 0
        is_change = lease is not None and _holder_of(spec) != self._identity
        mine: dict[str, object] = {
            **spec,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": math.ceil(self._times.duration_s),
            "renewTime": stamp,
            "acquireTime": spec.get("acquireTime") or stamp if is_renewal else stamp,
            "leaseTransitions": transitions + 1 if is_change else transitions,
        }
        return self._document(lease, mine)

    def _released(self, lease: Json) -> Json:
        stamp = _micro_time(self._clock.now())
        spec = {
            **_spec_of(lease),
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "renewTime": stamp,
            "acquireTime": stamp,
        }
        return self._document(lease, spec)

    def _document(self, lease: Json | None, spec: Json) -> Json:
        meta: object = {"namespace": self._namespace, "name": self._name}
        if lease is not None:
            meta = lease.get("metadata")
            if not isinstance(meta, Mapping) or not meta.get("resourceVersion"):
                # Without it an update would overwrite a faster replica.
                raise KubeError("the API server sent a Lease without a resourceVersion")
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": meta,
            "spec": spec,
        }

    def _fail(self, error: Exception) -> None:
        """Log the first of consecutive failures."""
        self._fresh = None
        was_failing, self._is_failing = self._is_failing, True
        if was_failing:
            return
        hint = "retried; as long as no replica can renew the Lease, none decides"
        fields = kv(lease=f"{self._namespace}/{self._name}", error=error, hint=hint)
        trace = None if isinstance(error, HamiError) else error
        log.warning("lease_not_renewed", extra=fields, exc_info=trace)

    def _announce(self, loss_level: int = logging.WARNING) -> None:
        before, now = self._announced, self.term()
        if now == before:
            return
        self._announced = now
        if before:
            fields = kv(identity=self._identity, holder=self._holder)
            log.log(loss_level, "leader_lost", extra=fields)
            self._tell(is_leading=False)
        if now:
            log.info("leader_acquired", extra=kv(identity=self._identity, term=now))
            self._tell(is_leading=True)

    def _tell(self, *, is_leading: bool) -> None:
        try:
            self._on_change(is_leading)
        except Exception:  # an election must outlive its listener
            log.exception("leader_change_not_handled", extra=kv(is_leading=is_leading))


def _spec_of(lease: Json) -> Json:
    spec = lease.get("spec")
    return spec if isinstance(spec, Mapping) else {}


def _holder_of(spec: Json) -> str:
    """The holder in the record; a value that is not a string counts as a holder too."""
    holder = spec.get("holderIdentity")
    return "" if holder is None else str(holder)


def _micro_time(unix_s: float) -> str:
    """`2006-01-02T15:04:05.000000Z`, the only form that the API accepts."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
