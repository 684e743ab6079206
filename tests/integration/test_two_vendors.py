"""One daemon serves two vendors' cards: one socket, inventory and scanner for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from hami_node.model import Container
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.wire import names
from tests.acme import names as acme_names
from tests.acme.codec import decode_cards, encode_cards
from tests.acme.spec import ACME_SPEC
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box
from tests.fakes.two_vendors import CARD, CARD_TEXT, GPU, GPU_TEXT, INIT, acme_card, body_of
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

    def wait_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until the series has that value."""
        eventually(lambda: self.metric(name, **labels) == value, LIMIT_S)

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


def env_of(answer: Admission, container: str = "main") -> dict[str, str]:
    return dict(answer.responses[container].envs)


def test_each_resource_has_its_own_socket_inventory_and_scanner(two: TwoVendorsRig) -> None:
    daemon = two.daemon
    assert daemon is not None
    sockets = {endpoint.rpartition("-")[0] for _, endpoint in two.kubelet.registrations}
    assert sockets == {"hami-nvidia-com-gpu", "hami-acme-example-card"}
    found = {
        resource.name: [card.uuid for card in resource.inventory.cards]
        for resource in daemon.resources
    }
    assert found == {GPU: [uuid(index) for index in range(4)], CARD: ["ACME-0", "ACME-1"]}
    running = {thread.name for thread in daemon.threads.running if thread.is_alive()}
    wanted = {f"{part} {resource}" for part in ("scanner", "lifecycle") for resource in BOTH}
    assert wanted <= running
    assert [card.uuid for card in decode_cards(two.acme_register_text)] == ["ACME-0", "ACME-1"]
    for resource in BOTH:
        two.wait_metric("registered", 1.0, resource=resource)
        assert two.metric("registrations_total", resource=resource) == 1.0


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


@pytest.mark.parametrize("order", [BOTH, BOTH[::-1]], ids=["nvidia-first", "acme-first"])
def test_containers_that_ask_for_both_are_served_on_both(
    two: TwoVendorsRig, order: tuple[str, str]
) -> None:
    boxes = (Box(name="i", memory_mib=1000, kind=INIT), Box(name="a", memory_mib=1000))
    gpu = f"{uuid(1)},NVIDIA,1000,0:;{uuid(2)},NVIDIA,1000,0:;"
    card = "ACME-1,ACME,500,0:;ACME-0,ACME,500,0:;"
    two.bind_both("p", body_of("p", boxes=boxes, gpu=gpu, card=card))
    answer = two.serve("p", *order)
    assert answer.refusal == ""
    shown = {
        name: (
            env_of(answer, name)[nvidia_names.ENV_VISIBLE_DEVICES],
            env_of(answer, name)[acme_names.ENV_CARDS],
        )
        for name in ("i", "a")
    }
    assert shown == {"i": (uuid(1), "ACME-1"), "a": (uuid(2), "ACME-0")}
    assert two.bind_phase("p") == names.PHASE_SUCCESS
    assert two.lock_text == ""


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


def test_cards_of_both_are_counted_together(two: TwoVendorsRig) -> None:
    two.bind_both("p", body_of("p"))
    assert two.serve("p", *BOTH).is_admitted
    for card, mib in ((uuid(0), 1000), ("ACME-0", 500)):
        two.wait_metric("card_memory_granted_bytes", mib * 2**20, uuid=card)
    two.bind_both("q", body_of("q", gpu="", card="ACME-0,ACME,500,0:;"))
    assert two.serve("q", CARD).is_admitted


def test_success_waits_for_a_resource_whose_reservation_is_unclear(two: TwoVendorsRig) -> None:
    two.bind_both("p", body_of("p", card="rubbish,,:"))
    assert two.serve("p", GPU).is_admitted
    assert two.bind_phase("p") == names.PHASE_ALLOCATING
    assert two.lock_text
    assert "can't be read" in two.serve("p", CARD).refusal
    assert two.bind_phase("p") == names.PHASE_FAILED
    assert two.lock_text == ""
