"""A step of the demo: something to do and check, and its result to show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hami_node.demo.stage import GPU_NODE, Stage
from hami_node.model import Device, Uuid
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.demo import StepFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A small table of texts; a column whose name ends in `#` holds numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of a step that passed, from top to bottom."""

    lines: tuple[str, ...]
    quote: str = ""
    then: str = ""
    rows: Rows | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the demo.

    Attributes:
        act: makes it happen and checks it. Raises StepFailed.
        programs: whose logs are shown when it fails: a daemon's by its node, the extender's.
        is_needed: the steps after it are skipped when it fails.
    """

    title: str
    act: Callable[[Tour], Seen]
    programs: tuple[str, ...] = (GPU_NODE,)
    is_needed: bool = False


class Tour:
    """The stage, and what earlier steps leave for later steps."""

    def __init__(self, stage: Stage) -> None:
        """Start before the first step."""
        self.stage = stage
        self.cards: tuple[Device, ...] = ()
        self.served: dict[str, Admission] = {}
        self.home: Device | None = None

    def registered(self) -> tuple[Device, ...] | None:
        """The shared cards that the node object names; None without any."""
        node = self.stage.read_node(self.stage.gpu)
        return self.stage.cast.shared.protocol.registered_on(node) or None

    @property
    def shared_card(self) -> Device:
        """The card that the first pod got and others share. Raises StepFailed if there is none."""
        if self.home is None:
            raise StepFailed("no pod got a card that others could share")
        return self.home

    def card(self, uuid: Uuid) -> Device:
        """The reported card of that UUID. Raises StepFailed when none has it."""
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise StepFailed(f"no card of {GPU_NODE} has the UUID {uuid}")

    def since(self, began_s: float) -> str:
        """The time since then, in words."""
        return f"{(self.stage.clock.monotonic() - began_s) * 1e3:.0f} ms"
