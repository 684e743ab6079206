"""The only access to NVML: every call is timed, and every error is mapped once, here."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from hami_node.errors import BackendError, DeviceLost, DriverChanged, DriverUnavailable
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.vendors.nvidia.driver import LIBRARY, DriverLibrary

log = logging.getLogger(__name__)

UNINITIALIZED: Final = 1
INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NO_PERMISSION: Final = 4
NOT_FOUND: Final = 6
DRIVER_NOT_LOADED: Final = 9
TIMEOUT: Final = 10
LIBRARY_NOT_FOUND: Final = 12
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
VERSION_MISMATCH: Final = 18
IN_USE: Final = 19
INSUFFICIENT_RESOURCES: Final = 23
ARGUMENT_VERSION_MISMATCH: Final = 25
DEPRECATED: Final = 26
GPU_NOT_FOUND: Final = 28

NOT_OFFERED: Final = frozenset(
    {NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH, DEPRECATED}
)
"""Codes of a card or an older driver that has no such reading."""

GONE_CODES: Final = frozenset({GPU_IS_LOST, GPU_NOT_FOUND})
"""Codes of a card that was there and is not any more."""

SESSION_CODES: Final = frozenset(
    {UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH}
)
"""Codes that concern the driver, whichever card was queried."""


class Abandoned(BaseException):
    """The caller's thread was abandoned while its call hung: it must end and change nothing.

    Not an `Exception`: whoever survives every failure must not survive this.
    """


class CallFailed(DeviceLost):
    """A call about a card failed; `code` is NVML's, 0 where its answer can't be read."""

    def __init__(self, text: str, code: int) -> None:
        """Keep the code beside the text."""
        super().__init__(text)
        self.code = code


class CardGone(CallFailed):
    """The driver says that the card is no longer there; it is back only after a reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An NVML call that has not answered yet. `card` is an index, None for driver-wide calls."""

    function: str
    card: int | None
    since_s: float

    def overdue_text(self, limit_s: float) -> str:
        """Why the card, or the driver, is unusable; stable while the call hangs."""
        return f"NVML call {self.function} has not answered for more than {limit_s:g} s"


def load_pynvml(library: DriverLibrary) -> ModuleType:
    """Import pynvml, once the library is loaded: pynvml loads it by name, which finds that one.

    Raises:
        DriverUnavailable: names the library, where it was looked for, and what to do.
    """
    library.load()
    return importlib.import_module("pynvml")


class NvmlCalls:
    """NVML for one thread. It records the pending call, so that other threads can see it."""

    def __init__(self, clock: Clock, *, sees_all_processes: bool = True) -> None:
        """`sees_all_processes`: where the driver lists none, there are none."""
        self.sees_all_processes = sees_all_processes
        self._clock = clock
        self._lock = threading.Lock()
        self._api: Any = None
        self._current: Call | None = None
        self._abandoned: Call | None = None

    @property
    def abandoned_call(self) -> Call | None:
        """The call for which the thread was abandoned, if it was."""
        with self._lock:
            return self._abandoned

    @property
    def current(self) -> Call | None:
        """The pending call, if any."""
        with self._lock:
            return self._current

    def abandon(self, call: Call) -> bool:
        """Abandon the thread if it still waits for exactly that call. True when it did."""
        with self._lock:
            if self._current is call:
                self._abandoned = call
            return self._abandoned is call

    @property
    def is_loaded(self) -> bool:
        """True once the driver's library and pynvml are loaded."""
        return self._api is not None

    def load(self, library: DriverLibrary) -> None:
        """Load the driver's library and pynvml. Raises DriverUnavailable as `load_pynvml`."""
        if self._api is None:
            self._begin("dlopen", None)
            try:
                self._api = load_pynvml(library)
            finally:
                self._end()

    def ask(
        self,
        function: str,
        *args: object,
        card: int | None = None,
        absent: frozenset[int] = frozenset(),
    ) -> Any:  # noqa: ANN401  whatever pynvml answers
        """Call pynvml's function of that name. None for an error with one of the `absent` codes.

        Raises:
            DriverUnavailable: the driver as a whole does not answer, or the call concerns no card.
            DriverChanged: the library in memory is not the running driver's.
            DeviceLost: the queried card does not answer.
            Abandoned: the answer came after the thread was abandoned.
        """
        self._begin(function, card)
        try:
            answer = getattr(self._api, function)(*args)
        except self._api.NVMLError as e:
            if e.value in absent:
                answer = None
            else:
                raise _mapped(f"NVML call {function}: {e} (code {e.value})", card, e.value) from e
        except Exception as e:
            # pynvml decodes and converts what the driver answers, and that may be anything.
            raise _mapped(f"NVML call {function}: {_unreadable(e)}", card, 0) from e
        finally:
            self._end()
        return answer

    def _begin(self, function: str, card: int | None) -> None:
        call = Call(function=function, card=card, since_s=self._clock.monotonic())
        with self._lock:
            self._current = call

    def _end(self) -> None:
        with self._lock:
            self._current = None
            if self._abandoned is not None:
                raise Abandoned


def _mapped(text: str, card: int | None, code: int) -> DriverUnavailable | DeviceLost:
    if code == VERSION_MISMATCH:
        return DriverChanged(
            f"{text}: the kernel module and {LIBRARY} are of different versions; "
            "restart this process, and the node if that does not help"
        )
    if code == DRIVER_NOT_LOADED:
        return DriverUnavailable(f"{text}: load the driver on the node (modprobe nvidia)")
    if card is None or code in SESSION_CODES:
        return DriverUnavailable(text)
    return CardGone(text, code) if code in GONE_CODES else CallFailed(text, code)


def _unreadable(error: Exception) -> str:
    """Stable text, whatever the answer was: it becomes the card's reason."""
    log.debug("nvml_answer_unreadable", extra=kv(error=f"{type(error).__name__}: {error}"))
    return f"the answer can't be read ({type(error).__name__})"


@contextmanager
def of_one_card() -> Iterator[None]:
    """Read the answers of one card: whatever goes wrong inside is the fault of that card alone.

    Raises:
        DeviceLost: an answer can't be made sense of.
        DriverUnavailable: as `NvmlCalls.ask`.
    """
    try:
        yield
    except BackendError:
        raise
    except Exception as e:
        raise DeviceLost(f"NVML: {_unreadable(e)}") from e
