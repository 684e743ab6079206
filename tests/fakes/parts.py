"""Parts of divided cards in memory: a `CardParts` that a test watches, delays and breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hami_node.clock import Deadline
from hami_node.errors import AllocationError
from hami_node.model import Device, Uuid
from hami_node.vendors.on_node.answer import (
    ContainerResponse,
    HandOverState,
    MadePart,
    NodeSituation,
    Slice,
)
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.vendors.on_node.parts import PartsKept, PartsSituation, PartsState


@dataclass(slots=True)
class FakeParts:
    """Each container of a pod gets parts of its own, numbered as they are made.

    Attributes:
        made: by the pod's uid and the container's name.
        refusal: why none can be made; "" while they can.
        hangs: while set, a call does not return, whatever its deadline says.
        during: called while parts are made.
        left_s: what each call had left.
        situations: what each pass was told.
        marks: how many scans were shown to it.
    """

    made: dict[tuple[str, str], tuple[MadePart | None, ...]] = field(default_factory=dict)
    refusal: str = ""
    free: threading.Event = field(default_factory=threading.Event)
    hangs: bool = False
    during: Callable[[], object] = lambda: None
    left_s: list[float] = field(default_factory=list)
    situations: list[PartsSituation] = field(default_factory=list)
    kept: PartsKept = field(default_factory=PartsKept)
    on_record: PartsState = field(default_factory=PartsState)
    count: int = 0
    marks: int = 0

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        self.left_s.append(deadline.left_s())
        if self.hangs:
            self.free.wait()
        self.during()
        if self.refusal:
            raise AllocationError(self.refusal)
        key = granted.pod_uid, granted.container.name
        if key not in self.made:
            self.made[key] = tuple(self._next() for _ in granted.grants)
        return self.made[key]

    def _next(self) -> MadePart:
        self.count += 1
        return MadePart(uuid=f"PART-{self.count}", numbers=(self.count, 0))

    def keep(self, situation: PartsSituation) -> PartsKept:
        self.situations.append(situation)
        return self.kept

    def state(self) -> PartsState:
        return self.on_record

    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        self.marks += 1
        return cards

    def in_use(self) -> Mapping[Uuid, str]:
        return {}


class PartResponder:
    """A container is shown its parts, and its grants where they are none."""

    def respond(self, granted: Slice) -> ContainerResponse:
        names = [part.uuid for part in granted.made if part is not None]
        return ContainerResponse(envs=(("PARTS", ",".join(names)),))

    def warning(self, granted: Slice) -> str:
        del granted
        return ""

    def limiter(self) -> LimiterState:
        return LimiterState()

    def keep(self, situation: NodeSituation) -> None:
        del situation

    def hand_over(self) -> HandOverState:
        return HandOverState()

    def close(self) -> None:
        pass
