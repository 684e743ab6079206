"""One daemon serves two vendors' cards: one socket, inventory and scanner for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hami_node.model import Container
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.registry import VENDORS
from hami_node.wire import names
from tests.acme import names as acme_names
from tests.acme.codec import decode_cards, encode_cards
from tests.acme.spec import ACME_SPEC
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE
from tests.fakes.two_vendors import CARD, CARD_TEXT, GPU, GPU_TEXT, acme_card, body_of
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig

BOTH = (GPU, CARD)


class TwoVendorsRig(Rig):
    """A node with four NVIDIA and two ACME cards."""

    def __init__(self) -> None:
        super().__init__(vendors=(*VENDORS, ACME_SPEC))
        self.show_acme_cards(2)

    def show_acme_cards(self, count: int) -> None:
        """So many ACME cards are there from now on."""
        new = self.root / "acme.new"
        new.write_text(encode_cards(acme_card(index) for index in range(count)))
        new.replace(self.root / "acme.json")

    def start_both(self) -> None:
        """Start the daemon and wait until both resources are there."""
        self.start(acme_cards_file=str(self.root / "acme.json"))
        self.wait_acme(8)
        eventually(lambda: self.acme_register_text, LIMIT_S)

    def wait_acme(self, slots: int) -> None:
        """Wait until kubelet counts so many ACME slots."""
        eventually(lambda: self.kubelet.allocatable(CARD) == slots and self.is_steady(), LIMIT_S)

    @property
    def acme_register_text(self) -> str:
        return self.notes.get(acme_names.NODE_REGISTER, "")

    def bind_both(self, name: str, body: Mapping[str, object]) -> None:
        """A pod that is reserved, holds the lock and is bound."""
        self.api.create("pods", body)
        self.lock(name)
        self.wait_seen(name)
        self.wait_node_seen()

    def serve(self, name: str, *resources: str) -> Admission:
        """kubelet's calls for these resources."""
        answer = self.kubelet.admit(self.pod(name), *resources)
        self.wait_followed_up(name)
        return answer

    def waits_for_card(self, name: str) -> str:
        """What is left of the pod's reservation of ACME cards, without separators."""
        return self.pod(name).annotations[acme_names.POD_TO_ALLOCATE].replace(";", "")


@pytest.fixture
def two() -> Iterator[TwoVendorsRig]:
    rig = TwoVendorsRig()
    try:
        rig.start_both()
        yield rig
    finally:
        rig.close()


def body_for(name: str, resource: str, grants: str = "") -> dict[str, Any]:
    """A pod that asks for this resource alone; with good grants unless others are given."""
    if resource == GPU:
        return body_of(name, gpu=grants or GPU_TEXT, card="")
    return body_of(name, card=grants or CARD_TEXT, gpu="")


def test_card_that_goes_changes_its_own_resource_alone(two: TwoVendorsRig) -> None:
    two.show_acme_cards(1)
    two.wait_acme(4)
    two.wait_registered()
    eventually(lambda: len(decode_cards(two.acme_register_text)) == 1, LIMIT_S)
    assert len(two.kubelet.registrations) == 2


@pytest.mark.parametrize("order", [BOTH, BOTH[::-1]], ids=["nvidia-first", "acme-first"])
def test_success_is_written_and_the_lock_freed_with_the_last_resource(
    two: TwoVendorsRig, order: tuple[str, str]
) -> None:
    two.bind_both("p", body_of("p"))
    first, second = order
    assert two.serve("p", first).is_admitted
    assert two.bind_phase("p") == names.PHASE_ALLOCATING
    assert two.lock_text
    assert bool(two.waits("p")) == (first == CARD)
    assert bool(two.waits_for_card("p")) == (first == GPU)
    assert two.serve("p", second).is_admitted
    assert two.bind_phase("p") == names.PHASE_SUCCESS
    assert two.lock_text == ""
    assert two.waits("p") == two.waits_for_card("p") == ""


@pytest.mark.parametrize(
    ("resource", "grants"),
    [
        (GPU, "ACME-0,NVIDIA,1000,0:;"),
        (GPU, "ACME-0,ACME,1000,0:;"),
        (CARD, f"{uuid(0)},ACME,500,0:;"),
        (CARD, f"{uuid(0)},NVIDIA,500,0:;"),
    ],
    ids=["acmes-card", "acmes-grant", "nvidias-card", "nvidias-grant"],
)
def test_grant_of_the_others_card_is_refused(
    two: TwoVendorsRig, resource: str, grants: str
) -> None:
    two.bind_both("p", body_for("p", resource, grants))
    answer = two.serve("p", resource)
    assert "the reserved card is of another vendor" in answer.refusal
    assert two.bind_phase("p") == names.PHASE_FAILED
    assert two.lock_text == ""


@pytest.mark.parametrize(("asked", "called"), [BOTH, BOTH[::-1]], ids=["acme", "nvidia"])
def test_call_for_one_resource_is_never_answered_with_the_others_cards(
    two: TwoVendorsRig, asked: str, called: str
) -> None:
    """kubelet asks for a card that the pod's limits do not name."""
    two.bind_both("p", body_for("p", asked))
    wrong = Container(name="main", limits={called: "1"})
    answer = two.kubelet.admit(replace(two.pod("p"), containers=(wrong,)), called)
    assert f"no pod on node {NODE} waits for 1 {called}" in answer.refusal
    assert two.bind_phase("p") == names.PHASE_ALLOCATING


def test_refusal_of_one_resource_fails_the_pod_and_frees_the_lock(two: TwoVendorsRig) -> None:
    two.bind_both("p", body_of("p", card="ACME-7,ACME,500,0:;"))
    answer = two.serve("p", *BOTH)
    assert "the reserved card is not on this node" in answer.refusal
    assert two.bind_phase("p") == names.PHASE_FAILED
    assert two.lock_text == ""


@pytest.fixture
def configured() -> Iterator[TwoVendorsRig]:
    """A node whose configuration file names ACME's slots."""
    rig = TwoVendorsRig()
    rig.config_path.write_text("acme: {slots: 4}\n")
    try:
        rig.start_both()
        yield rig
    finally:
        rig.close()


def test_changed_setting_of_one_vendor_changes_its_own_resource_alone(
    configured: TwoVendorsRig,
) -> None:
    configured.config_path.write_text("acme: {slots: 2}\n")
    configured.wait_acme(4)
    configured.wait_registered()
    assert len(configured.kubelet.registrations) == 2


def test_setting_that_kubelet_could_not_bear_for_one_resource_changes_neither(
    configured: TwoVendorsRig,
) -> None:
    text = "acme: {slots: 100000}\nnvidia: {deviceSplitCount: 3}\n"
    configured.config_path.write_text(text)
    eventually(lambda: configured.metric("config_reload_failures_total"), LIMIT_S)
    configured.wait_registered()
    configured.wait_acme(8)
