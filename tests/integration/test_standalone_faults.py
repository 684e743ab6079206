"""Fixed shares when something fails: its own share or a refusal, and never more than a card has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.model import ContainerKind
from hami_node.record.ledger import Entry
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.pods import NODE, Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S
from tests.integration.share_rig import HALF, QUARTER, ShareRig, Shares, cards_of
from tests.reliability import shows

QUARTER_MIB = MEMORY_MIB // 4
INIT = ContainerKind.INIT


@pytest.fixture
def bare() -> Iterator[ShareRig]:
    """A node with one card whose daemon is not started yet."""
    rig = ShareRig(cards=1)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def rig(bare: ShareRig) -> ShareRig:
    """A card in quarters."""
    bare.start_shares()
    return bare


def entries(rig: ShareRig) -> dict[str, Entry]:
    """The ledger's entries by pod and container."""
    assert rig.daemon is not None
    assert rig.daemon.cluster is not None
    return {f"{it.pod}/{it.container}": it for it in rig.daemon.ledger.entries()}


def granted_mib(rig: ShareRig) -> int:
    """All memory on record, in MiB."""
    return sum(grant.memory_mib for entry in entries(rig).values() for grant in entry.grants)


def file_of(rig: ShareRig) -> Path:
    return rig.record / "grants.record"


# -- who is meant ----------------------------------------------------------------------------------
@shows(
    "S1",
    fault="standalone, and kubelet's list of pods can't be read",
    happens="the only pod on the node that waits for as many shares is served; with two of them "
    "both are refused, and the refusal names them",
)
def test_list_unreadable_the_only_pod_that_waits_is_served_and_of_two_none(rig: ShareRig) -> None:
    rig.kubelet.failing_lists = 10**6
    rig.create("a")
    answer = rig.admit_shares("a")
    assert answer.is_admitted, answer.refusal
    assert cards_of(answer) == [(uuid(0), f"{QUARTER_MIB}m")]
    rig.create("b")
    rig.create("c")
    refusal = rig.admit_shares("b").refusal
    assert "list of pods can't be read" in refusal
    assert "default/b/main, default/c/main" in refusal
    assert set(entries(rig)) == {"a/main"}


@shows(
    "S2",
    fault="standalone, and two pods in kubelet's list could be meant",
    happens="neither is served by guess: both are looked at again, then the call is refused",
)
def test_two_pods_at_once_in_the_list_none_is_guessed(rig: ShareRig) -> None:
    rig.create("a")
    rig.create("b")
    with rig.kubelet.listed_too(rig.pod("b")):
        refusal = rig.admit_shares("a").refusal
    assert "default/a/main, default/b/main" in refusal
    assert "does not guess" in refusal
    assert not entries(rig)
    assert rig.admit_shares("b").is_admitted


@shows(
    "S3",
    fault="standalone, and kubelet names a device that is no share of a card of this node",
    happens="the call is refused with the name; an Event says so; nothing is recorded",
)
def test_device_that_is_no_share_of_a_card_here_is_refused(rig: ShareRig) -> None:
    for wrong in (f"{uuid(7)}-0", f"{uuid(0)}-4", "x", ""):
        name = f"p-{abs(hash(wrong))}"
        rig.create(name)
        with rig.kubelet.choosing([wrong]):
            refusal = rig.admit_shares(name).refusal
        assert f"no shares of this node's cards: {wrong}" in refusal
    assert not entries(rig)
    eventually(lambda: len(rig.events("AllocationRefused")) == 4, LIMIT_S)


@shows(
    "S4",
    fault="standalone, and the card of a share breaks after kubelet has chosen it",
    happens="the container is refused with the card and its fault; the card's shares are taken "
    "from kubelet and come back with it",
)
def test_card_that_broke_is_refused_and_comes_back(bare: ShareRig) -> None:
    bare.start_shares(scan_interval_s="0.05")
    bare.write_cards(lost=[0])
    eventually(lambda: bare.offered() == 0, LIMIT_S)
    bare.create("p")
    with bare.kubelet.choosing([f"{uuid(0)}-0"]):
        refusal = bare.admit_shares("p").refusal
    assert "the card is unhealthy" in refusal
    assert uuid(0) in refusal
    bare.write_cards()
    eventually(lambda: bare.offered() == 4, LIMIT_S)
    assert bare.run("q").is_admitted


# -- settings that change under running pods -------------------------------------------------------
@shows(
    "S5",
    fault="the size of shares is changed while pods hold shares of the old size",
    happens="the card offers as many new shares as it has room for, the rest once the old pods "
    "have ended; the ledger counts MiB, whatever they were called",
)
def test_size_changed_under_running_pods_only_what_is_left_is_offered(rig: ShareRig) -> None:
    assert rig.run("old").is_admitted
    rig.start_again("2")
    eventually(lambda: rig.offered(HALF) == 1, LIMIT_S)
    first = rig.run("new", Shares(resource=HALF))
    assert cards_of(first) == [(uuid(0), f"{MEMORY_MIB // 2}m")]
    assert "Available: 0" in rig.run("late", Shares(resource=HALF)).refusal
    rig.end("old")
    eventually(lambda: rig.offered(HALF) == 2, LIMIT_S)
    assert rig.run("next", Shares(resource=HALF)).is_admitted
    assert granted_mib(rig) == MEMORY_MIB


def test_size_changed_and_kubelet_asks_before_the_list_is_corrected(rig: ShareRig) -> None:
    for name in ("a", "b", "c"):
        assert rig.run(name).is_admitted
    rig.start_again("2")
    rig.create("big", [Shares(resource=HALF)])
    with rig.kubelet.choosing([f"{uuid(0)}-1"]):
        refusal = rig.admit_shares("big").refusal
    assert "too little free memory" in refusal
    assert "other settings of this node" in refusal
    assert f"free {QUARTER_MIB} MiB, asked {MEMORY_MIB // 2} MiB" in refusal


@shows(
    "S6",
    fault="a node is switched to standalone while pods hold slices that a scheduler placed",
    happens="they keep them and count in full; the shares beside them are offered as they end",
)
def test_switched_to_standalone_slices_of_before_count(bare: ShareRig) -> None:
    bare.start()
    part = Part(uuid=uuid(0), memory_mib=QUARTER_MIB + 1)
    bare.place("sliced", [Box(memory_mib=QUARTER_MIB + 1)], {"main": [part]})
    assert bare.admit("sliced").is_admitted
    bare.stop()
    bare.start_shares()
    eventually(lambda: bare.offered() == 2, LIMIT_S)
    assert nvidia_names.NODE_REGISTER not in bare.notes
    assert all(bare.run(name).is_admitted for name in "ab")
    assert "Available: 0" in bare.run("late").refusal
    bare.end("sliced")
    eventually(lambda: bare.offered() == 4, LIMIT_S)
    assert all(bare.run(name).is_admitted for name in "cd")


@shows(
    "S7",
    fault="a node is switched back to slices that a scheduler places while pods hold shares",
    happens="the scheduler is shown the cards without what the shares hold, and a slice beyond "
    "that is refused",
)
def test_switched_back_schedulers_see_what_is_left(rig: ShareRig) -> None:
    assert rig.run("old").is_admitted
    rig.stop()
    rig.start()
    eventually(lambda: nvidia_names.NODE_STANDALONE not in rig.notes, LIMIT_S)
    (card,) = decode_register(rig.register_text)
    assert (card.memory_mib, card.cores) == (MEMORY_MIB - QUARTER_MIB, 75)
    whole = Part(uuid=uuid(0), memory_mib=MEMORY_MIB)
    rig.place("greedy", [Box(memory_mib=MEMORY_MIB)], {"main": [whole]})
    assert f"free {MEMORY_MIB - QUARTER_MIB} MiB" in rig.admit("greedy").refusal
    rig.end("old")
    eventually(lambda: decode_register(rig.register_text)[0].cores == 100, LIMIT_S)
    eventually(lambda: not rig.kubelet.devices(QUARTER) or rig.offered() == 0, LIMIT_S)
    assert rig.kubelet.allocatable(GPU) == 10


# -- the record ------------------------------------------------------------------------------------
@shows(
    "S8",
    fault="standalone, and the record of grants is lost",
    happens="it is made again from the shares that kubelet lists for running pods; none is given "
    "twice",
)
def test_record_lost_shares_are_read_from_kubelets_list(rig: ShareRig) -> None:
    two = Shares(name="train", count=2)
    assert rig.run("p", Shares(name="setup", kind=INIT), two, Shares(name="serve")).is_admitted
    before = {key: entry.grants for key, entry in entries(rig).items() if entry.kind == "app"}
    rig.stop()
    file_of(rig).unlink()
    rig.start_shares("2")
    eventually(lambda: {key: it.grants for key, it in entries(rig).items()} == before, LIMIT_S)
    assert {entry.resource for entry in entries(rig).values()} == {QUARTER}
    eventually(lambda: rig.offered(HALF) == 0, LIMIT_S)
    rig.end("p")
    eventually(lambda: rig.offered(HALF) == 2, LIMIT_S)


@shows(
    "S9",
    fault="standalone, and the daemon is killed after the ledger was written, before kubelet has "
    "the answer; kubelet then names another share",
    happens="the container gets the share that kubelet names now, and holds only that; the same "
    "share again gives the same bytes",
)
def test_killed_between_ledger_and_answer_the_next_call_counts(rig: ShareRig) -> None:
    lost = rig.run("p", phase="Pending")
    rig.kubelet.forget_ids("p")
    rig.start_again()
    with rig.kubelet.choosing(lost.device_ids["main"]):
        same = rig.kubelet.admit(rig.pod("p"), QUARTER)
    assert same.responses["main"] == lost.responses["main"]
    rig.kubelet.forget_ids("p")
    rig.start_again()
    with rig.kubelet.choosing([f"{uuid(0)}-3"]):
        other = rig.kubelet.admit(rig.pod("p"), QUARTER)
    assert other.is_admitted, other.refusal
    assert [entry.device_ids for entry in entries(rig).values()] == [(f"{uuid(0)}-3",)]
    assert granted_mib(rig) == QUARTER_MIB


@shows(
    "S10",
    fault="standalone, and kubelet has lost its checkpoint: it asks again for a container that "
    "runs, with another share",
    happens="the container keeps what it runs with, to the byte, and counts once",
)
def test_kubelet_without_checkpoint_the_running_container_keeps_its_bytes(rig: ShareRig) -> None:
    first = rig.run("p")
    rig.kubelet.forget_ids("p")
    rig.start_again()
    with rig.kubelet.choosing([f"{uuid(0)}-3"]):
        again = rig.kubelet.admit(rig.pod("p"), QUARTER)
    assert again.is_admitted, again.refusal
    assert again.responses["main"] == first.responses["main"]
    assert granted_mib(rig) == QUARTER_MIB


# -- a cluster that is restored --------------------------------------------------------------------
@shows(
    "N17",
    fault="etcd is restored from a backup that is older than the node's registration",
    happens="the node is reported again as soon as the watch shows the restored node",
)
@pytest.mark.parametrize("mode", ["standalone", "on-request"])
def test_node_of_a_restored_backup_is_reported_again(bare: ShareRig, mode: str) -> None:
    if mode == "standalone":
        bare.start_shares()
    else:
        bare.start(handshake="on-request")
    key = nvidia_names.NODE_STANDALONE if mode == "standalone" else nvidia_names.NODE_REGISTER
    eventually(lambda: key in bare.notes, LIMIT_S)
    while int(bare.api.read("nodes", NODE)["metadata"]["resourceVersion"]) < 100:
        bare.api.edit("nodes", NODE, lambda body: body["metadata"].update(labels={"x": "y"}))
    assert bare.daemon is not None
    daemon = bare.daemon

    def shown() -> int:
        node = daemon.view.node()
        return 0 if node is None else node.version

    eventually(lambda: shown() >= 100, LIMIT_S)
    bare.api.fail_next("watch", "nodes", 410)
    bare.api.restore_backup()
    bare.api.edit("nodes", NODE, lambda body: body["metadata"].update(annotations={}))
    eventually(lambda: shown() < 100, LIMIT_S)
    eventually(lambda: key in bare.notes, LIMIT_S)
