"""A vendor that the product does not know is filtered, bound, admitted and given up."""

from __future__ import annotations

from typing import Final

import pytest

from hami_node.config.settings import make_settings
from hami_node.extender.state.handshakes import HandshakeKeeper
from hami_node.extender.webhook import webhook_rules_of
from hami_node.model import Device, Uuid
from hami_node.simulate.store import Json
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire import names
from tests.acme import names as acme_names
from tests.acme.cards import ACME, AcmeDetail
from tests.acme.codec import encode_cards
from tests.acme.settings import ACME_SETTINGS
from tests.acme.spec import ACME_SPEC
from tests.unit.extender.desk import SCHEDULER, Desk
from tests.unit.extender.reviews import GPU, admitted, container, pod, refusal

EVERY: Final = (*VENDORS, ACME_SPEC)
ASK: Final = {acme_names.RESOURCE_CARD: "1", acme_names.RESOURCE_MEMORY: "6000"}
WEBHOOK: Final = webhook_rules_of(make_settings({}, (*SETTINGS_BLOCKS, ACME_SETTINGS)), EVERY)


@pytest.fixture
def desk() -> Desk:
    """n1 has an NVIDIA card, a1 an ACME card of firmware 7; `a` wants 6,000 MiB of an ACME card."""
    desk = Desk("n1", vendors=EVERY)
    found = Device(
        uuid=Uuid("ACME-0"),
        index=0,
        vendor=ACME,
        model="ACME 1",
        slots=4,
        memory_mib=10_000,
        detail=AcmeDetail(firmware=7),
    )
    body = {
        "metadata": {
            "name": "a1",
            "annotations": {acme_names.NODE_REGISTER: encode_cards([found])},
        },
        "status": {"allocatable": {acme_names.RESOURCE_CARD: "4"}},
    }
    desk.kube.store.create("nodes", "", body)
    add_pod(desk, "a")
    return desk


def add_pod(desk: Desk, name: str, **annotations: str) -> None:
    body: Json = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": annotations,
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "containers": [{"name": "main", "resources": {"limits": ASK}}],
        },
        "status": {"phase": "Pending"},
    }
    desk.kube.store.create("pods", "default", body)
    desk.sync()


def test_card_is_reserved_in_the_vendors_own_annotations(desk: Desk) -> None:
    assert desk.choose("a") == "a1"
    notes = desk.notes_of("a")
    assert notes[acme_names.POD_ALLOCATED] == "ACME-0,ACME,6000,0:;"
    assert notes[acme_names.POD_TO_ALLOCATE] == notes[acme_names.POD_ALLOCATED]
    assert notes[names.POD_TIME] == str(int(desk.clock.now()))
    desk.sync()
    assert desk.held() == {"a": 6000}


def test_card_that_is_full_takes_nobody_and_is_said_to_be_full(desk: Desk) -> None:
    desk.choose("a")
    add_pod(desk, "b")
    assert "CardInsufficientMemory" in desk.ask("b", "a1")["FailedNodes"]["a1"]
    assert "nearest: 4000 MiB free on ACME-0 of a1" in desk.notes[-1].message


def test_wish_that_only_the_vendor_knows_is_kept(desk: Desk) -> None:
    add_pod(desk, "new", **{acme_names.MIN_FIRMWARE: "8"})
    assert "CardFirmwareTooOld" in desk.ask("new", "a1")["FailedAndUnresolvableNodes"]["a1"]
    add_pod(desk, "old", **{acme_names.MIN_FIRMWARE: "7"})
    assert desk.choose("old", "a1") == "a1"


def test_node_whose_daemon_serves_slots_is_locked(desk: Desk) -> None:
    desk.choose("a")
    assert desk.bind("a", "a1") == ""
    assert desk.lock("a1").endswith(",default,a")


def test_daemon_that_falls_silent_is_given_up_for_its_vendor_alone(desk: Desk) -> None:
    keeper = HandshakeKeeper(desk.state, desk.kube, desk.clock)
    desk.kube.merge_patch_node("a1", {acme_names.NODE_HANDSHAKE: "Reported_2026-11-21T00:00:00Z"})
    desk.sync()
    keeper.look()
    assert desk.state.sizes()[0] == 2
    desk.clock.advance(100.0)
    keeper.look()
    assert desk.state.sizes()[0] == 1
    assert "has not reported for" in desk.state.why_not_offered("a1")


def test_webhook_sends_the_pod_to_our_scheduler() -> None:
    changed = admitted(pod(container(ASK)), WEBHOOK)
    assert changed["spec"]["schedulerName"] == SCHEDULER
    assert changed["spec"]["containers"] == pod(container(ASK))["spec"]["containers"]


@pytest.mark.parametrize(
    ("obj", "code", "text"),
    [
        pytest.param(
            pod(container({acme_names.RESOURCE_CARD: "many"})),
            400,
            "acme.example/card is many: not a Kubernetes quantity",
            id="wrong value",
        ),
        pytest.param(
            pod(container({GPU: "1", acme_names.RESOURCE_CARD: "-1"})),
            400,
            "acme.example/card is -1: can't be negative",
            id="wrong value beside another vendor's",
        ),
        pytest.param(
            pod(container(), annotations={acme_names.POD_ALLOCATED: "x"}),
            403,
            f"annotation {acme_names.POD_ALLOCATED} is written by the scheduler",
            id="forged reservation",
        ),
    ],
)
def test_webhook_refuses(obj: Json, code: int, text: str) -> None:
    found, message = refusal(obj, WEBHOOK)
    assert found == code
    assert text in message
