"""Cards with MIG in memory, with the rules of real ones, whose calls can fail, hang or kill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from hami_node.clock import Deadline
from hami_node.errors import RecordError
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    DriverCard,
    FoundInstance,
    MigCard,
    MigDevice,
    MigPlacement,
)
from hami_node.vendors.nvidia.mode import Mode
from tests.fakes.mig_cards import A30, A100_40, A100_80, H100_80, RTX_PRO_6000

T = TypeVar("T")


MODELS: Mapping[str, tuple[CardProfile, ...]] = {
    "NVIDIA A100-SXM4-40GB": A100_40,
    "NVIDIA A100-SXM4-80GB": A100_80,
    "NVIDIA A30": A30,
    "NVIDIA H100 80GB HBM3": H100_80,
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": RTX_PRO_6000,
}


class Killed(BaseException):
    """The process ends here, as by kill -9."""


@dataclass(slots=True)
class Fate:
    """Counts the moments at which a process can be killed: around each call and each write."""

    at: int | None = None
    count: int = 0

    def moment(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


@dataclass(slots=True)
class MortalRecord:
    """`ports.Record`, around whose writes the process may be killed."""

    fate: Fate
    payload: bytes | None = None
    is_full: bool = False
    full_from: int | None = None
    """The number of the write from which on the disk is full."""
    writes: int = 0

    def load(self) -> bytes | None:
        return self.payload

    def save(self, payload: bytes) -> None:
        self.fate.moment()
        self.writes += 1
        if self.is_full or (self.full_from is not None and self.writes >= self.full_from):
            raise RecordError("no space left on device: check the disk")
        self.payload = payload
        self.fate.moment()

    def put(self, payload: bytes) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class FakeCard:
    """One card; `stubborn` GPU instances answer IN_USE though nothing is on them."""

    model: str = "NVIDIA A100-SXM4-40GB"
    is_enabled: bool = True
    problem: str = ""
    instances: dict[int, FoundInstance] = field(default_factory=dict)
    stubborn: set[int] = field(default_factory=set)
    is_unreadable: bool = False

    @property
    def profiles(self) -> tuple[CardProfile, ...]:
        return MODELS[self.model]

    @property
    def slices(self) -> int:
        return max(place.size for each in self.profiles for place in each.placements)


Fault = Callable[[], None]


class FakeMigCards:
    """`MigDriver`. Everything somebody else does is done by the methods without a deadline."""

    def __init__(
        self, cards: Mapping[str, FakeCard] | None = None, fate: Fate | None = None
    ) -> None:
        self.cards = dict(cards or {"GPU-0": FakeCard()})
        self.fate = fate or Fate()
        self.calls: list[str] = []
        self.faults: dict[str, list[MigFailure]] = {}
        self.failing: Mapping[int, MigFailure] = {}
        """Reasons by the number of the call."""
        self.during: dict[str, Callable[[], object]] = {}
        self.is_late = self.is_done = False
        self.made = 0
        self.pids: frozenset[int] | MigError | None = frozenset()
        """Of the programs that compute on the cards themselves."""
        self.mode_answers: list[str | MigError] = []
        """Of the calls that change a mode, in turn; "" after the last."""
        self.has_stable_uuids = False
        self._late: list[Fault] = []

    # -- the port ----------------------------------------------------------------------------------
    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        self._begin("look", card, deadline)
        return self.seen(card)

    def make_gpu_instance(
        self, card: Uuid, profile_id: int, placement: MigPlacement, deadline: Deadline
    ) -> int:
        def call() -> int:
            return self.add_gpu_instance(card, profile_id, placement)

        return self._mutate(f"make_gi {profile_id}@{placement.start}", card, deadline, call)

    def make_compute_instance(
        self, card: Uuid, gpu_instance_id: int, deadline: Deadline
    ) -> MigDevice:
        def call() -> MigDevice:
            return self.add_compute_instance(card, gpu_instance_id)

        return self._mutate(f"make_ci {gpu_instance_id}", card, deadline, call)

    def destroy_compute_instance(self, card: Uuid, device: MigDevice, deadline: Deadline) -> None:
        owner, part = device.gpu_instance_id, device.compute_instance_id

        def call() -> None:
            self.remove_compute_instance(card, owner, part)

        self._mutate(f"destroy_ci {owner}", card, deadline, call)

    def destroy_gpu_instance(self, card: Uuid, gpu_instance_id: int, deadline: Deadline) -> None:
        def call() -> None:
            self.remove_gpu_instance(card, gpu_instance_id)

        self._mutate(f"destroy_gi {gpu_instance_id}", card, deadline, call)

    def processes(self, card: Uuid, deadline: Deadline) -> frozenset[int] | None:
        assert deadline.left_s() > 0, card
        if isinstance(self.pids, MigError):
            raise self.pids
        return self.pids

    def set_mode(self, card: Uuid, *, is_enabled: bool, deadline: Deadline) -> str:
        assert deadline.left_s() > 0
        self.calls.append(f"{card} set_mode {is_enabled}")
        answer = self.mode_answers.pop(0) if self.mode_answers else ""
        if isinstance(answer, MigError):
            raise answer
        if not answer:
            self.cards[card].is_enabled = is_enabled
        return answer

    # -- faults ------------------------------------------------------------------------------------
    def fail_next(self, call: str, *reasons: MigFailure) -> None:
        """The next calls whose name begins so fail.

        UNANSWERED ones are done later if `is_late`, FAILED ones all the same if `is_done`.
        """
        self.faults.setdefault(call, []).extend(reasons)

    def return_late(self) -> None:
        """The calls that have not returned in time do now."""
        late, self._late = self._late, []
        for call in late:
            call()

    def _begin(self, call: str, card: str, deadline: Deadline) -> MigFailure | None:
        self.fate.moment()
        self.calls.append(f"{card} {call}")
        self.return_late()  # a look waits for what was called before it
        if card not in self.cards:
            raise MigError(MigFailure.FAILED, f"{call}: {card} is lost")
        reason = self._reason(call)
        if reason is not None:
            is_done = self.is_done and reason is MigFailure.FAILED
            if call == "look" or not (reason is MigFailure.UNANSWERED or is_done):
                raise MigError(reason, f"{call} of {card}: {reason}")
            return reason
        if deadline.left_s() <= 0:
            raise MigError(MigFailure.UNANSWERED, f"{call} of {card} was not begun in time")
        return None

    def _reason(self, call: str) -> MigFailure | None:
        """Why the call that has just begun fails; None if it does not."""
        for begin, reasons in self.faults.items():
            if call.startswith(begin) and reasons:
                return reasons.pop(0)
        return self.failing.get(len(self.calls))

    def _mutate(self, call: str, card: str, deadline: Deadline, work: Callable[[], T]) -> T:
        reason = self._begin(call, card, deadline)
        if reason is MigFailure.UNANSWERED:
            if self.is_late:
                self._late.append(_quiet(work))
            raise MigError(reason, f"{call} of {card} has not returned")
        if reason is not None:
            work()
            raise MigError(reason, f"{call} of {card} has failed, though it was done")
        for begin, during in list(self.during.items()):
            if call.startswith(begin):
                during()
        result = work()
        self.fate.moment()
        return result

    # -- the cards, and what others do with them ---------------------------------------------------
    def seen(self, card: str) -> MigCard:
        found = self.cards[card]
        if not found.is_enabled:
            return MigCard(is_enabled=False, is_pending=False)
        there = list(found.instances.values())  # at once: other threads work on other cards
        instances = sorted(there, key=lambda each: each.gpu_instance_id)
        if found.is_unreadable:
            instances = [replace(each, processes=None) for each in instances]
        return MigCard(
            is_enabled=True,
            is_pending=True,
            profiles=found.profiles,
            instances=tuple(instances),
            problem=found.problem,
        )

    def add_gpu_instance(self, card: str, profile_id: int, placement: MigPlacement) -> int:
        found = self._on(card)
        kind = next((each for each in found.profiles if each.id == profile_id), None)
        assert kind is not None, "INVALID_ARGUMENT"
        assert placement in kind.placements, "INVALID_ARGUMENT"
        alike = [each for each in found.instances.values() if each.profile_id == profile_id]
        if len(alike) == kind.instance_count or any(
            each.placement.overlaps(placement) for each in found.instances.values()
        ):
            raise MigError(MigFailure.NO_ROOM, f"INSUFFICIENT_RESOURCES on {card}")
        number = found.slices // placement.size - 1 + placement.start // placement.size
        found.instances[number] = FoundInstance(
            gpu_instance_id=number,
            profile=kind.name,
            profile_id=profile_id,
            placement=placement,
            processes=frozenset(),
        )
        return number

    def add_compute_instance(self, card: str, number: int) -> MigDevice:
        found = self._instance(card, number)
        if found.compute_instance_ids:
            raise MigError(MigFailure.NO_ROOM, f"INSUFFICIENT_RESOURCES on {card}")
        self.made += 1
        serial = number if self.has_stable_uuids else 1000 + self.made
        device = MigDevice(
            uuid=f"MIG-{serial:08d}-{card}", gpu_instance_id=number, compute_instance_id=0
        )
        self.cards[card].instances[number] = replace(
            found, compute_instance_ids=(0,), device=device
        )
        return device

    def remove_compute_instance(self, card: str, number: int, compute: int = 0) -> None:
        found = self._instance(card, number)
        if compute not in found.compute_instance_ids:
            raise MigError(MigFailure.GONE, f"NOT_FOUND on {card}")
        if found.processes:
            raise MigError(MigFailure.BUSY, f"IN_USE on {card}")
        self.cards[card].instances[number] = replace(found, compute_instance_ids=(), device=None)

    def remove_gpu_instance(self, card: str, number: int) -> None:
        found = self._instance(card, number)
        if found.compute_instance_ids or found.processes or number in self.cards[card].stubborn:
            raise MigError(MigFailure.BUSY, f"IN_USE on {card}")
        del self.cards[card].instances[number]

    def add(self, card: str, name: str, start: int) -> FoundInstance:
        """Somebody else makes an instance."""
        kind = next(each for each in self.cards[card].profiles if each.name == name)
        place = next(each for each in kind.placements if each.start == start)
        number = self.add_gpu_instance(card, kind.id, place)
        self.add_compute_instance(card, number)
        return self.cards[card].instances[number]

    def remove(self, card: str, number: int) -> None:
        """Somebody else destroys an instance."""
        self.remove_compute_instance(card, number)
        self.remove_gpu_instance(card, number)

    def run(self, uuid: str, *pids: int) -> None:
        """These processes are on an instance from now on; none: all have ended."""
        for card in self.cards.values():
            for number, each in card.instances.items():
                if each.device is not None and each.device.uuid == uuid:
                    card.instances[number] = replace(each, processes=frozenset(pids))
                    return
        raise AssertionError(f"there is no {uuid}")

    def reboot(self, boot_id: Path, name: str) -> None:
        """Every instance is gone; the mode is kept."""
        boot_id.write_text(f"{name}\n")
        self._late.clear()
        for card in self.cards.values():
            card.instances.clear()
            card.stubborn.clear()

    def names(self, card: str = "GPU-0") -> list[str]:
        """What is on a card, in the order of its slices: `2g.10gb@4`, `?` where it is not whole."""
        found = sorted(self.cards[card].instances.values(), key=lambda each: each.placement.start)
        return [
            f"{each.profile}@{each.placement.start}{'' if each.device else '?'}" for each in found
        ]

    def devices(self) -> tuple[Device, ...]:
        """The cards as a scan reports them."""
        return tuple(
            Device(
                uuid=Uuid(uuid),
                index=index,
                vendor=NVIDIA,
                model=card.model,
                mode=Mode.MIG if card.is_enabled else Mode.HAMI_CORE,
                memory_mib=max(each.memory_mib for each in card.profiles),
                detail=DriverCard(minor=index, mig=self.seen(uuid)),
            )
            for index, (uuid, card) in enumerate(self.cards.items())
        )

    def _on(self, card: str) -> FakeCard:
        if not self.cards[card].is_enabled:
            raise MigError(MigFailure.GONE, f"NOT_SUPPORTED on {card}")
        return self.cards[card]

    def _instance(self, card: str, number: int) -> FoundInstance:
        found = self._on(card).instances.get(number)
        if found is None:
            raise MigError(MigFailure.GONE, f"NOT_FOUND on {card}")
        return found


def _quiet(work: Callable[[], object]) -> Fault:
    def late() -> None:
        try:
            work()
        except MigError:
            return

    return late
