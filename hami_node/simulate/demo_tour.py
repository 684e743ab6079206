"""What a step of the demo is: something to do and check, and what it has to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hami_node.model import Device, Uuid
from hami_node.simulate.demo_stage import GPU_NODE, Stage, StepFailed
from hami_node.simulate.kubelet import Admission
from hami_node.wire import names
from hami_node.wire.node_codec import decode_register


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A small table of texts; a column whose name ends in `#` holds numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a true step has to show, from top to bottom."""

    lines: tuple[str, ...]
    quote: str = ""
    then: str = ""
    rows: Rows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the demo.

    Attributes:
        act: makes it happen and checks it. Raises StepFailed.
        programs: whose logs are shown when it is not true: a daemon's by its node, the extender's.
        is_needed: without it the steps after it make no sense.
    """

    title: str
    act: Callable[[Tour], Seen]
    programs: tuple[str, ...] = (GPU_NODE,)
    is_needed: bool = False


class Tour:
    """The stage, and what earlier steps leave for later ones."""

    def __init__(self, stage: Stage) -> None:
        """Nothing has happened yet."""
        self.stage = stage
        self.cards: tuple[Device, ...] = ()
        self.served: dict[str, Admission] = {}
        self.home: Device | None = None

    def registered(self) -> tuple[Device, ...] | None:
        """The cards in the GPU node's register annotation, decoded; None without one."""
        text = self.stage.read_node(self.stage.gpu).annotations.get(names.NODE_REGISTER)
        return decode_register(text) if text else None

    @property
    def shared_card(self) -> Device:
        """The card that the first pod was given and others share. Raises StepFailed without one."""
        if self.home is None:
            raise StepFailed("no pod was given a card that others could share")
        return self.home

    def card(self, uuid: Uuid) -> Device:
        """The reported card of that UUID. Raises StepFailed when none has it."""
        for one in self.cards:
            if one.uuid == uuid:
                return one
        raise StepFailed(f"no card of {GPU_NODE} has the UUID {uuid}")

    def since(self, began_s: float) -> str:
        """The time since then, in words."""
        return f"{(self.stage.clock.monotonic() - began_s) * 1e3:.0f} ms"


def check(is_true: object, otherwise: str) -> None:
    """Raise StepFailed with these words unless it is true."""
    if not is_true:
        raise StepFailed(otherwise)
