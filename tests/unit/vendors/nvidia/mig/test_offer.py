"""What is offered of cards in MIG mode, by model, settings and what exists on the card."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.engine.usage import Charge, DeviceUsage, charged
from hami_node.model import Device
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import (
    ListedGeometries,
    ListedInstance,
    ListedProfiles,
    RegisterFormat,
)
from hami_node.vendors.nvidia.codec import decode_register, encode_json
from hami_node.vendors.nvidia.mig.layout import (
    DriverCard,
    MigInstance,
    MigPlacement,
    is_instance,
    layout_of,
)
from hami_node.vendors.nvidia.mig.offer import (
    short_entries,
    unknown_names,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import mig_rules_of, offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.cards import MEMORY_MIB, card
from tests.fakes.mig_cards import (
    A30,
    A100_40,
    A100_80,
    CHART,
    GEOMETRIES,
    MIG,
    RTX_PRO_6000,
    TEMPLATES,
    divided,
    instance,
)
from tests.reliability import shows


def offered(physical: Device, settings: NvidiaSettings = MIG) -> Device:
    (found,) = offered_cards((physical,), settings)
    return found


def places(found: Device) -> dict[str, list[int]]:
    """The starts that are offered, by profile."""
    return {
        item.name: [place.start for place in item.placements] for item in layout_of(found).profiles
    }


ALL_PLACES = {
    "1g.5gb": [0, 1, 2, 3, 4, 5, 6],
    "2g.10gb": [0, 2, 4],
    "3g.20gb": [0, 4],
    "7g.40gb": [0],
}


@pytest.mark.parametrize(
    ("model", "profiles", "wanted"),
    [
        ("NVIDIA A30", A30, (4, 24000, ["1g.6gb", "2g.12gb", "4g.24gb"])),
        ("NVIDIA A100-SXM4-80GB", A100_80, (7, 80896, ["1g.10gb", "2g.20gb", "3g.40gb"])),
        (
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            RTX_PRO_6000,
            (4, 97408, ["1g.24gb", "2g.48gb", "4g.96gb"]),
        ),
        (
            "NVIDIA A100 of tomorrow",
            A100_40,
            (7, 40192, ["1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"]),
        ),
    ],
    ids=["a30", "a100-80", "rtx-pro-without-entry", "model-without-entry"],
)
def test_profiles_are_the_models_own(
    model: str, profiles: tuple[object, ...], wanted: tuple[int, int, list[str]]
) -> None:
    found = offered(divided(model=model, profiles=profiles))  # type: ignore[arg-type]
    assert (found.slots, found.memory_mib, list(places(found))) == wanted
    assert found.healthy


def allowing(*names: str) -> NvidiaSettings:
    listed = ListedProfiles(models=("A100",), profiles=names)
    return NvidiaSettings(operating_mode=Mode.MIG, mig_profile_allowlist=(listed,))


PAIR, LAST = instance(3, "2g.10gb", 0), instance(9, "1g.5gb", 6)
MEDIA = instance(9, "1g.5gb+me", 2)


@pytest.mark.parametrize(
    ("physical", "settings", "wanted"),
    [
        pytest.param(divided(), MIG, ALL_PLACES, id="nothing-made"),
        pytest.param(
            divided(0, PAIR),
            MIG,
            {"1g.5gb": [2, 3, 4, 5, 6], "2g.10gb": [2, 4], "3g.20gb": [4]},
            id="foreign-instances-are-withdrawn",
        ),
        pytest.param(
            divided(0, PAIR, LAST, ours=[3], stale=[9]),
            MIG,
            {"1g.5gb": [0, 1, 2, 3, 4, 5], "2g.10gb": [0, 2, 4], "3g.20gb": [0]},
            id="own-keep-their-places-and-stale-do-not",
        ),
        pytest.param(
            divided(0, MEDIA, ours=[9]),
            allowing("1g.5gb+me", "1g.5gb"),
            {"1g.5gb+me": [2], "1g.5gb": [0, 1, 2, 3, 4, 5, 6]},
            id="variant-that-exists-once-is-not-offered-again",
        ),
        pytest.param(
            divided(),
            allowing("3g.20gb", "1g.5gb", "3g.20gb"),
            {"3g.20gb": [0, 4], "1g.5gb": [0, 1, 2, 3, 4, 5, 6]},
            id="order-is-the-lists-and-a-name-counts-once",
        ),
        pytest.param(
            divided(profiles=(A100_40[0],) * 3),
            NvidiaSettings(operating_mode=Mode.MIG),
            {"1g.5gb": [0, 1, 2, 3, 4, 5, 6]},
            id="profile-that-the-driver-lists-twice",
        ),
    ],
)
def test_places_that_are_offered(
    physical: Device, settings: NvidiaSettings, wanted: dict[str, list[int]]
) -> None:
    found = offered(physical, settings)
    assert found.healthy
    assert list(places(found).items()) == list(wanted.items())


@shows(
    "M12",
    fault="a list names 1g.10gb for a card of 40 GB, and 7g.79gb for one that has 7g.80gb",
    happens="names are the driver's: the profile of that name is offered with its own id, and a "
    "name that the card lacks is told once",
)
def test_hazard_12_profiles_are_matched_by_the_drivers_own_name() -> None:
    (found,) = layout_of(offered(divided(), allowing("1g.10gb"))).profiles
    assert (found.name, found.memory_mib, found.cores) == ("1g.10gb", 9856, 15)
    assert [place.size for place in found.placements] == [2, 2, 2, 2]
    larger = divided(model="NVIDIA A100-SXM4-80GB", profiles=A100_80)
    assert unknown_names(larger, mig_rules_of(MIG)) == ("7g.79gb",)
    assert unknown_names(divided(), mig_rules_of(MIG)) == ()
    assert unknown_names(card(), mig_rules_of(MIG)) == ()


def test_geometry_may_name_a_profile_that_is_rounded_otherwise() -> None:
    listed = (
        ListedInstance(name="7g.41gb", memory=40960, count=1),
        ListedInstance(name="3g.99gb", memory=1, count=1),
    )
    entry = ListedGeometries(models=("A100",), allowed_geometries=(listed,))
    rules = mig_rules_of(replace(TEMPLATES, known_mig_geometries=(entry,)))
    assert unknown_names(divided(), rules) == ("3g.99gb",)
    assert [real for _, real in short_entries(divided(), rules)] == [40192]


def test_list_of_names_that_the_card_lacks_closes_it_with_the_reason() -> None:
    found = offered(divided(), allowing("1g.99gb"))
    assert not found.healthy
    assert "migProfileAllowlist" in found.unhealthy_reason


@shows(
    "M10",
    fault="a pod asks for 100 % of the memory of a card in MIG mode",
    happens="the card is registered with the memory of its largest instance, so that it fits",
)
def test_hazard_10_the_whole_card_by_percent_is_the_largest_profile() -> None:
    found = offered(divided())
    largest = max(item.memory_mib for item in layout_of(found).profiles)
    assert found.memory_mib == largest == 40192
    assert found.physical_memory_mib == MEMORY_MIB


@pytest.mark.parametrize(
    ("ours", "words"),
    [([], "GPU instance 0 (7g.40gb at 0)"), ([0], "")],
    ids=["foreign", "ours"],
)
def test_card_whose_places_are_all_taken_names_by_what(ours: list[int], words: str) -> None:
    found = offered(divided(0, instance(0, "7g.40gb", 0), ours=ours))
    assert found.healthy is (not words)
    assert words in found.unhealthy_reason


def test_card_of_geometries_has_the_memory_that_the_driver_reports() -> None:
    """4 x 25 % fit only into what the driver reports, because a list's sizes are shares of it."""
    found = offered(divided(), TEMPLATES)
    assert (found.slots, found.memory_mib, found.healthy) == (7, MEMORY_MIB, True)
    assert len(layout_of(found).templates) == 4


@pytest.mark.parametrize(
    ("allowlist", "form", "memory_mib"),
    [
        ((), RegisterFormat.AUTO, MEMORY_MIB),
        (CHART, RegisterFormat.AUTO, 40192),
        (CHART, RegisterFormat.CSV9, MEMORY_MIB),
        (CHART[:1], RegisterFormat.JSON, MEMORY_MIB),
    ],
    ids=["geometries", "both", "both-in-csv", "allowlist-of-another-model"],
)
def test_protocol_is_that_of_the_list_that_names_the_model(
    allowlist: tuple[ListedProfiles, ...], form: RegisterFormat, memory_mib: int
) -> None:
    settings = NvidiaSettings(
        operating_mode=Mode.MIG,
        known_mig_geometries=GEOMETRIES,
        mig_profile_allowlist=allowlist,
        register_format=form,
    )
    assert offered(divided(), settings).memory_mib == memory_mib


def test_foreign_instance_closes_a_card_of_geometries() -> None:
    found = offered(divided(0, instance(5, "1g.5gb", 6)), TEMPLATES)
    assert not found.healthy
    assert "GPU instance 5 (1g.5gb at 6)" in found.unhealthy_reason
    assert offered(divided(0, instance(5, "1g.5gb", 6), ours=[5]), TEMPLATES).healthy
    assert offered(divided(0, instance(5, "1g.5gb", 6), stale=[5]), TEMPLATES).healthy


def test_pending_mode_closes_its_card_only() -> None:
    waiting = divided(1, is_enabled=True, is_pending=False, waits_for="process 4711 is on it")
    first, second = offered_cards((divided(0), waiting), MIG)
    assert first.healthy
    assert (second.healthy, second.mode, second.slots) == (False, "mig", 7)
    assert "switched off" in second.unhealthy_reason
    assert "process 4711 is on it" in second.unhealthy_reason
    decoded = decode_register(encode_json([first, second]))
    assert [item.healthy for item in decoded] == [True, False]
    assert all(layout_of(item).profiles for item in decoded)


CLOSED = {
    "not-asked-for": (divided(), NvidiaSettings(), "operatingmode is not mig"),
    "off": (divided(is_enabled=False), MIG, "MIG mode is off"),
    "pending": (
        divided(is_enabled=False, is_pending=True),
        MIG,
        "switched on and waits for a reset",
    ),
    "simulated": (card(slots=1), MIG, "has no MIG"),
    "no-mig": (card(slots=1, detail=DriverCard(minor=0)), MIG, "has no MIG"),
    "unreadable": (divided(problem="no permission"), MIG, "no permission"),
    "no-rights": (divided(restriction="no rights for MIG"), MIG, "no rights for MIG"),
    "hands-off": (divided(waits_for="MIG Manager is at work"), MIG, "MIG Manager is at work"),
    "no-profiles": (divided(profiles=()), MIG, "lists no MIG profiles"),
    "own-fault": (divided(healthy=False, unhealthy_reason="XID 48"), MIG, "XID 48"),
    "own-fault-not-asked-for": (
        divided(healthy=False, unhealthy_reason="XID 48"),
        NvidiaSettings(),
        "XID 48",
    ),
}


@pytest.mark.parametrize(("physical", "settings", "words"), CLOSED.values(), ids=CLOSED)
def test_card_that_cannot_serve_says_why(
    physical: Device, settings: NvidiaSettings, words: str
) -> None:
    found = offered(physical, settings)
    assert (found.healthy, found.mode) == (False, "mig")
    assert words in found.unhealthy_reason


def test_profile_that_is_not_allowed_is_none_of_the_cards() -> None:
    """Whoever edits a reservation gets no other kind of instance than the node offers."""
    found = offered(divided(), allowing("1g.5gb"))
    smallest = MigInstance(profile="1g.5gb", placement=MigPlacement(start=6, size=1))
    whole = MigInstance(profile="7g.40gb", placement=MigPlacement(start=0, size=8))
    assert is_instance(found, 4864, smallest)
    assert not is_instance(found, 40192, whole)


def test_place_that_is_withdrawn_under_a_reservation_does_not_close_the_card() -> None:
    """A stale instance costs its own place only: the pod that waits for it still counts."""
    stale = instance(9, "1g.5gb", 6)
    found = DeviceUsage(device=offered(divided(0, stale, stale=[9])))
    place = MigInstance(profile="1g.5gb", placement=MigPlacement(start=6, size=1))
    held = Charge(
        uuid=found.device.uuid, vendor=NVIDIA, slots=1, memory_mib=4864, cores=15, parts=(place,)
    )
    assert charged(found, held).contradiction == ""
    assert is_instance(found.device, 4864, place), "who makes it refuses it, and says by whom"
    assert not is_instance(found.device, 4863, place)
    nowhere = replace(held, parts=(MigInstance(profile="x", placement=MigPlacement(start=7)),))
    assert "don't have" in charged(found, nowhere).contradiction
