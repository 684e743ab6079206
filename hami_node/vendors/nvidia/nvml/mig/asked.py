"""NVML for one card: its calls, its lists, and answers that can't be right."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from typing import Any, Final

from hami_node.errors import DeviceLost
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls

MAX_LISTED: Final = 64
"""No card has more profiles, instances or placements."""
_UUID: Final = re.compile(r"MIG-[A-Za-z0-9/-]{8,80}", re.ASCII)
"""`MIG-<UUID>`, and before driver 470 `MIG-<the card's>/<GPU instance>/<compute instance>`."""


class Impossible(DeviceLost):
    """The driver's answers can't be right, or not all at once."""


class Placement(ctypes.Structure):
    """nvmlGpuInstancePlacement_t."""

    _fields_ = (("start", ctypes.c_uint), ("size", ctypes.c_uint))


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedCard:
    """A card that is asked within one pass or job: its handle is good for no longer."""

    calls: NvmlCalls
    index: int
    handle: Any

    def ask(self, function: str, *args: object, absent: frozenset[int] = frozenset()) -> Any:  # noqa: ANN401
        """See `NvmlCalls.ask`."""
        return self.calls.ask(function, *args, card=self.index, absent=absent)

    def listed(self, function: str, owner: object, kind: int) -> list[Any]:
        """The handles of all instances of a profile.

        Raises:
            DeviceLost: see `NvmlCalls.ask`; or more than there can be.
        """
        handles, count = (ctypes.c_void_p * MAX_LISTED)(), ctypes.c_uint(MAX_LISTED)
        self.ask(function, owner, kind, handles, ctypes.byref(count))
        found = handles[: within(count.value, 0, MAX_LISTED, "instances")]
        return [ctypes.c_void_p(handle) for handle in found]


def within(value: Any, lowest: int, highest: int, what: str) -> int:  # noqa: ANN401
    """The number. Raises Impossible: no card can have such a one."""
    number = int(value)
    if not lowest <= number <= highest:
        raise impossible(what)
    return number


def impossible(what: str) -> Impossible:
    """An answer that can't be right."""
    return Impossible(f"the driver reports {what} that can't be right (nvidia-smi mig -lgip -lgi)")


def mig_uuid(answer: str | bytes) -> str:
    """Raises Impossible: no MIG device can have such a UUID."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    if not _UUID.fullmatch(text):
        raise impossible("a UUID of a MIG device")
    return text
