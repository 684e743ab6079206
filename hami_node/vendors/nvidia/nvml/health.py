"""XID events: the driver's own reports of errors, of cards and of MIG instances.

They are received on a thread of their own.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.errors import BackendError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.ports import Clock, PartError
from hami_node.vendors.nvidia.driver import DriverLibrary
from hami_node.vendors.nvidia.mig.layout import mig_of
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.calls import (
    NOT_OFFERED,
    TIMEOUT,
    NvmlCalls,
    of_one_card,
)
from hami_node.vendors.nvidia.nvml.xid_ledger import (
    RESET_XIDS,
    UNKNOWN_CARD,
    XidLedger,
    XidPolicy,
    xid_in_words,
)
from hami_node.wire import names

log = logging.getLogger(__name__)

_XID_EVENT: Final = 8
PASS_GAP_S: Final = 0.25
"""Between two passes because of one XID of one card: a storm of them tells nothing new."""
LINE_GAP_S: Final = 60.0
"""Between two lines in the log about one XID of one card."""


class XidWatch:
    """Waits for events on its own thread while it is armed. `on_event` must return at once."""

    def __init__(
        self,
        clock: Clock,
        ledger: XidLedger,
        instances: InstanceErrors,
        policy: Callable[[], XidPolicy],
        on_event: Callable[[], None],
        *,
        wait_s: float,
    ) -> None:
        """The thread starts when first armed.

        Args:
            clock: measures how long calls take.
            ledger: receives the events of cards.
            instances: receives those of MIG instances.
            policy: called at every event, so that it may change.
            on_event: called when something may have happened to a card.
            wait_s: longest wait inside NVML, and pause before a failed wait is tried again.
        """
        self._wait_s = wait_s
        self._calls = NvmlCalls(clock)
        self._ledger, self._instances = ledger, instances
        self._passed, self._told = _Pauses(clock, PASS_GAP_S), _Pauses(clock, LINE_GAP_S)
        self._policy = policy
        self._on_event = on_event
        self._state = threading.Condition()
        self._cards: Mapping[Uuid, Any] | None = None
        self._round = 0
        self._is_waiting = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def arm(self, cards: Mapping[Uuid, Any]) -> None:
        """Listen to these cards (UUID to handle) from now on. Only inside an open session."""
        with self._state:
            self._cards, self._round = dict(cards), self._round + 1
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(target=self._run, name="nvml-xid", daemon=True)
                self._thread.start()
            self._state.notify_all()

    def disarm(self) -> bool:
        """Stop listening. True once no NVML call of this thread is pending."""
        with self._state:
            self._cards, self._round = None, self._round + 1
            self._state.notify_all()
            return self._state.wait_for(lambda: not self._is_waiting, 2 * self._wait_s)

    def close(self) -> bool:
        """Stop for good; see `disarm`."""
        with self._state:
            self._is_closed = True
        return self.disarm()

    def _run(self) -> None:
        failed_round = -1
        while True:
            with self._state:
                if failed_round == self._round:
                    self._state.wait(self._wait_s)
                self._state.wait_for(lambda: self._is_closed or self._cards is not None)
                if self._is_closed or self._cards is None:
                    return
                cards, this_round, self._is_waiting = self._cards, self._round, True
            try:
                self._listen(cards, this_round)
            except BackendError as e:
                if failed_round != this_round:
                    log.warning("xid_watch_interrupted", extra=kv(reason=str(e)))
                failed_round = this_round
                self._on_event()
            finally:
                with self._state:
                    self._is_waiting = False
                    self._state.notify_all()

    def _listen(self, cards: Mapping[Uuid, Any], this_round: int) -> None:
        """Hold an event set until another round begins. Raises BackendError."""
        self._calls.load(DriverLibrary())
        events = self._calls.ask("nvmlEventSetCreate")
        wait_ms = int(self._wait_s * 1000)
        try:
            owners = {_address(handle): uuid for uuid, handle in cards.items()}
            for uuid, handle in cards.items():
                self._register(uuid, handle, events)
            while self._is_current(this_round):
                data = self._calls.ask(
                    "nvmlEventSetWait_v2", events, wait_ms, absent=frozenset({TIMEOUT})
                )
                with of_one_card():
                    if data is not None and data.eventType == _XID_EVENT:
                        owner = owners.get(_address(data.device), UNKNOWN_CARD)
                        self._take(owner, data)
        finally:
            self._calls.ask("nvmlEventSetFree", events)

    def _register(self, uuid: Uuid, handle: object, events: object) -> None:
        """A card that can't send events loses only its events: its queries still show faults."""
        try:
            self._calls.ask(
                "nvmlDeviceRegisterEvents", handle, _XID_EVENT, events, absent=NOT_OFFERED
            )
        except BackendError as e:
            log.warning("xid_registration_failed", extra=kv(uuid=uuid, reason=str(e)))

    def _take(self, uuid: Uuid, data: Any) -> None:  # noqa: ANN401  pynvml's structure
        xid, ids = int(data.eventData), (int(data.gpuInstanceId), int(data.computeInstanceId))
        numbers = self._instances.numbers_of(uuid, *ids)
        if numbers:
            self._instances.enter(uuid, numbers, self._ledger.count(uuid, xid))
            self._tell(logging.INFO, uuid, xid, instance=numbers)
            return
        is_critical = self._ledger.enter(uuid, xid, self._policy())
        level = logging.ERROR if is_critical else logging.INFO
        self._tell(level, uuid, xid, is_critical=is_critical)
        self._ledger.keep()
        if self._passed.is_over(uuid, xid):
            self._on_event()

    def _tell(self, level: int, uuid: Uuid, xid: int, **facts: object) -> None:
        if self._told.is_over(uuid, xid):
            log.log(level, "xid", extra=kv(uuid=uuid, xid=xid, **facts))

    def _is_current(self, this_round: int) -> bool:
        with self._state:
            return self._round == this_round


class _Pauses:
    """Lets one XID of one card through once in a while: programs can cause any number of them."""

    def __init__(self, clock: Clock, pause_s: float) -> None:
        self._clock, self._pause_s = clock, pause_s
        self._last_s: dict[tuple[Uuid, int], float] = {}

    def is_over(self, uuid: Uuid, xid: int) -> bool:
        """True if the last one that was let through is long enough ago."""
        now_s, last_s = self._clock.monotonic(), self._last_s.get((uuid, xid))
        if last_s is not None and now_s - last_s < self._pause_s:
            return False
        if len(self._last_s) >= MAX_KINDS:
            self._last_s.clear()
        self._last_s[uuid, xid] = now_s
        return True


def _address(handle: Any) -> int:  # noqa: ANN401  ctypes names no public pointer type
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# -- XIDs that name a MIG instance: counted for its pod, and no fault of the card's ----------------
NO_INSTANCE: Final = 0xFFFFFFFF
"""Stands in an event for the whole card, or for the whole of a GPU instance."""
MAX_KINDS: Final = 256
"""Different errors of instances that are told apart until somebody asks for them."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Errors that are counted together."""

    card: Uuid
    numbers: tuple[int, ...]
    uuid: str
    xid: int


class InstanceErrors:
    """Counts them until somebody asks. Every method may be called from any thread."""

    def __init__(self, device_of: Callable[[Uuid], Device | None]) -> None:
        """`device_of` returns a card as the last pass has found it."""
        self._device_of = device_of
        self._lock = threading.Lock()
        self._counts: dict[_Kind, int] = {}

    def numbers_of(self, card: Uuid, gpu_instance: int, compute_instance: int) -> tuple[int, ...]:
        """Which instance an event is about; () for the card.

        A card that is not in MIG mode has none, whatever stands in its events.
        """
        device = self._device_of(card)
        if gpu_instance == NO_INSTANCE or device is None or device.mode != Mode.MIG:
            return ()
        if compute_instance == NO_INSTANCE:
            return (gpu_instance,)
        return gpu_instance, compute_instance

    def enter(self, card: Uuid, numbers: tuple[int, ...], xid: int) -> bool:
        """Count an event of an instance. True for the first of its kind since `take`."""
        kind = _Kind(card, numbers, self._uuid_of(card, numbers), xid)
        with self._lock:
            if kind not in self._counts and len(self._counts) >= MAX_KINDS:
                kind = _Kind(card, (), "", xid)
            is_new = kind not in self._counts
            if not is_new or len(self._counts) < 2 * MAX_KINDS:
                self._counts[kind] = self._counts.get(kind, 0) + 1
            return is_new

    def take(self) -> tuple[PartError, ...]:
        """What was counted since the last call."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return tuple(
            PartError(
                card=kind.card,
                numbers=kind.numbers,
                uuid=kind.uuid,
                code=kind.xid,
                count=count,
                why=why_of(kind.card, kind.xid),
            )
            for kind, count in counts.items()
        )

    def _uuid_of(self, card: Uuid, numbers: tuple[int, ...]) -> str:
        """The instance's own UUID as the last pass has found it; its numbers are used again."""
        device = self._device_of(card)
        mig = None if device is None else mig_of(device)
        for found in mig.instances if mig is not None else ():
            made = found.device
            if made is not None and numbers == (made.gpu_instance_id, made.compute_instance_id):
                return made.uuid
        return ""


def why_of(card: Uuid, xid: int) -> str:
    """What the error means for the pod, and what to do."""
    if xid in RESET_XIDS:
        remedy = (
            f"the card has to be reset: keep new pods off it (annotate the node "
            f"{names.NODE_CORDON}={card}), and reset it once its pods have ended (nvidia-smi -r)"
        )
    else:
        remedy = (
            "other instances of the card go on; delete the pod if it does not recover, and reset "
            "the card (nvidia-smi -r) if the error comes back in other pods"
        )
    return f"{xid_in_words(xid)}; {remedy}"
