"""Cards from a YAML file, for demos, tests and nodes without a GPU; reloaded when it changes.

```yaml
driver_down: ""         # not empty: the whole driver is down, with this reason
answer_after_s: 0       # every scan takes that long
cards:                  # numbered in order, unless they set an index
  - model: NVIDIA A100-SXM4-40GB   # as the driver would name it
    memory_mib: 40960
    count: 4            # that many such cards, default 1; then without uuid, index and pci_bus
  - model: NVIDIA A10
    memory_mib: 24564
    uuid: GPU-0e8860e1-5ea9-901d-fba1-651385d5e023   # default: made from node name and index
    index: 4
    numa: 0             # default: unknown
    pci_bus: "00000000:3B:00.0"
    mode: hami-core     # how the card is shared, as the vendor names it
    links: {0: 210}     # pair scores with other cards, by index; good in both directions
    healthy: false      # a fault, with its reason
    reason: XID 48
    lost: true          # the card does not answer
```
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from hami_node.errors import ConfigError, DriverUnavailable
from hami_node.logs import kv
from hami_node.model import DEFAULT_MODE, Device, PairScores, Uuid, Vendor
from hami_node.ports import HostUse, PartError

log = logging.getLogger(__name__)

LONGEST_SCAN_S = 6.0
"""A slower scan is reported as a failure of the driver, as with a real driver."""
_POLL_S = 0.1
_NAMESPACE = uuid.UUID("6b3f0d6e-64a5-4c8b-9a39-0f6d1f4f5a10")


_Text = Annotated[str, Meta(min_length=1)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `cards`; see the module's docstring."""

    model: _Text
    memory_mib: _Number
    count: Annotated[int, Meta(ge=1, le=256)] = 1
    uuid: str = ""
    index: _Number | None = None
    numa: _Number | None = None
    pci_bus: str = ""
    mode: str = DEFAULT_MODE
    links: dict[int, int] = {}
    healthy: bool = True
    reason: str = ""
    lost: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; see the module's docstring."""

    cards: list[_Card]
    vendor: str = ""
    driver_down: str = ""
    answer_after_s: Annotated[float, Meta(ge=0)] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCards:
    """How one vendor's cards are simulated.

    Attributes:
        modes: the sharing modes, each with why a card in it is not served ("" if it is).
        default_uuid: makes a UUID from the node's name, the card's index and a UUID made of both.
    """

    vendor: Vendor
    modes: Mapping[str, str]
    default_uuid: Callable[[str, int, uuid.UUID], str]


class _StateFile(msgspec.Struct, frozen=True):
    """The decoded content of the file."""

    devices: tuple[Device, ...]
    pair_scores: PairScores
    driver_down: str
    answer_after_s: float


class SimulatedBackend:
    """The port `Backend` on a file. A fault lasts for as long as it is in the file."""

    name = "simulated"
    is_simulated = True

    def __init__(self, path: Path, node_name: str, style: SimulatedCards) -> None:
        """Read the file once.

        Raises:
            ConfigError: the file is missing or wrong; names the field.
        """
        self._path = path
        self._node_name, self._style = node_name, style
        self._stopped = threading.Event()
        self._mark = self._file_mark()
        self._state = read_state(path, node_name, style)
        self._has_news = False

    def scan(self) -> tuple[Device, ...]:
        """The cards of the file now, sorted by (index, uuid); see `ports.Backend.scan`.

        Raises:
            DriverUnavailable: by the file, the driver is down or too slow.
        """
        self._reread()
        self._has_news = False
        state = self._state
        self._stopped.wait(min(state.answer_after_s, LONGEST_SCAN_S))
        if state.answer_after_s > LONGEST_SCAN_S:
            raise DriverUnavailable(f"simulated driver has not answered for {LONGEST_SCAN_S:g} s")
        if state.driver_down:
            raise DriverUnavailable(f"simulated driver is down: {state.driver_down}")
        return state.devices

    def wait_for_event(self, timeout_s: float) -> bool:
        """True as soon as the content of the file differs from the last scan."""
        for _ in range(max(int(timeout_s / _POLL_S), 1)):
            self._reread()
            if self._has_news:
                return True
            if self._stopped.wait(min(_POLL_S, timeout_s)):
                return False
        return False

    def close(self) -> None:
        """End pending waits."""
        self._stopped.set()

    def pair_scores(self) -> PairScores:
        """Scores of the pairs that the file names; empty when it names none."""
        return self._state.pair_scores

    def host_use(self, with_processes: Collection[Uuid] = ()) -> Mapping[Uuid, HostUse]:
        """A file is not used by anybody."""
        del with_processes
        return {}

    def error_counts(self) -> Mapping[tuple[Uuid, int], int]:
        """A file has no driver whose errors could be counted."""
        return {}

    def part_errors(self) -> tuple[PartError, ...]:
        """Nor has it divided cards."""
        return ()

    def clear_errors(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        """A fault lasts for as long as it is in the file."""
        del uuids
        return ()

    def last_pass_age_s(self) -> float:
        """A file never hangs."""
        return 0.0

    def _reread(self) -> None:
        """Load a changed file. An invalid file changes nothing and is logged once."""
        mark = self._file_mark()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            state = read_state(self._path, self._node_name, self._style)
        except ConfigError as e:
            log.error("simulated_cards_refused", extra=kv(reason=str(e)))  # noqa: TRY400  no bug
            return
        self._has_news = self._has_news or state != self._state
        self._state = state

    def _file_mark(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_state(path: Path, node_name: str, style: SimulatedCards) -> _StateFile:
    """Read and check the file.

    Raises:
        ConfigError: it is missing, no YAML, or a field is wrong.
    """
    try:
        content = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except OSError as e:
        raise ConfigError(str(path), "file", e.strerror, "give a readable file of cards") from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # a value may be no date, or too deep
        mark, why = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        line = f"line {mark.line + 1}" if mark else "file"
        raise ConfigError(str(path), line, why or str(e), "this must be YAML") from e
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as e:
        why, _, field = str(e).partition(" - at ")
        location = field.strip("`") or "$"
        raise ConfigError(str(path), location, _value_at(content, location), why) from e
    _check_words(path, file, style)
    devices: dict[int, Device] = {}
    links: dict[int, Mapping[int, int]] = {}
    for number, (index, card) in enumerate(_numbered(file.cards)):
        _check(path, f"cards, number {number}", index, card, devices)
        devices[index] = _device(index, card, style, node_name)
        links[index] = card.links
    uuids = [device.uuid for device in devices.values()]
    for device in devices.values():
        if uuids.count(device.uuid) > 1:
            raise ConfigError(str(path), "uuid", device.uuid, "every card needs its own")
    return _StateFile(
        devices=tuple(sorted(devices.values(), key=lambda card: (card.index, card.uuid))),
        pair_scores=_pair_scores(devices, links),
        driver_down=file.driver_down,
        answer_after_s=file.answer_after_s,
    )


def _check_words(path: Path, file: _File, style: SimulatedCards) -> None:
    """The words that depend on the vendor. Raises ConfigError."""
    if file.vendor not in ("", style.vendor.word):
        raise ConfigError(str(path), "$.vendor", file.vendor, f"allowed is {style.vendor.word}")
    for number, card in enumerate(file.cards):
        if card.mode not in style.modes:
            allowed = ", ".join(style.modes)
            raise ConfigError(str(path), f"$.cards[{number}].mode", card.mode, f"one of {allowed}")


def _value_at(content: object, location: str) -> object:
    """The value at a msgspec path such as `$.cards[0].model`; None where nothing is."""
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", location):
        if key and isinstance(content, dict):
            content = content.get(key)
        elif number and isinstance(content, list):
            content = content[int(number)]
    return content if isinstance(content, str | int | float | None) else type(content).__name__


def _numbered(cards: list[_Card]) -> Iterator[tuple[int, _Card]]:
    index = 0
    for card in cards:
        if card.index is not None:
            index = card.index
        for _ in range(card.count):
            yield index, card
            index += 1


def _check(
    path: Path,
    field: str,
    index: int,
    card: _Card,
    others: Mapping[int, Device],
) -> None:
    """Check what the types don't express. Raises ConfigError."""
    for is_bad, name, value, hint in (
        (index in others, "index", index, "another card has it"),
        (card.count > 1 and card.uuid, "uuid", card.uuid, "leave it out where count is above 1"),
        (card.count > 1 and card.pci_bus, "pci_bus", card.pci_bus, "leave it out with count"),
    ):
        if is_bad:
            raise ConfigError(str(path), f"{field}: {name}", value, hint)


def _device(index: int, card: _Card, style: SimulatedCards, node_name: str) -> Device:
    made = uuid.uuid5(_NAMESPACE, f"{node_name}/{index}")
    reason = style.modes[card.mode]
    if card.lost:
        reason = "the card does not answer (simulated)"
    elif not card.healthy:
        reason = card.reason or "fault on command (simulated)"
    return Device(
        uuid=Uuid(card.uuid or style.default_uuid(node_name, index, made)),
        index=index,
        vendor=style.vendor,
        model=card.model,
        mode=card.mode,
        numa=card.numa,
        healthy=not reason,
        unhealthy_reason=reason,
        memory_mib=card.memory_mib,
        pci_bus=card.pci_bus,
    )


def _pair_scores(
    devices: Mapping[int, Device], links: Mapping[int, Mapping[int, int]]
) -> PairScores:
    scores: dict[Uuid, dict[Uuid, int]] = {}
    for index, peers in links.items():
        for peer, score in peers.items():
            if peer in devices and peer != index:
                pair = devices[index].uuid, devices[peer].uuid
                for card, other in (pair, pair[::-1]):
                    scores.setdefault(card, {})[other] = score
    return scores
