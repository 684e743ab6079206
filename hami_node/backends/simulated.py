"""Cards from a YAML file, for demos, tests and nodes without a GPU. The file is read as it changes.

```yaml
vendor: NVIDIA          # NVIDIA (default) or AWSNeuron
driver_down: ""         # not empty: the whole driver is gone, with this reason
answer_after_s: 0       # every scan takes that long
cards:                  # numbered in order, unless they say otherwise
  - model: NVIDIA A100-SXM4-40GB   # as the driver would name it
    memory_mib: 40960
    count: 4            # that many such cards, default 1; then without uuid, index and pci_bus
  - model: NVIDIA A10
    memory_mib: 24564
    uuid: GPU-0e8860e1-5ea9-901d-fba1-651385d5e023   # default: made from node name and index
    index: 4
    numa: 0             # default: unknown
    pci_bus: "00000000:3B:00.0"
    mode: hami-core     # or mig, mps
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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import yaml
from msgspec import Meta

from hami_node.backends.nvml_mig import NOT_SERVED
from hami_node.errors import ConfigError, DriverUnavailable
from hami_node.logs import kv
from hami_node.model import Device, Mode, Uuid, Vendor

log = logging.getLogger(__name__)

LONGEST_SCAN_S = 6.0
"""A scan that would take longer is reported as one, as with the real driver."""
_LOOK_S = 0.1
_NAMESPACE = uuid.UUID("6b3f0d6e-64a5-4c8b-9a39-0f6d1f4f5a10")


_Text = Annotated[str, Meta(min_length=1)]
_Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of `cards`; see the module's text."""

    model: _Text
    memory_mib: _Number
    count: Annotated[int, Meta(ge=1, le=256)] = 1
    uuid: str = ""
    index: _Number | None = None
    numa: _Number | None = None
    pci_bus: str = ""
    mode: Mode = Mode.HAMI_CORE
    links: dict[int, int] = {}
    healthy: bool = True
    reason: str = ""
    lost: bool = False


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; see the module's text."""

    cards: list[_Card]
    vendor: Vendor = Vendor.NVIDIA
    driver_down: str = ""
    answer_after_s: Annotated[float, Meta(ge=0)] = 0


class _State(msgspec.Struct, frozen=True):
    """What the file means."""

    devices: tuple[Device, ...]
    pair_scores: Mapping[Uuid, Mapping[Uuid, int]]
    driver_down: str
    answer_after_s: float


class SimulatedBackend:
    """The port `Backend` on a file. Faults are written into the file; they go as they come."""

    name = "simulated"
    is_simulated = True

    def __init__(self, path: Path, node_name: str) -> None:
        """Read the file once.

        Raises:
            ConfigError: the file is missing or wrong; names the field.
        """
        self._path = path
        self._node_name = node_name
        self._stopped = threading.Event()
        self._mark = self._file_mark()
        self._state = read_state(path, node_name)
        self._has_news = False

    def scan(self) -> tuple[Device, ...]:
        """The cards of the file now, sorted by (index, uuid); see `ports.Backend.scan`.

        Raises:
            DriverUnavailable: the file says that the driver is down or too slow.
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
        """True as soon as the file means something else than at the last scan."""
        for _ in range(max(int(timeout_s / _LOOK_S), 1)):
            self._reread()
            if self._has_news:
                return True
            if self._stopped.wait(min(_LOOK_S, timeout_s)):
                return False
        return False

    def close(self) -> None:
        """End waits under way."""
        self._stopped.set()

    def pair_scores(self) -> Mapping[Uuid, Mapping[Uuid, int]]:
        """Scores of the pairs that the file names; empty when it names none."""
        return self._state.pair_scores

    def last_pass_age_s(self) -> float:
        """A file never hangs."""
        return 0.0

    def _reread(self) -> None:
        """Take a changed file over. A wrong one changes nothing and says so once."""
        mark = self._file_mark()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            state = read_state(self._path, self._node_name)
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


def read_state(path: Path, node_name: str) -> _State:
    """Read and check the file.

    Raises:
        ConfigError: it is missing, no YAML, or a field is wrong.
    """
    try:
        content = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
    except OSError as e:
        raise ConfigError(str(path), "file", e.strerror, "give a readable file of cards") from e
    except yaml.YAMLError as e:
        mark, why = getattr(e, "problem_mark", None), getattr(e, "problem", None)
        line = f"line {mark.line + 1}" if mark else "file"
        raise ConfigError(str(path), line, why or str(e), "this must be YAML") from e
    try:
        file = msgspec.convert(content, _File)
    except msgspec.ValidationError as e:
        why, _, field = str(e).partition(" - at ")
        at = field.strip("`") or "$"
        raise ConfigError(str(path), at, _value_at(content, at), why) from e
    devices: dict[int, Device] = {}
    links: dict[int, Mapping[int, int]] = {}
    for place, (index, card) in enumerate(_numbered(file.cards)):
        _check(path, f"cards, number {place}", index, card, devices)
        devices[index] = _device(index, card, file.vendor, node_name)
        links[index] = card.links
    uuids = [device.uuid for device in devices.values()]
    for device in devices.values():
        if uuids.count(device.uuid) > 1:
            raise ConfigError(str(path), "uuid", device.uuid, "every card needs its own")
    return _State(
        devices=tuple(sorted(devices.values(), key=lambda card: (card.index, card.uuid))),
        pair_scores=_pair_scores(devices, links),
        driver_down=file.driver_down,
        answer_after_s=file.answer_after_s,
    )


def _value_at(content: object, place: str) -> object:
    """What stands at a msgspec path such as `$.cards[0].model`; None where nothing does."""
    for key, number in re.findall(r"\.(\w+)|\[(\d+)\]", place):
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


def _check(path: Path, field: str, index: int, card: _Card, others: Mapping[int, Device]) -> None:
    """What the types don't say. Raises ConfigError."""
    for is_bad, name, value, cure in (
        (index in others, "index", index, "another card has it"),
        (card.count > 1 and card.uuid, "uuid", card.uuid, "leave it out where count is above 1"),
        (card.count > 1 and card.pci_bus, "pci_bus", card.pci_bus, "leave it out with count"),
    ):
        if is_bad:
            raise ConfigError(str(path), f"{field}: {name}", value, cure)


def _device(index: int, card: _Card, vendor: Vendor, node_name: str) -> Device:
    made = uuid.uuid5(_NAMESPACE, f"{node_name}/{index}")
    default = f"GPU-{made}" if vendor is Vendor.NVIDIA else f"{node_name}-AWSNeuron-{index}"
    reason = ""
    if card.lost:
        reason = "the card does not answer (simulated)"
    elif not card.healthy:
        reason = card.reason or "fault on command (simulated)"
    elif card.mode is Mode.MIG:
        reason = NOT_SERVED
    return Device(
        uuid=Uuid(card.uuid or default),
        index=index,
        vendor=vendor,
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
) -> Mapping[Uuid, Mapping[Uuid, int]]:
    scores: dict[Uuid, dict[Uuid, int]] = {}
    for index, peers in links.items():
        for peer, score in peers.items():
            if peer in devices and peer != index:
                one, other = devices[index].uuid, devices[peer].uuid
                scores.setdefault(one, {})[other] = score
                scores.setdefault(other, {})[one] = score
    return scores
