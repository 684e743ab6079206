"""What HAMi's schedulers wrote for MIG cards is read, and could be served on such a card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.usage import DeviceUsage, PodGrants, charged, collapse
from hami_node.model import Ask, ContainerGrants, ContainerKind, Device, Pod, PodWishes, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance, RegisterFormat
from hami_node.vendors.nvidia.codec import encode_csv9, encode_json
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.mig.registered import RegisteredMig
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.wire import names
from hami_node.wire.grants import decode_grants
from tests.fakes.mig_cards import MIG, divided
from tests.fakes.mig_recordings import CARDS, pods, registers

ROWS: Final = ("v2.10.0", "v2.10.0-hazards")
SLOTS: Final = ("v2.9.0", "v2.7.1")


def _geometries(*listed: tuple[tuple[str, int, int, int], ...]) -> NvidiaSettings:
    """The A100-40 entry of a release's chart."""
    allowed = tuple(
        tuple(
            ListedInstance(name=name, memory=memory, core=core, count=count)
            for name, memory, core, count in geometry
        )
        for geometry in listed
    )
    entry = ListedGeometries(models=("A100-SXM4-40GB",), allowed_geometries=allowed)
    return NvidiaSettings(operating_mode=Mode.MIG, known_mig_geometries=(entry,))


SETTINGS: Final = {
    "v2.10.0": MIG,
    "v2.10.0-hazards": MIG,
    "v2.9.0": _geometries(
        (("1g.5gb", 5120, 14, 7),),
        (("1g.5gb", 5120, 14, 1), ("2g.10gb", 10240, 28, 3)),
        (("3g.20gb", 20480, 42, 2),),
        (("7g.40gb", 40960, 100, 1),),
    ),
    "v2.7.1": _geometries(
        (("1g.5gb", 5120, 0, 7),),
        (("2g.10gb", 10240, 0, 3), ("1g.5gb", 5120, 0, 1)),
        (("3g.20gb", 20480, 0, 2),),
        (("7g.40gb", 40960, 0, 1),),
    ),
}


def asked(name: str) -> int:
    """MiB of each card that a recorded pod asked for, which its name tells."""
    number = re.search(r"(\d{4,5})", name)
    return int(number[1]) if number else {"pct": 10048}.get(name, 4000)


def node_cards(settings: NvidiaSettings) -> dict[Uuid, Device]:
    """The recorded cards as this daemon offers them."""
    physical = tuple(divided(index, uuid=Uuid(CARDS[index])) for index in range(2))
    return {card.uuid: card for card in offered_cards(physical, settings)}


def containers_of(notes: Mapping[str, str]) -> tuple[ContainerGrants, ...]:
    """A recorded reservation, with the instances that it names."""
    key = nvidia_names.POD_TO_ALLOCATE
    pod = Pod(uid="u", namespace="default", name="p", annotations=notes)
    return nvidia_protocol().with_parts(pod, decode_grants(notes[key], key, NVIDIA))


@dataclass
class Replay:
    """The node's view of a recording: what live pods hold, and the check of each reservation."""

    file: str
    held: dict[str, tuple[ContainerGrants, ...]] = field(default_factory=dict)

    def __iter__(self) -> Iterator[tuple[str, int, ContainerGrants, str]]:
        """Pod, container, its grants, and what is objected to them; "" for nothing."""
        compat = V2_10 if self.file in ROWS else V2_8
        cards = node_cards(SETTINGS[self.file])
        for change in pods(self.file):
            if change.is_deleted or change.notes.get(names.POD_BIND_PHASE) == names.PHASE_FAILED:
                self.held.pop(change.name, None)
            if not change.is_reserved or change.name in self.held:
                continue
            containers = containers_of(change.notes)
            live = self._live(cards)
            for position, grants in enumerate(containers):
                if not grants:
                    continue
                ask = Ask(vendor=NVIDIA, count=len(grants), memory_mib=asked(change.name))
                objection = check_reservation(live, grants, ask, PodWishes(), compat)
                yield change.name, position, grants, str(objection or "")
                live = _charged(live, grants)
            self.held[change.name] = containers

    def _live(self, cards: Mapping[Uuid, Device]) -> dict[Uuid, DeviceUsage]:
        live = {uuid: DeviceUsage(device=card) for uuid, card in cards.items()}
        for containers in self.held.values():
            for grants in containers:
                live = _charged(live, grants)
        assert not [use.contradiction for use in live.values() if use.contradiction]
        return live


def _charged(live: Mapping[Uuid, DeviceUsage], grants: ContainerGrants) -> dict[Uuid, DeviceUsage]:
    after = dict(live)
    for charge in collapse(PodGrants(containers=(grants,), kinds=(ContainerKind.APP,))):
        after[charge.uuid] = charged(after[charge.uuid], charge)
    return after


@pytest.mark.parametrize("file", [*ROWS, *SLOTS])
def test_every_reservation_of_hamis_schedulers_would_be_served(file: str) -> None:
    seen = list(Replay(file))
    assert len(seen) >= 4
    assert [item for item in seen if item[3]] == []


def published(file: str, form: RegisterFormat) -> tuple[Device, ...]:
    settings = SETTINGS[file]
    cards = tuple(node_cards(settings).values())
    return RegisteredMig(lambda: settings).as_registered(cards, form)


def test_register_is_that_of_hamis_plugin_2_10_but_for_the_memory() -> None:
    """HAMi registers the card's memory, of which no instance has 100 %."""
    ours = json.loads(encode_json(published("v2.10.0", RegisterFormat.JSON)))
    theirs: list[dict[str, Any]] = json.loads(next(registers("v2.10.0")))
    assert [row.pop("devmem") for row in ours] == [40192, 40192]
    assert [row.pop("devmem") for row in theirs] == [40960, 40960]
    for row in theirs:
        row.pop("devicepairscore", None)
    plain = [{key: value for key, value in row.items() if key != "migProfiles"} for row in ours]
    assert plain == [
        {key: value for key, value in row.items() if key != "migProfiles"} for row in theirs
    ]
    for mine, its in zip(ours, theirs, strict=True):
        assert [_filled(item) for item in mine["migProfiles"]] == [
            _filled(item) for item in its["migProfiles"]
        ]


def _filled(profile: dict[str, Any]) -> dict[str, Any]:
    """With a start of 0, which may be left out."""
    places = [{"start": 0, **place} for place in profile["placements"]]
    return {**profile, "placements": places}


def test_register_is_that_of_hamis_plugin_2_9_but_for_the_slots() -> None:
    """HAMi counts deviceSplitCount slots, of which a card in MIG mode has no use."""
    ours = json.loads(encode_json(published("v2.9.0", RegisterFormat.JSON)))
    theirs: list[dict[str, Any]] = json.loads(next(registers("v2.9.0")))
    for row in theirs:
        row.pop("devicepairscore")
    assert [row.pop("count") for row in ours] == [7, 7]
    assert [row.pop("count") for row in theirs] == [10, 10]
    assert ours == theirs


def test_register_is_that_of_hamis_plugin_2_7_but_for_the_slots() -> None:
    ours = encode_csv9(published("v2.7.1", RegisterFormat.CSV9))
    theirs = next(registers("v2.7.1"))
    assert ours.replace(",7,40960,", ",10,40960,") == theirs
