"""The MIG hardware behind the NVML stand-in, as an onlooker or somebody else sees and changes it.

It is a file that all processes share (see `mig_hardware.c`), so a test's own process sees here what
the daemon's did, and what is left after a kill -9. Nothing done here is a call of NVML: no rule of
the control file applies to it, and it is not in `calls()`.
"""

from __future__ import annotations

import ast
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

MODELS: Final = Path(__file__).with_name("models.inc")
CHANGES: Final = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
"""The calls that change MIG; `changes` in the control file."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """A line MODEL of `models.inc`."""

    key: str
    part: str
    other: str
    generation: str
    slices: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A line PROFILE of `models.inc`."""

    model: str
    number: int
    id: int
    name: str
    slices: int
    instances: int
    memory_mib: int
    multiprocessors: int
    size: int
    starts_text: str

    @property
    def starts(self) -> tuple[int, ...]:
        """All legal ones."""
        return tuple(int(start) for start in self.starts_text.split())


def _read(macro: str, kind: type[T]) -> tuple[T, ...]:
    lines = MODELS.read_text().splitlines()
    found = (line[len(macro) :] for line in lines if line.startswith(f"{macro}("))
    return tuple(kind(*ast.literal_eval(values)) for values in found)


ALL_MODELS: Final = _read("MODEL", Model)
ALL_PROFILES: Final = _read("PROFILE", Profile)


def profiles_of(model: str) -> Mapping[str, Profile]:
    """The profiles of a model by name."""
    return {profile.name: profile for profile in ALL_PROFILES if profile.model == model}


@dataclass(frozen=True, slots=True)
class Compute:
    """A compute instance, which is a MIG device."""

    id: int
    uuid: str
    pids: tuple[int, ...] = ()
    used_mib: int = 0
    profile_id: int = 0
    start: int = 0
    size: int = 1


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance with its compute instances."""

    gi: int
    profile: str
    profile_id: int
    start: int
    size: int
    compute: tuple[Compute, ...] = ()
    lingers: int = 0

    @property
    def uuid(self) -> str:
        """Of its only MIG device; "" without one."""
        return self.compute[0].uuid if self.compute else ""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One card."""

    current: int
    pending: int
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A call that changed MIG or was refused to, in the order in which they took effect."""

    pid: int
    card: str
    function: str
    result: int
    arguments: str


@dataclass
class _Lines:
    """The file: rows by word, and the counts, which are carried over."""

    modes: dict[str, tuple[int, int]] = field(default_factory=dict)
    instances: dict[tuple[str, int], Instance] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)


class MigHardware:
    """The MIG side of all cards of a control file."""

    def __init__(self, control: Path) -> None:
        """`control` is what NVML_STUB_FILE names."""
        self._control = control
        self._file = control.with_name(f"{control.name}.mig")

    def look(self) -> Mapping[str, Hardware]:
        """Every card that has MIG, by UUID: what the hardware really holds now."""
        lines = self._load()
        found = {}
        for card, words in self._cards().items():
            if words.get("mig", "unsupported") == "unsupported":
                continue
            current, pending = lines.modes.get(card, (_mode(words), _mode(words)))
            held = [i for (owner, _), i in sorted(lines.instances.items()) if owner == card]
            found[card] = Hardware(current, pending, tuple(held) if current else ())
        return found

    def instances(self, card: str) -> tuple[Instance, ...]:
        """The GPU instances of a card, by id."""
        return self.look()[card].instances

    def uuids(self, card: str) -> tuple[str, ...]:
        """The MIG devices of a card."""
        return tuple(c.uuid for i in self.instances(card) for c in i.compute)

    def changes(self, card: str | None = None) -> tuple[Change, ...]:
        """Every call of a process that changed MIG, or was refused to; of one card if named."""
        path = self._file.with_name(f"{self._file.name}.log")
        rows = path.read_text().splitlines() if path.exists() else []
        found = (row.split(" ", 4) for row in rows)
        calls = (Change(int(pid), on, name, int(code), arg) for pid, on, name, code, arg in found)
        return tuple(call for call in calls if card is None or call.card == card)

    def counted(self, line: str) -> int:
        """How many calls a line `nth` with that id has counted so far."""
        rows = (row.split() for row in self._load().rest)
        return next((int(row[2]) for row in rows if row[:2] == ["count", line]), 0)

    def make(
        self, card: str, profile: str, start: int, *, is_whole: bool = True, mig_uuid: str = ""
    ) -> Instance:
        """Somebody else makes an instance; without its compute instance if not `is_whole`.

        Raises:
            ValueError: the hardware would refuse it.
        """
        model = self._model(card)
        wanted = profiles_of(model.key)[profile]
        if not self.look()[card].current:
            message = f"{card} is not in MIG mode"
            raise ValueError(message)
        with self._changed() as lines:
            held = [i for (owner, _), i in lines.instances.items() if owner == card]
            is_free = all(start >= i.start + i.size or i.start >= start + wanted.size for i in held)
            if start not in wanted.starts or not is_free:
                message = f"{profile} does not fit at {start}: {held}"
                raise ValueError(message)
            gi = model.slices // wanted.size - 1 + start // wanted.size
            compute = (_compute(wanted, mig_uuid),) if is_whole else ()
            made = Instance(gi, profile, wanted.id, start, wanted.size, compute)
            lines.instances[card, gi] = made
        return made

    def destroy(self, card: str, gi: int, *, is_whole: bool = True) -> None:
        """Somebody else destroys a GPU instance, or only its compute instances."""
        with self._changed() as lines:
            found = lines.instances.pop((card, gi))
            if not is_whole:
                lines.instances[card, gi] = replace(found, compute=())

    def run(self, mig_uuid: str, pid: int, used_mib: int = 0) -> None:
        """Start a process on a MIG device."""
        self._alter(mig_uuid, lambda c: replace(c, pids=(*c.pids, pid), used_mib=used_mib))

    def end(self, mig_uuid: str) -> None:
        """End all processes on a MIG device."""
        self._alter(mig_uuid, lambda c: replace(c, pids=(), used_mib=0))

    def set_mode(self, card: str, current: int, pending: int | None = None) -> None:
        """Somebody else sets the mode. Without MIG there are no instances."""
        with self._changed() as lines:
            lines.modes[card] = (current, current if pending is None else pending)
            if not current:
                self._drop(lines, [card])

    def reset(self) -> None:
        """Forget everything: modes are as the control file has them, nothing is made or logged."""
        for ending in ("", ".log"):
            self._file.with_name(f"{self._file.name}{ending}").unlink(missing_ok=True)

    def _alter(self, mig_uuid: str, change: Callable[[Compute], Compute]) -> None:
        with self._changed() as lines:
            for key, instance in lines.instances.items():
                if any(c.uuid == mig_uuid for c in instance.compute):
                    altered = (change(c) if c.uuid == mig_uuid else c for c in instance.compute)
                    lines.instances[key] = replace(instance, compute=tuple(altered))
                    return
        raise KeyError(mig_uuid)

    @staticmethod
    def _drop(lines: _Lines, cards: Sequence[str]) -> None:
        lines.instances = {k: i for k, i in lines.instances.items() if k[0] not in cards}

    def _cards(self) -> Mapping[str, Mapping[str, str]]:
        """The words of every card's line."""
        found = {}
        for line in self._control.read_text(errors="surrogateescape").splitlines():
            if line.startswith("card "):
                quoted = line.split('"')
                joined = "".join(
                    part.replace(" ", "\0") if n % 2 else part for n, part in enumerate(quoted)
                )
                words = dict(word.split("=", 1) for word in joined.split() if "=" in word)
                found[words["uuid"]] = {k: v.replace("\0", " ") for k, v in words.items()}
        return found

    def _model(self, card: str) -> Model:
        words = self._cards()[card]
        if "model" in words:
            return next(m for m in ALL_MODELS if m.key == words["model"])
        name = words["name"]
        return next(m for m in ALL_MODELS if m.part in name and m.other in name)

    def _load(self) -> _Lines:
        lines = _Lines()
        text = self._file.read_text() if self._file.exists() else ""
        names = {card: self._names(card) for card in self._cards()}
        for row in text.splitlines():
            word, *values = row.split()
            if word == "mode":
                lines.modes[values[0]] = (int(values[1]), int(values[2]))
            elif word == "gi":
                card, gi, profile, start, size, lingers = values[0], *map(int, values[1:])
                name = names.get(card, {}).get(profile, "")
                lines.instances[card, gi] = Instance(
                    gi, name, profile, start, size, lingers=lingers
                )
            elif word in {"ci", "pid"}:
                self._add_compute(lines, word, values)
            else:
                lines.rest.append(row)
        return lines

    def _names(self, card: str) -> Mapping[int, str]:
        return {p.id: p.name for p in profiles_of(self._model(card).key).values()}

    @staticmethod
    def _add_compute(lines: _Lines, word: str, values: Sequence[str]) -> None:
        card, gi, ci = values[0], int(values[1]), int(values[2])
        instance = lines.instances.get((card, gi))
        if instance is None:
            return
        if word == "ci":
            profile, start, size, used_mib = map(int, values[3:7])
            fresh = Compute(ci, values[7], (), used_mib, profile, start, size)
            compute: tuple[Compute, ...] = (*instance.compute, fresh)
        else:
            pid = int(values[3])
            compute = tuple(
                replace(c, pids=(*c.pids, pid)) if c.id == ci else c for c in instance.compute
            )
        lines.instances[card, gi] = replace(instance, compute=compute)

    @contextmanager
    def _changed(self) -> Iterator[_Lines]:
        """Read, change and write it while no other process does."""
        lock = self._file.with_name(f"{self._file.name}.lock")
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            lines = self._load()
            yield lines
            fresh = self._file.with_name(f"{self._file.name}.new")
            fresh.write_text("".join(f"{row}\n" for row in _rows(lines)))
            os.replace(fresh, self._file)


def _rows(lines: _Lines) -> Iterator[str]:
    for card, (current, pending) in lines.modes.items():
        yield f"mode {card} {current} {pending}"
    held = lines.instances.items()
    for (card, gi), i in held:
        yield f"gi {card} {gi} {i.profile_id} {i.start} {i.size} {i.lingers}"
    for (card, gi), i in held:
        for c in i.compute:
            place = f"{c.profile_id} {c.start} {c.size}"
            yield f"ci {card} {gi} {c.id} {place} {c.used_mib} {c.uuid}"
            for pid in c.pids:
                yield f"pid {card} {gi} {c.id} {pid}"
    yield from lines.rest


def _mode(words: Mapping[str, str]) -> int:
    return int(words.get("mig") == "enabled")


def _compute(profile: Profile, mig_uuid: str) -> Compute:
    """The one over all of a GPU instance."""
    number = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[profile.slices]
    name = mig_uuid or f"MIG-{uuid.uuid5(uuid.uuid4(), profile.name)}"
    return Compute(0, name, profile_id=number, size=profile.slices)
