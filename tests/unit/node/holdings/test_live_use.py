from __future__ import annotations

import pytest

from hami_node.model import ContainerKind, Pod
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Source
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.handshake import encode_read_by, encode_requesting
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import uuid
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import a_ledger, an_entry, grants_text
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, Part, layout, pod_body, reservation
from tests.unit.node.holdings.uses import GPU, a_pod, listed, live_use, used

INIT = ContainerKind.INIT
ASKED = encode_requesting(1_000_000.0)
MARKS = (
    ("", "Reported"),
    (names.READ_BY_EXTENDER, "Reported"),
    (encode_read_by(ASKED, counts_inits=True), ASKED),
    (encode_read_by(ASKED, counts_inits=True), "Reported"),
    (encode_read_by(ASKED, counts_inits=True), encode_requesting(2_000_000.0)),
)
"""An extender's mark and the handshake: HAMi's scheduler, then older and newer ones of ours, and
another scheduler after those."""


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        (a_pod(), [1000, 0]),
        (a_pod(is_served=False), [0, 0]),
        (a_pod(phase="Running"), [1000, 0]),
        (a_pod(is_served=False, phase="Running"), [1000, 0]),
        (a_pod(phase="Succeeded"), [0, 0]),
        (a_pod(phase="Failed"), [0, 0]),
        (decode_pod(pod_body("p", [Box()])), [0, 0]),
        (
            decode_pod(pod_body("p", [Box(cards=0)], reservation(f"{uuid(0)},NVIDIA,1000,0:;"))),
            [0, 0],
        ),
    ],
    ids=[
        "served",
        "waits",
        "runs",
        "runs-its-slot-never-emptied",
        "ended",
        "refused",
        "no-reservation",
        "asks-for-none",
    ],
)
def test_live_use_only_served_containers_of_pods_that_live_count(
    pod: Pod, wanted: list[int]
) -> None:
    assert used(live_use(FakeCluster(pod))) == wanted


def test_live_use_pod_left_out_does_not_count() -> None:
    live = live_use(FakeCluster(a_pod("a"), a_pod("b", 500)))
    assert used(live) == [1500, 0]
    assert used(live, leave_out="uid-a") == [500, 0]


def test_live_use_init_containers_count_as_the_maximum() -> None:
    boxes = [Box(name="i", memory_mib=4000, kind=INIT), Box(name="m", memory_mib=3000)]
    reserved = {
        "i": [Part(uuid=uuid(0), memory_mib=4000)],
        "m": [Part(uuid=uuid(0), memory_mib=3000)],
    }
    text = layout(boxes, reserved)
    pod = decode_pod(pod_body("p", boxes, reservation(text, to_allocate=";;")))
    assert used(live_use(FakeCluster(pod))) == [4000, 0]


def test_live_use_init_container_that_has_ended_counts_where_the_scheduler_says_so() -> None:
    boxes = [Box(name="i", memory_mib=4000, kind=INIT), Box(name="m", memory_mib=3000)]
    reserved = {box.name: [Part(uuid=uuid(0), memory_mib=box.memory_mib or 0)] for box in boxes}
    body = pod_body("p", boxes, reservation(layout(boxes, reserved), to_allocate=";;"))
    ended = {"name": "i", "state": {"terminated": {"exitCode": 0}}}
    body["status"] = {"phase": "Running", "initContainerStatuses": [ended]}
    cluster = FakeCluster(decode_pod(body))
    live = live_use(cluster)
    found = []
    for mark, handshake in MARKS:
        cluster.set_node({names.NODE_READ_BY: mark, nvidia_names.NODE_HANDSHAKE: handshake})
        found.append(used(live)[0])
    assert found == [3000, 3000, 4000, 4000, 3000]
    cluster.shown_node = None
    assert used(live)[0] == 3000


def test_live_use_pod_deleted_by_force_holds_until_kubelet_lists_it_no_more() -> None:
    cluster = FakeCluster(a_pod(is_served=False, resource_version="5"))
    live = live_use(cluster)
    live.patched(a_pod(resource_version="7"))
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]
    cluster.show()
    assert used(live) == [1000, 0]
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0], "its containers still run"
    live.settle([])
    assert used(live) == [0, 0]


@pytest.mark.parametrize(
    ("found", "wanted"),
    [([], [0, 0]), ([listed("p", "x-1")], [1000, 0]), ([listed("p")], [0, 0]), (None, [1000, 0])],
    ids=["its containers ended", "its containers run", "a namesake waits", "no list"],
)
def test_live_use_pod_that_vanished_since_the_last_look_is_as_kubelet_lists_it(
    found: list[HeldContainer] | None, wanted: list[int]
) -> None:
    cluster = FakeCluster(a_pod())
    live = live_use(cluster)
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]
    cluster.show()
    live.settle(found)
    assert used(live) == wanted


def test_live_use_card_that_is_gone_disturbs_nobody() -> None:
    assert used(live_use(FakeCluster(a_pod("a", index=7), a_pod("b")))) == [1000, 0]


def test_live_use_pod_that_ended_by_the_api_server_holds_nothing_while_the_watch_lags() -> None:
    cluster = FakeCluster(a_pod(phase="Running"))
    live = live_use(cluster)
    live.settle([listed("p", "x-1")])
    live.settle([])
    assert used(live) == [1000, 0]
    (holder,) = live.unlisted()
    assert holder.pod_key == "default/p"
    assert live.ended_as(holder, None)
    assert used(live) == [0, 0]
    assert live.unlisted() == ()


# -- the ledger ------------------------------------------------------------------------------------
def test_live_use_entry_counts_whatever_the_annotations_say() -> None:
    for notes in ({}, reservation(""), reservation(f"{uuid(1)},NVIDIA,7,0:;", to_allocate=";")):
        pod = decode_pod(pod_body("p", [Box(memory_mib=1000)], notes, phase="Running"))
        live = live_use(FakeCluster(pod), ledger=a_ledger(an_entry()))
        live.settle([listed("p", f"{uuid(0)}-0")])
        assert used(live) == [1000, 0], notes


@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
def test_live_use_container_of_which_kubelet_lists_ids_counts_though_its_slot_waits(
    phase: str,
) -> None:
    live = live_use(FakeCluster(a_pod(is_served=False, phase=phase)))
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]


def test_live_use_pod_that_waits_is_not_adopted() -> None:
    ledger = a_ledger()
    live = live_use(FakeCluster(a_pod(is_served=False)), ledger=ledger)
    for found in (None, [], [listed("p")]):
        live.settle(found)
        assert ledger.entries() == ()


def test_live_use_adopted_pod_is_on_record_with_its_ids() -> None:
    ledger = a_ledger()
    live = live_use(FakeCluster(a_pod()), FakeClock(), ledger)
    live.settle([listed("p", "x-2", "x-1")])
    (entry,) = ledger.entries()
    assert (entry.source, entry.container, entry.lender) == (Source.ADOPTED, "main", "main")
    assert entry.device_ids == ("x-1", "x-2")
    assert grants_text(entry) == f"{uuid(0)},NVIDIA,1000,0:;"
    assert entry.time_s > 0


@pytest.mark.parametrize(
    ("is_served", "phase", "wanted"),
    [(True, "Running", 1000), (False, "Running", 1000), (True, "Pending", 1000), (False, "", 0)],
)
def test_live_use_resource_was_renamed_what_runs_counts_before_kubelets_list_was_read(
    is_served: bool, phase: str, wanted: int
) -> None:
    text = f"{uuid(0)},NVIDIA,1000,0:;"
    notes = reservation(text, to_allocate=";" if is_served else None)
    body = pod_body("p", [Box(memory_mib=1000)], notes, phase=phase)
    limits = body["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/vgpu"] = limits.pop(GPU)
    live = live_use(FakeCluster(decode_pod(body)))
    live.settle(None)
    assert used(live) == [wanted, 0]


def test_live_use_resource_was_renamed_ids_under_the_former_name_count() -> None:
    text = f"{uuid(0)},NVIDIA,1000,0:;"
    body = pod_body("p", [Box(memory_mib=1000)], reservation(text))
    limits = body["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/vgpu"] = limits.pop(GPU)
    live = live_use(FakeCluster(decode_pod(body)))
    live.settle([listed("p", f"{uuid(0)}-1", resource="example.com/vgpu")])
    assert used(live) == [1000, 0]


@pytest.mark.parametrize(
    "shown",
    [[], [listed("p")], [listed("p", "0000:3b:00.2", resource="example.com/vgpu")]],
    ids=["not listed", "without devices", "another plugin's devices"],
)
def test_live_use_annotations_of_a_pod_without_our_devices_count_for_nothing(
    shown: list[HeldContainer],
) -> None:
    body = pod_body("p", [Box(cards=0)], reservation(f"{uuid(0)},NVIDIA,1000,0:;"), phase="Running")
    body["spec"]["containers"][0]["resources"]["limits"] = {"example.com/vgpu": "1"}
    ledger = a_ledger()
    live = live_use(FakeCluster(decode_pod(body)), ledger=ledger)
    live.settle(shown)
    assert used(live) == [0, 0]
    assert ledger.entries() == ()


def test_live_use_api_server_is_away_so_that_nothing_is_freed() -> None:
    cluster, ledger = FakeCluster(), a_ledger(an_entry())
    live = live_use(cluster, ledger=ledger)
    live.settle([])
    live.refresh()
    assert used(live) == [1000, 0], "the watch never showed the pod: nobody knows"
    assert [holder.pod_key for holder in live.missing()] == ["default/p"]


# -- namesakes -------------------------------------------------------------------------------------
NEW_TEXT = f"{uuid(1)},NVIDIA,500,0:;"


def namesake(*, is_served: bool = False) -> Pod:
    notes = reservation(NEW_TEXT, to_allocate=";" if is_served else None)
    body = pod_body("p", [Box(memory_mib=500)], notes, resource_version="9")
    body["metadata"]["uid"] = "uid-new"
    return decode_pod(body)


def test_live_use_namesake_neither_inherits_nor_pays() -> None:
    cluster, ledger = FakeCluster(a_pod()), a_ledger(an_entry(device_ids=("x-1",)))
    live = live_use(cluster, ledger=ledger)
    live.settle([listed("p", "x-1")])
    cluster.show(namesake())
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0], "the old containers still run, the new pod waits"
    live.settle([listed("p")])
    assert used(live) == [0, 0]


@pytest.mark.parametrize("ids", ["x-1", "x-2"])
def test_live_use_namesake_was_served_so_that_the_ids_are_its_own(ids: str) -> None:
    cluster, ledger = FakeCluster(a_pod()), a_ledger(an_entry(device_ids=("x-1",)))
    live = live_use(cluster, ledger=ledger)
    live.settle([listed("p", "x-1")])
    cluster.show(namesake())
    ledger.put(an_entry(pod_uid="uid-new", grants=NEW_TEXT, device_ids=(ids,)))
    live.settle([listed("p", ids)])
    assert used(live) == [0, 500]


def test_live_use_namesake_patched_while_the_watch_shows_the_old_pod() -> None:
    cluster, ledger = FakeCluster(a_pod(phase="Running")), a_ledger(an_entry(device_ids=("x-1",)))
    live = live_use(cluster, ledger=ledger)
    live.settle([listed("p", "x-1")])
    ledger.put(an_entry(pod_uid="uid-new", grants=NEW_TEXT, device_ids=("x-2",)))
    live.patched(namesake(is_served=True))
    live.settle([listed("p", "x-2")])
    assert used(live) == [0, 500]
    live.settle([listed("p", "x-2")])
    assert used(live) == [0, 500], "the watch still shows the old pod: it is not adopted again"
    assert [entry.pod_uid for entry in ledger.entries()] == ["uid-new"]
