"""Instances are made and destroyed through the real pynvml, and every failure has its meaning."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigDevice, MigPlacement
from tests.nvml_stub.control import UUIDS, card
from tests.unit.vendors.nvidia.nvml.mig.conftest import A100, H100, Rig, numbered, within

ONE_AT_2 = MigPlacement(start=2, size=1)


def id_of(rig: Rig, name: str, uuid: Uuid = A100) -> int:
    return next(known.id for known in rig.scan(uuid).profiles if known.name == name)


def make(rig: Rig, name: str, place: MigPlacement, uuid: Uuid = A100) -> MigDevice:
    number = rig.driver.make_gpu_instance(uuid, id_of(rig, name, uuid), place, within())
    return rig.driver.make_compute_instance(uuid, number, within())


def test_instance_is_made_at_its_place_and_destroyed_again(rig: Rig) -> None:
    device = make(rig, "1g.5gb", ONE_AT_2)
    (made,) = rig.hardware.instances(A100)
    assert (made.profile, made.start, made.size, made.gi) == ("1g.5gb", 2, 1, 9)
    assert device == MigDevice(uuid=made.uuid, gpu_instance_id=9, compute_instance_id=0)
    (seen,) = rig.look().instances
    assert (seen.profile, seen.placement, seen.device) == ("1g.5gb", ONE_AT_2, device)
    assert (seen.compute_instance_ids, seen.processes) == ((0,), frozenset())
    rig.driver.destroy_compute_instance(A100, device, within())
    (half,) = rig.look().instances
    assert (half.compute_instance_ids, half.device) == ((), None)
    rig.driver.destroy_gpu_instance(A100, 9, within())
    assert rig.look().instances == ()
    assert rig.hardware.instances(A100) == ()


@pytest.mark.parametrize("line", ["compute_info card", "indices gaps"])
def test_device_is_found_however_the_driver_shows_it(rig: Rig, line: str) -> None:
    rig.show(line, "compute_info card")
    first = make(rig, "1g.5gb", ONE_AT_2)
    second = make(rig, "3g.20gb", MigPlacement(start=4, size=4))
    assert [seen.device for seen in rig.look().instances] == [second, first]
    assert rig.hardware.uuids(A100) == (second.uuid, first.uuid)


def test_instance_with_a_process_is_busy(rig: Rig) -> None:
    device = make(rig, "1g.5gb", ONE_AT_2)
    rig.hardware.run(device.uuid, 4711)
    assert rig.look().instances[0].processes == frozenset({4711})
    with pytest.raises(MigError) as caught:
        rig.driver.destroy_compute_instance(A100, device, within())
    assert caught.value.reason is MigFailure.BUSY
    with pytest.raises(MigError) as caught:
        rig.driver.destroy_gpu_instance(A100, 9, within())
    assert caught.value.reason is MigFailure.BUSY
    assert len(rig.hardware.uuids(A100)) == 1


def test_what_is_gone_is_gone_and_so_is_all_with_the_mode_off(rig: Rig) -> None:
    rig.hardware.make(A100, "1g.5gb", 2, is_whole=False)

    def reasons() -> list[MigFailure]:
        found = []
        for number, part in ((9, 0), (9, 5), (4, 0)):
            with pytest.raises(MigError) as caught:
                rig.driver.destroy_compute_instance(A100, numbered(number, part), within())
            found.append(caught.value.reason)
        with pytest.raises(MigError) as caught:
            rig.driver.destroy_gpu_instance(A100, 4, within())
        return [*found, caught.value.reason]

    assert reasons() == [MigFailure.GONE] * 4
    rig.hardware.set_mode(A100, 0)
    assert reasons() == [MigFailure.GONE] * 4
    assert not rig.look().is_enabled


@pytest.mark.parametrize("line", ["compute_info mig", "compute_info card"])
def test_instance_that_has_the_numbers_of_another_is_not_destroyed(rig: Rig, line: str) -> None:
    rig.show(line)
    device = make(rig, "1g.5gb", ONE_AT_2)
    rig.hardware.destroy(A100, 9)
    other = rig.hardware.make(A100, "1g.5gb", 2)
    with pytest.raises(MigError, match=f"{other.uuid} has its numbers") as caught:
        rig.driver.destroy_compute_instance(A100, device, within())
    assert caught.value.reason is MigFailure.GONE
    with pytest.raises(MigError) as caught:
        rig.driver.destroy_gpu_instance(A100, 9, within())
    assert caught.value.reason is MigFailure.BUSY, "it has a compute instance, which is not ours"
    assert rig.hardware.uuids(A100) == (other.uuid,)


def test_instance_whose_identity_is_not_shown_is_not_destroyed(rig: Rig) -> None:
    device = make(rig, "1g.5gb", ONE_AT_2)
    rig.show("fail nvmlDeviceIsMigDeviceHandle 0 3")
    with pytest.raises(MigError, match="does not show whether") as caught:
        rig.driver.destroy_compute_instance(A100, device, within())
    assert caught.value.reason is MigFailure.FAILED
    assert rig.hardware.uuids(A100) == (device.uuid,)


def test_refusal_in_force_of_a_guest_is_not_taken_for_gone(rig: Rig) -> None:
    rig.hardware.make(A100, "1g.5gb", 2, is_whole=False)
    rig.show("fail nvmlGpuInstanceDestroy 0 3", "fail nvmlDeviceCreateGpuInstanceWithPlacement 0 3")
    with pytest.raises(MigError, match="guest") as caught:
        rig.driver.destroy_gpu_instance(A100, 9, within())
    assert caught.value.reason is MigFailure.FAILED
    with pytest.raises(MigError) as caught:
        make(rig, "1g.5gb", MigPlacement(start=0, size=1))
    assert caught.value.reason is MigFailure.FAILED


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, MigFailure.FAILED),
        (3, MigFailure.FAILED),
        (4, MigFailure.NO_RIGHTS),
        (6, MigFailure.GONE),
        (9, MigFailure.FAILED),
        (10, MigFailure.UNANSWERED),
        (13, MigFailure.FAILED),
        (15, MigFailure.FAILED),
        (19, MigFailure.BUSY),
        (23, MigFailure.NO_ROOM),
        (999, MigFailure.FAILED),
    ],
)
def test_codes_have_one_meaning_each(rig: Rig, code: int, reason: MigFailure) -> None:
    rig.hardware.make(A100, "1g.5gb", 2)
    rig.show(f"fail nvmlDeviceGetGpuInstanceById 0 {code}")
    calls = (
        lambda: rig.driver.make_compute_instance(A100, 9, within()),
        lambda: rig.driver.destroy_compute_instance(A100, numbered(9), within()),
        lambda: rig.driver.destroy_gpu_instance(A100, 9, within()),
    )
    for call in calls:
        with pytest.raises(MigError, match=f"code {code}") as caught:
            call()
        assert caught.value.reason is reason
    assert rig.hardware.changes() == ()


def test_cards_in_another_order_are_not_mixed_up(rig: Rig) -> None:
    lines = [card(1, mig="enabled"), card(0, mig="enabled")]
    rig.stub.write(*lines)
    with pytest.raises(MigError, match="in another order") as caught:
        rig.driver.make_gpu_instance(A100, 19, ONE_AT_2, within())
    assert caught.value.reason is MigFailure.FAILED
    assert rig.hardware.changes() == ()
    rig.backend.scan()
    make(rig, "1g.5gb", ONE_AT_2)
    assert len(rig.hardware.instances(A100)) == 1
    assert rig.hardware.instances(H100) == ()


def test_without_rights_the_remedy_is_named_and_nothing_is_changed(rig: Rig) -> None:
    rig.show("rights none")
    calls: dict[str, Callable[[], object]] = {
        "daemonset/overlays/mig": lambda: rig.driver.make_gpu_instance(
            A100, 19, ONE_AT_2, within()
        ),
        "/proc/driver/nvidia/capabilities/mig/config": lambda: rig.driver.look(A100, within()),
        "daemonset/components/mig-mode": lambda: rig.driver.set_mode(
            H100, is_enabled=False, deadline=within()
        ),
    }
    for remedy, call in calls.items():
        with pytest.raises(MigError, match=remedy) as caught:
            call()
        assert caught.value.reason is MigFailure.NO_RIGHTS
    assert rig.hardware.instances(A100) == ()


def test_what_fails_after_the_driver_has_made_it_has_an_unknown_outcome(rig: Rig) -> None:
    rig.show("fail nvmlGpuInstanceGetInfo 0 999")
    with pytest.raises(MigError, match="the driver did it, but then") as caught:
        rig.driver.make_gpu_instance(A100, 19, ONE_AT_2, within())
    assert caught.value.reason is MigFailure.UNANSWERED
    assert len(rig.hardware.instances(A100)) == 1
    rig.show()
    assert len(rig.look().instances) == 1


def test_call_that_outlasts_the_deadline_begins_nothing_more(rig: Rig) -> None:
    rig.show("hang nvmlDeviceGetGpuInstanceById 0 60")
    rig.hardware.make(A100, "1g.5gb", 2, is_whole=False)
    with pytest.raises(MigError) as caught:
        rig.driver.destroy_gpu_instance(A100, 9, within(0.1))
    assert caught.value.reason is MigFailure.UNANSWERED
    rig.show()
    assert len(rig.look().instances) == 1, "nobody waits any more, so nothing is destroyed"
    assert rig.hardware.changes() == ()


def test_mode_is_changed_and_the_next_scan_shows_it(rig: Rig) -> None:
    rig.hardware.set_mode(H100, 0)
    assert not rig.scan(H100).is_enabled
    assert rig.driver.set_mode(H100, is_enabled=True, deadline=within()) == ""
    found = rig.scan(H100)
    assert (found.is_enabled, found.is_pending) == (True, True)
    assert found.profiles
    make(rig, "1g.10gb", MigPlacement(start=0, size=1), H100)
    assert len(rig.scan(H100).instances) == 1


def test_mode_that_is_in_force_already_is_not_set_again(rig: Rig) -> None:
    assert rig.driver.set_mode(H100, is_enabled=True, deadline=within()) == ""
    assert rig.hardware.changes() == ()


def test_mode_that_is_only_recorded_says_who_holds_the_card(rig: Rig) -> None:
    rig.stub.write(card(0, mig="disabled", processes="4711,4712"))
    answer = rig.driver.set_mode(A100, is_enabled=True, deadline=within())
    assert "4711, 4712" in answer
    found = rig.scan()
    assert (found.is_enabled, found.is_pending) == (False, True)
    rig.stub.write(card(0, mig="disabled", clients=2))
    assert "such as a monitor" in rig.driver.set_mode(A100, is_enabled=True, deadline=within())
    rig.stub.write(card(0, mig="disabled", activation=16))
    assert "nvidia-smi -r" in rig.driver.set_mode(A100, is_enabled=True, deadline=within())
    rig.stub.write(card(0, mig="disabled", activation=999))
    assert "code 999" in rig.driver.set_mode(A100, is_enabled=True, deadline=within())


def test_card_without_mig_is_told(rig: Rig) -> None:
    other = Uuid(UUIDS[2])
    with pytest.raises(MigError) as caught:
        rig.driver.set_mode(other, is_enabled=True, deadline=within())
    assert caught.value.reason is MigFailure.GONE
    assert not rig.look(other).is_enabled


def test_instance_of_a_card_that_is_not_there_fails(rig: Rig) -> None:
    with pytest.raises(MigError, match="has not listed this card") as caught:
        rig.driver.look(Uuid("GPU-none"), within())
    assert caught.value.reason is MigFailure.FAILED
