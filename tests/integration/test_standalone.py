"""Fixed shares of cards, without any scheduler part, over kubelet's and the API's own wires."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_shares
from hami_node.wire import names
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S
from tests.integration.share_rig import (
    HALF,
    QUARTER,
    WHOLE,
    ShareRig,
    Shares,
    cards_of,
    cores_of,
)

QUARTER_MIB = MEMORY_MIB // 4


@pytest.fixture
def bare() -> Iterator[ShareRig]:
    """A node with two cards whose daemon is not started yet."""
    rig = ShareRig(cards=2)
    try:
        yield rig
    finally:
        rig.close()


@pytest.fixture
def rig(bare: ShareRig) -> ShareRig:
    """Cards in quarters."""
    bare.start_shares()
    return bare


def test_share_limits_are_those_of_the_device_that_kubelet_names(rig: ShareRig) -> None:
    assert rig.offered() == 8
    answer = rig.run("p")
    assert answer.is_admitted, answer.refusal
    (name,) = answer.device_ids["main"]
    assert cards_of(answer) == [(name.rpartition("-")[0], f"{QUARTER_MIB}m")]
    assert cores_of(answer) == "25"
    again = rig.kubelet.call_again(QUARTER, answer.device_ids["main"])
    assert again == answer.responses["main"]


def test_shares_card_of_its_own_size_each_and_one_scan_for_all(bare: ShareRig) -> None:
    bare.start_shares(f"0=2,{uuid(1)}=1")
    assert bare.daemon is not None
    assert [each.name for each in bare.daemon.resources] == [WHOLE, HALF]
    assert len(bare.daemon.vendor_cards) == 1
    assert sorted(bare.kubelet.devices(HALF)) == [f"{uuid(0)}-0", f"{uuid(0)}-1"]
    assert sorted(bare.kubelet.devices(WHOLE)) == [f"{uuid(1)}-0"]
    assert not bare.kubelet.devices(GPU)
    half, whole = bare.run("h", Shares(resource=HALF)), bare.run("w", Shares(resource=WHOLE))
    assert (cards_of(half), cores_of(half)) == ([(uuid(0), f"{MEMORY_MIB // 2}m")], "50")
    assert (cards_of(whole), cores_of(whole)) == ([(uuid(1), f"{MEMORY_MIB}m")], "100")


def test_no_request_to_the_api_server_for_a_pod(rig: ShareRig) -> None:
    rig.run("first")
    rig.create("second")
    rig.api.forget_requests()
    assert rig.kubelet.admit(rig.pod("second"), QUARTER).is_admitted
    rig.wait_followed_up("second")
    assert rig.api.requests() == ()


def test_schedulers_see_no_card_and_people_see_the_shares(rig: ShareRig) -> None:
    assert nvidia_names.NODE_REGISTER not in rig.notes
    assert nvidia_names.NODE_HANDSHAKE not in rig.notes
    assert all(uuid(i) in rig.notes[nvidia_names.NODE_STANDALONE] for i in range(2))
    rig.stop()
    assert '"health":true' not in rig.notes[nvidia_names.NODE_STANDALONE]


def test_what_is_taken_is_shown_once_an_interval(bare: ShareRig) -> None:
    bare.start_shares(report_interval_s="3")
    assert bare.run("p", Shares(count=3)).is_admitted

    def taken() -> list[tuple[int, int]]:
        cards = decode_shares(bare.notes[nvidia_names.NODE_STANDALONE])
        return sorted((use.slots_used, use.memory_used_mib) for use in cards)

    wanted = [(1, QUARTER_MIB), (2, 2 * QUARTER_MIB)]
    eventually(lambda: taken() == wanted, LIMIT_S)
    bare.end("p")
    eventually(lambda: taken() == [(0, 0), (0, 0)], LIMIT_S)


def test_asks_for_more_of_the_vendor_beside_shares_are_refused(bare: ShareRig) -> None:
    bare.start_shares("0=2,1=4")
    both = bare.run("both", Shares(beside={HALF: "1"}))
    assert f"{QUARTER}: can't be asked for beside {HALF}" in both.refusal
    eventually(lambda: bare.events("AllocationRefused"), LIMIT_S)
    assert names.POD_BIND_PHASE not in bare.pod("both").annotations


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "99999m"},
        {"name": "CUDA_DEVICE_SM_LIMIT", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}},
        {"name": "LD_PRELOAD", "value": "/tmp/mine.so"},
    ],
    ids=lambda variable: str(variable["name"]),
)
def test_variable_of_the_nodes_in_the_pod_is_refused(
    rig: ShareRig, variable: dict[str, object]
) -> None:
    answer = rig.run("p", Shares(env=(variable,)))
    assert str(variable["name"]) in answer.refusal
    assert "remove it from env" in answer.refusal
    harmless = {"name": "CUDA_MODULE_LOADING", "value": "LAZY"}
    assert rig.run("q", Shares(env=(harmless,))).is_admitted


def test_forged_reservation_counts_for_nothing(rig: ShareRig) -> None:
    forged = f"{uuid(0)},NVIDIA,{MEMORY_MIB},100:;"
    answer = rig.run("p", annotations={nvidia_names.POD_ALLOCATED: forged})
    assert [limit for _, limit in cards_of(answer)] == [f"{QUARTER_MIB}m"]
    assert all(rig.run(f"p{n}").is_admitted for n in range(7))
