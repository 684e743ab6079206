"""The NVML session: opened once, and again when the driver reports that it was closed."""

from __future__ import annotations

import logging

from hami_node.errors import BackendError, DriverChanged, DriverUnavailable
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.vendors.nvidia.driver import DriverLibrary
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 10.0


class NvmlSession:
    """Opens and reopens NVML with growing pauses. Used only by the worker's thread."""

    def __init__(self, clock: Clock, library: DriverLibrary) -> None:
        self._clock = clock
        self._library = library
        self._is_open = False
        self._has_been_open = False
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._error: DriverUnavailable | None = None
        self.driver_version = ""

    @property
    def may_reopen(self) -> bool:
        """True once the pause since the last opening or attempt is over."""
        return self._clock.monotonic() >= self._not_before_s

    def ensure_open(self, calls: NvmlCalls) -> bool:
        """Open the session if it is not open. True when that happened now.

        Raises:
            DriverUnavailable: library or driver is missing, or the next attempt is not due yet
                (then with the text of the last error).
            DriverChanged: the driver was replaced since this process first opened a session.
        """
        try:
            calls.load(self._library)
        except DriverUnavailable as e:
            raise self._library.explained(e, is_loaded=False) from e
        if self._is_open:
            return False
        is_due = self.may_reopen or self._library.may_go_on
        if self._error is not None and not is_due:
            raise self._error.with_traceback(None)
        self._take_pause()
        try:
            calls.ask("nvmlInit")
        except DriverUnavailable as e:
            self._error = self._explained(e)
            raise self._error from e
        self._is_open = self._has_been_open = True
        self._error = None
        self.driver_version = self._read_version(calls)
        log.info("nvml_session_opened", extra=kv(driver=self.driver_version))
        return True

    def reopen(self, calls: NvmlCalls) -> None:
        """Close and open again. Raises as `ensure_open`."""
        self.close(calls)
        self.ensure_open(calls)

    def close(self, calls: NvmlCalls) -> None:
        """Close the session. If the driver is gone this fails, which does no harm."""
        if not self._is_open:
            return
        self._is_open = False
        try:
            calls.ask("nvmlShutdown")
        except BackendError as e:
            log.info("nvml_session_was_gone", extra=kv(reason=str(e)))

    def proved_good(self) -> None:
        """All cards have answered: the session may be reopened without a pause next time."""
        self._pause_s = self._not_before_s = 0.0

    def _take_pause(self) -> None:
        self._pause_s = min(max(self._pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._not_before_s = self._clock.monotonic() + self._pause_s

    def _explained(self, error: DriverUnavailable) -> DriverUnavailable:
        """Before any session a version mismatch is the node's: a new process would not help.

        It does where the driver in its root was replaced after its library was loaded.
        """
        is_ours = self._has_been_open or self._library.was_replaced
        if isinstance(error, DriverChanged) and not is_ours:
            return self._library.explained(DriverUnavailable(str(error)), is_loaded=True)
        return self._library.explained(error, is_loaded=True)

    def _read_version(self, calls: NvmlCalls) -> str:
        """For people only: a driver that does not report its version may still serve cards."""
        try:
            version = calls.ask("nvmlSystemGetDriverVersion")
        except BackendError as e:
            return f"unknown ({e})"
        return version if isinstance(version, str) else version.decode(errors="replace")
