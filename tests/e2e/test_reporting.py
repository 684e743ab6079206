"""(a) The node offers its cards to kubelet and to the scheduler, and keeps saying so."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from hami_node.model import Device
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from hami_node.wire.times import parse_time
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.audit import Audit
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import USER, Daemon
from tests.e2e.kubelet import healthy_slices
from tests.e2e.scheduler import NODE_PATH
from tests.e2e.waiting import eventually

_FOREIGN = "example.com/mine"
_REPORTED = re.compile(r"^Reported \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def _facts(device: Device) -> tuple[object, ...]:
    return (device.index, device.uuid, device.slots, device.memory_mib, device.cores)


def _expected() -> list[tuple[object, ...]]:
    return [(i, u, cards.SPLIT, cards.MEMORY_MIB, 100) for i, u in enumerate(cards.UUIDS)]


@pytest.fixture
def _foreign(api: Api) -> Iterator[None]:
    """An annotation of somebody else on the node."""
    api.patch(NODE_PATH, {"metadata": {"annotations": {_FOREIGN: "stays"}}})
    yield
    api.patch(NODE_PATH, {"metadata": {"annotations": {_FOREIGN: None}}})


@pytest.mark.usefixtures("_foreign")
def test_scheduler_is_answered_by_one_write_and_nothing_else_is_written(
    daemon: Daemon, api: Api, cluster: Cluster
) -> None:
    """At the next report; and of the annotations of others none is touched.

    The first test with the node's annotations: unanswered for a minute, the daemon tries another
    form of its devices.
    """
    eventually("no report is due", lambda: 8 < _age_s(daemon) < 25)
    audit = Audit(cluster.root / "log/audit.jsonl")
    asked = time.strftime("Requesting_%Y-%m-%d %H:%M:%S", time.gmtime())
    api.patch(NODE_PATH, {"metadata": {"annotations": {nvidia_names.NODE_HANDSHAKE: asked}}})
    before = daemon.annotations()
    assert before[_FOREIGN] == "stays"
    eventually(
        "Requesting_ is answered",
        lambda: _REPORTED.match(daemon.annotations()[nvidia_names.NODE_HANDSHAKE]),
    )
    after = daemon.annotations()

    def writes() -> list[tuple[str, str, int]]:
        made = audit.requests(USER)
        return [(w.verb, w.what, w.code) for w in made if w.verb not in ("get", "list")]

    eventually("the write is in the log, which is late", writes)
    assert writes() == [("patch", "nodes/e2e-node", 200)]
    ours = {nvidia_names.NODE_HANDSHAKE}
    assert {k: v for k, v in after.items() if k not in ours} == {
        k: v for k, v in before.items() if k not in ours
    }


def _age_s(daemon: Daemon) -> float:
    """So long ago the daemon made its last report."""
    said = parse_time(daemon.annotations()[nvidia_names.NODE_HANDSHAKE].removeprefix("Reported "))
    assert said is not None
    return time.time() - said


def test_node_offers_ten_slices_of_every_card(daemon: Daemon) -> None:
    daemon.wait_offered()
    assert healthy_slices() == dict.fromkeys(cards.UUIDS, 10)


def test_register_annotation_lists_every_card_as_json(daemon: Daemon) -> None:
    def probe() -> bool:
        text = daemon.annotations()[nvidia_names.NODE_REGISTER]
        devices = decode_register(text)
        assert text.startswith("[{")
        assert [_facts(d) for d in devices] == _expected()
        assert {(d.model, d.mode, d.healthy) for d in devices} == {(cards.MODEL, "hami-core", True)}
        return True

    eventually("every card is reported", probe)


def test_node_says_that_allocate_needs_no_lock(daemon: Daemon) -> None:
    assert daemon.annotations()[names.NODE_IDENTITY] == names.IDENTITY_POD_RESOURCES


def test_scheduler_of_generation_2_4_reads_its_own_form(daemon: Daemon, api: Api) -> None:
    dotted = time.strftime("Requesting_%Y.%m.%d %H:%M:%S", time.gmtime())
    api.patch(NODE_PATH, {"metadata": {"annotations": {nvidia_names.NODE_HANDSHAKE: dotted}}})
    eventually(
        "the register annotation has seven fields a card",
        lambda: daemon.annotations()[nvidia_names.NODE_REGISTER].startswith(
            f"{cards.uuid_of(0)},10,{cards.MEMORY_MIB},100,NVIDIA-{cards.MODEL},0,true:"
        ),
    )
    dashed = time.strftime("Requesting_%Y-%m-%d %H:%M:%S", time.gmtime())
    api.patch(NODE_PATH, {"metadata": {"annotations": {nvidia_names.NODE_HANDSHAKE: dashed}}})
    eventually(
        "the register annotation is JSON again",
        lambda: daemon.annotations()[nvidia_names.NODE_REGISTER].startswith("[{"),
    )


def test_deleted_register_annotation_comes_back(daemon: Daemon, api: Api) -> None:
    before = daemon.annotations()[nvidia_names.NODE_REGISTER]
    api.patch(NODE_PATH, {"metadata": {"annotations": {nvidia_names.NODE_REGISTER: None}}})
    eventually(
        "the register annotation is back",
        lambda: daemon.annotations().get(nvidia_names.NODE_REGISTER) == before,
    )
