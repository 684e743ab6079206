"""MIG instances that others have made, with the whole daemon on the stand-in for the driver."""

from __future__ import annotations

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register, decode_shares
from tests.fakes.waiting import eventually
from tests.integration.instance_rig import (
    LARGE,
    MEDIA,
    MIDDLE,
    SMALL,
    Ahead,
    InstanceRig,
    seen,
)
from tests.integration.rig import GPU, LIMIT_S, SLOTS
from tests.integration.share_rig import Shares
from tests.nvml_stub.control import UUIDS, bus


@pytest.fixture
def rig(instances_of_others: InstanceRig) -> InstanceRig:
    """Card 0 in MIG mode, without instances; the daemon is not started yet."""
    return instances_of_others


def test_mixed_offers_each_profile_under_its_own_name(rig: InstanceRig) -> None:
    small = {rig.make("1g.5gb", start).uuid for start in (4, 5)}
    large, media = rig.make("3g.20gb", 0).uuid, rig.make("1g.5gb+me", 6).uuid
    rig.serve()
    assert rig.daemon is not None
    assert [it.name for it in rig.daemon.resources] == [GPU, SMALL, MEDIA, LARGE]
    eventually(lambda: rig.healthy(SMALL) == small, LIMIT_S)
    eventually(lambda: rig.healthy(MEDIA) == {media}, LIMIT_S)
    eventually(lambda: rig.healthy(LARGE) == {large}, LIMIT_S)
    rig.wait_registered(2 * SLOTS)
    registered = decode_register(rig.register_text)
    assert [(it.uuid, it.healthy) for it in registered] == [(UUIDS[1], True), (UUIDS[2], True)]
    (shown,) = decode_shares(rig.notes[nvidia_names.NODE_STANDALONE])
    assert (shown.device.uuid, shown.device.mode, shown.device.slots) == (UUIDS[0], "mig", 4)
    assert rig.driver.mig.changes() == ()


def test_pod_gets_the_instance_that_kubelet_names_and_nothing_of_the_limiter(
    rig: InstanceRig,
) -> None:
    rig.make("1g.5gb", 6)
    rig.serve()
    answer = rig.ask("p")
    assert answer.is_admitted, answer.refusal
    (name,) = answer.device_ids["main"]
    assert seen(answer) == name == rig.driver.mig.uuids(UUIDS[0])[0]
    given = answer.responses["main"]
    assert not given.mounts
    assert not [key for key in given.envs if key.startswith("CUDA_")]
    assert rig.kubelet.call_again(SMALL, (name,)) == given
    held = {"pod": "p", "container": "main", "uuid": UUIDS[0]}
    eventually(lambda: rig.metric("allocation_memory_bytes", **held) == 4864 * 2**20, LIMIT_S)
    assert rig.metric("allocation_cores_ratio", **held) == pytest.approx(0.15)
    assert rig.driver.mig.changes() == ()


def test_containers_of_a_pod_have_instances_of_their_own(rig: InstanceRig) -> None:
    made = {rig.make("1g.5gb", start).uuid for start in (4, 5)} | {rig.make("2g.10gb", 0).uuid}
    rig.serve()
    answer = rig.run(
        "p",
        Shares(name="setup", resource=SMALL, kind=ContainerKind.INIT),
        Shares(name="train", resource=SMALL),
        Shares(name="serve", resource=MIDDLE),
    )
    assert answer.is_admitted, answer.refusal
    assert {seen(answer, name) for name in ("setup", "train", "serve")} <= made
    assert seen(answer, "train") != seen(answer, "serve")
    assert "Available: 0" in rig.ask("late", MIDDLE).refusal
    rig.end("p")
    assert set(seen(rig.ask("next", SMALL, 2)).split(",")) < made


def test_instance_beside_anything_else_of_the_vendor_is_refused(rig: InstanceRig) -> None:
    rig.make("1g.5gb", 6)
    rig.serve()
    for number, beside in enumerate((GPU, MIDDLE, "nvidia.com/gpumem")):
        rig.create(f"p{number}", [Shares(resource=SMALL, beside={beside: "1"})])
        answer = rig.kubelet.admit(rig.pod(f"p{number}"), SMALL)
        assert f"{beside}: can't be asked for beside {SMALL}" in answer.refusal
        rig.end(f"p{number}")


def test_numa_node_of_the_card_is_always_shown(rig: InstanceRig) -> None:
    rig.make("1g.5gb", 6)
    sysfs = rig.root / "sys" / "bus" / "pci" / "devices" / bus(0)[4:].lower()
    sysfs.mkdir(parents=True)
    (sysfs / "numa_node").write_text("1")
    rig.serve(sysfs_root=str(rig.root / "sys"))
    eventually(lambda: rig.kubelet.numa_nodes(SMALL) == {(1,)}, LIMIT_S)
    assert rig.ask("p").is_admitted
    assert rig.kubelet.numa_nodes(SMALL) == {(1,)}


def test_daemon_started_before_the_driver_serves_whole_cards_until_it_is_started_again(
    rig: InstanceRig,
) -> None:
    made = rig.make("1g.5gb", 6).uuid
    rig.divide(1, "fail nvmlInitWithFlags * 9")
    rig.clock = clock = Ahead()
    rig._start(backend="nvml", mig_strategy="single")
    daemon = rig.daemon
    assert daemon is not None
    assert daemon.resources == ()
    rig.divide(1)
    clock.by_s += 60
    (owner,) = daemon.vendor_cards
    eventually(lambda: owner.physical != (), LIMIT_S)
    assert owner.why_restart() == ""
    clock.by_s += 60
    assert GPU in owner.why_restart()
    rig.serve_again("single")
    eventually(lambda: rig.healthy(GPU) == {made}, LIMIT_S)


def states(rig: InstanceRig) -> dict[str, PartState]:
    """The instances as the daemon shows them."""
    assert rig.daemon is not None
    return {part.uuid: part.state for it in rig.daemon.vendor_cards for part in it.divided().parts}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_instances_are_shown_with_their_containers_use(rig: InstanceRig, strategy: str) -> None:
    for start in (5, 6):
        rig.make("1g.5gb", start)
    rig.serve(strategy, usage_interval_s="0.2")
    answer = rig.ask("p", GPU if strategy == "single" else SMALL)
    assert answer.is_admitted, answer.refusal
    held = seen(answer)
    (other,) = set(rig.driver.mig.uuids(UUIDS[0])) - {held}
    wanted = {held: PartState.LIVE, other: PartState.OFFERED}
    eventually(lambda: states(rig) == wanted, LIMIT_S)
    rig.driver.mig.run(held, 77, used_mib=3000)
    whose = {"pod": "p", "container": "main", "part": held}
    used = "container_memory_used_bytes"
    eventually(lambda: rig.metric(used, **whose) == 3000 << 20, LIMIT_S)
    assert rig.metric("container_memory_limit_bytes", **whose) == 4864 << 20
    assert rig.metric(used, part=other) is None
    assert rig.metric("card_parts", uuid=UUIDS[0], state="offered") == 1
    assert rig.driver.mig.changes() == ()
