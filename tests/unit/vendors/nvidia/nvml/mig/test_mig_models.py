"""Every profile of every model at every place: made, seen whole and destroyed, by real pynvml."""

from __future__ import annotations

import pytest

from hami_node.vendors.nvidia.mig.layout import MigPlacement
from tests.nvml_stub.control import Stub, card
from tests.nvml_stub.mig import ALL_PROFILES, MigHardware, Profile
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig.conftest import A100, Rig, within


@pytest.fixture(params=ALL_PROFILES, ids=lambda each: f"{each.model}-{each.name}")
def profile(request: pytest.FixtureRequest) -> Profile:
    found = request.param
    assert isinstance(found, Profile)
    return found


@pytest.fixture
def rig(start: Open, stub: Stub, hardware: MigHardware, profile: Profile) -> Rig:
    """A card of the profile's model."""
    stub.write(card(0, mig="enabled", model=profile.model))
    made = Rig(start(), stub, hardware)
    made.backend.scan()
    return made


def test_profile_is_made_at_each_of_its_places_and_destroyed(rig: Rig, profile: Profile) -> None:
    for start in profile.starts:
        place = MigPlacement(start=start, size=profile.size)
        number = rig.driver.make_gpu_instance(A100, profile.id, place, within())
        made = rig.driver.make_compute_instance(A100, number, within())
        (seen,) = rig.look().instances
        assert (seen.profile, seen.profile_id) == (profile.name, profile.id)
        assert (seen.placement, seen.device) == (place, made)
        assert seen.compute_instance_ids == (made.compute_instance_id,)
        assert rig.hardware.uuids(A100) == (made.uuid,)
        rig.driver.destroy_compute_instance(A100, made, within())
        rig.driver.destroy_gpu_instance(A100, number, within())
        assert rig.look().instances == ()


def test_card_holds_as_many_as_the_driver_says(rig: Rig, profile: Profile) -> None:
    for start in profile.starts[: profile.instances]:
        place = MigPlacement(start=start, size=profile.size)
        rig.driver.make_gpu_instance(A100, profile.id, place, within())
    assert len(rig.look().instances) == profile.instances
