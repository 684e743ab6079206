from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from hami_node.model import Device, Node, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import HandshakeMode, ListedProfiles, RegisterFormat
from hami_node.vendors.nvidia.codec import (
    decode_register,
    encode_csv7,
    encode_csv9,
    encode_json,
)
from hami_node.vendors.nvidia.node.publication import NvidiaPublication
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.publication import CardSources
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import TEMPLATES, divided
from tests.reliability import shows

CARDS = (card(0), card(1))
NOW = 1_800_000_000.0
DOTTED = "Requesting_2024.01.02 03:04:05"
DASHED = "Requesting_2024-01-02 03:04:05"
REPORTED = "Reported 2024-01-02 03:04:05.000000 +0000 UTC"


@dataclass
class PublicationInput:
    """What a publication looks at."""

    cards: tuple[Device, ...] = CARDS
    scores: Mapping[Uuid, Mapping[Uuid, int]] = field(default_factory=dict)
    error: str = ""
    form: RegisterFormat = RegisterFormat.AUTO
    mode: HandshakeMode = HandshakeMode.ALWAYS
    unanswered: list[bool] = field(default_factory=list)
    settings: NvidiaSettings = NvidiaSettings()

    def publication(self) -> NvidiaPublication:
        sources = CardSources(
            cards=lambda: self.cards,
            pair_scores=lambda: self.scores,
            backend_error=lambda: self.error,
            on_unanswered=self.unanswered.append,
        )
        settings = replace(self.settings, register_format=self.form, handshake=self.mode)
        return NvidiaPublication(sources, lambda: settings)


def node(**notes: str) -> Node:
    keys = {"handshake": nvidia_names.NODE_HANDSHAKE, "register": nvidia_names.NODE_REGISTER}
    return Node(name="n1", annotations={keys[key]: text for key, text in notes.items()})


def register_of(made: Mapping[str, str | None]) -> str:
    return made[nvidia_names.NODE_REGISTER] or ""


FORMS = {
    "json-set": (RegisterFormat.JSON, {"handshake": DOTTED}, encode_json(CARDS)),
    "csv9-set": (RegisterFormat.CSV9, {}, encode_csv9(CARDS)),
    "csv7-set": (RegisterFormat.CSV7, {"handshake": DASHED}, encode_csv7(CARDS)),
    "auto": (RegisterFormat.AUTO, {}, encode_json(CARDS)),
    "auto-dashed": (RegisterFormat.AUTO, {"handshake": DASHED}, encode_json(CARDS)),
    "auto-dotted": (RegisterFormat.AUTO, {"handshake": DOTTED}, encode_csv7(CARDS)),
    "auto-dotted-deleted": (
        RegisterFormat.AUTO,
        {"handshake": "Deleted_2024.01.02 03:04:05"},
        encode_csv7(CARDS),
    ),
    "auto-rubbish": (RegisterFormat.AUTO, {"handshake": "rubbish"}, encode_json(CARDS)),
    "auto-after-a-restart": (
        RegisterFormat.AUTO,
        {"handshake": REPORTED, "register": encode_csv7(CARDS)},
        encode_csv7(CARDS),
    ),
    "auto-csv9-is-no-mark": (
        RegisterFormat.AUTO,
        {"handshake": REPORTED, "register": encode_csv9(CARDS)},
        encode_json(CARDS),
    ),
    "auto-new-mark-wins": (
        RegisterFormat.AUTO,
        {"handshake": DASHED, "register": encode_csv7(CARDS)},
        encode_json(CARDS),
    ),
}


@pytest.mark.parametrize(("form", "notes", "wanted"), FORMS.values(), ids=FORMS)
def test_register_form_follows_the_setting_or_the_marks(
    form: RegisterFormat, notes: dict[str, str], wanted: str
) -> None:
    made = PublicationInput(form=form).publication().desired(node(**notes), NOW)
    assert register_of(made) == wanted


@pytest.mark.parametrize("encode", [encode_json, encode_csv9, encode_csv7])
def test_register_driver_gone_before_any_card_was_seen_leaves_them_unhealthy(
    encode: object,
) -> None:
    standing = encode(CARDS)  # type: ignore[operator]  # one of three functions
    made = (
        PublicationInput(cards=(), error="no driver")
        .publication()
        .desired(node(register=standing), NOW)
    )
    again = decode_register(register_of(made))
    assert [(device.uuid, device.healthy) for device in again] == [
        (uuid(0), False),
        (uuid(1), False),
    ]
    assert {device.model.removeprefix("NVIDIA-") for device in again} == {CARDS[0].model}


@pytest.mark.parametrize(
    ("mode", "standing", "is_written"),
    [
        (HandshakeMode.ALWAYS, {}, True),
        (HandshakeMode.ALWAYS, {"handshake": REPORTED}, True),
        (HandshakeMode.ON_REQUEST, {}, False),
        (HandshakeMode.ON_REQUEST, {"handshake": REPORTED}, False),
        (HandshakeMode.ON_REQUEST, {"handshake": DASHED}, True),
        (HandshakeMode.ON_REQUEST, {"handshake": "Deleted_2024-01-02 03:04:05"}, True),
        (HandshakeMode.ON_REQUEST, {"handshake": "rubbish"}, False),
        (HandshakeMode.OFF, {"handshake": DASHED}, False),
    ],
)
def test_heartbeat_is_written_as_the_mode_says(
    mode: HandshakeMode, standing: dict[str, str], is_written: bool
) -> None:
    made = PublicationInput(mode=mode).publication().heartbeat(node(**standing), NOW)
    assert (nvidia_names.NODE_HANDSHAKE in made) == is_written
    if is_written:
        text = made[nvidia_names.NODE_HANDSHAKE] or ""
        assert text.startswith("Reported 2027-01-15 08:00:00")


def test_heartbeat_without_cards_is_silent() -> None:
    assert PublicationInput(cards=()).publication().heartbeat(node(), NOW) == {}


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        ([(0, REPORTED), (59, REPORTED)], []),
        ([(0, REPORTED), (61, REPORTED)], [True]),
        ([(0, REPORTED), (61, REPORTED), (122, REPORTED)], [True]),
        ([(0, REPORTED), (30, DASHED), (91, REPORTED), (200, REPORTED)], [False]),
        ([(0, REPORTED), (61, REPORTED), (70, DASHED)], [True, False]),
    ],
    ids=["too-early", "too-long", "said-once", "answered-before", "answered-late"],
)
def test_handshake_without_an_answer_is_reported_once_after_a_minute(
    words: list[tuple[int, str]], reported: list[bool]
) -> None:
    source = PublicationInput()
    publication = source.publication()
    for after_s, word in words:
        publication.desired(node(handshake=word), NOW + after_s)
    assert source.unanswered == reported


@pytest.mark.parametrize(
    ("form", "encode"),
    [(RegisterFormat.JSON, encode_json), (RegisterFormat.CSV9, encode_csv9)],
)
def test_shutdown_leaves_every_card_unhealthy_in_the_same_form(
    form: RegisterFormat, encode: object
) -> None:
    standing = encode(CARDS)  # type: ignore[operator]  # one of two functions
    made = PublicationInput(form=form).publication().shutdown(node(register=standing))
    assert [device.healthy for device in decode_register(register_of(made))] == [False, False]
    again = PublicationInput(form=form).publication().shutdown(node(register=register_of(made)))
    assert again == made


@shows(
    "D12",
    fault="NVIDIA's DRA driver gives out the cards of a node that we serve, too",
    happens="a warning in the log, once, and a line of inspect that names the label",
    lost="cards may be given out twice, until one of the two leaves the node",
)
def test_second_allocator_on_the_node_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    publication = PublicationInput().publication()
    labelled = replace(node(), labels={nvidia_names.LABEL_DRA_DRIVER: "true"})
    for seen in (node(), labelled, labelled, node(), labelled):
        publication.desired(seen, NOW)
    assert [record.message for record in caplog.records] == ["second_allocator"] * 2


def published(form: RegisterFormat, settings: NvidiaSettings) -> tuple[Device, ...]:
    """Two cards in MIG mode and how they are registered."""
    settings = replace(settings, register_format=form)
    cards = offered_cards((divided(0), divided(1)), settings)
    made = PublicationInput(cards=cards, form=form, settings=settings).publication()
    return decode_register(register_of(made.desired(node(), NOW)))


def test_mig_card_is_unhealthy_in_the_form_that_has_no_mode() -> None:
    """HAMi 2.4 would share it by limits, which nobody enforces there."""
    assert [item.healthy for item in published(RegisterFormat.CSV7, TEMPLATES)] == [False, False]


def test_mig_names_that_the_card_lacks_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    allowed = (ListedProfiles(models=("A100",), profiles=("1g.5gb", "7g.41gb")),)
    settings = replace(TEMPLATES, mig_profile_allowlist=allowed)
    cards = offered_cards((divided(0), divided(1)), settings)
    publication = PublicationInput(cards=cards, settings=settings).publication()
    for _ in range(3):
        publication.desired(node(), NOW)
    said = [record for record in caplog.records if record.getMessage().startswith("mig_")]
    assert [record.getMessage() for record in said] == [
        "mig_profiles_unknown",
        "mig_geometries_too_large",
    ]
