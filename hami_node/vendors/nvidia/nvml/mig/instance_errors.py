"""XIDs that name a MIG instance: counted for its pod, and no fault of the card's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hami_node.model import Device, Uuid
from hami_node.ports import PartError
from hami_node.vendors.nvidia.mig.details import mig_of
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.xid_ledger import RESET_XIDS, xid_in_words
from hami_node.wire import names

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
