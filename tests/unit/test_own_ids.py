"""Which device IDs are ours."""

from __future__ import annotations

import pytest

from hami_node.model import is_own_id

UUID = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
LOST = "GPU-00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("device_id", "is_own"),
    [
        (f"{UUID}-0", True),
        (f"{UUID}-99999", True),
        pytest.param(f"{LOST}-3", True, id="card-that-was-lost"),
        pytest.param(UUID, False, id="whole-card"),
        pytest.param(LOST, False, id="uuid-that-ends-in-digits"),
        pytest.param(f"{UUID}::2", False, id="time-sliced"),
        pytest.param("MIG-8dcd427f-483b-b48f-d7e5-75fb19a52b76", False, id="mig"),
        pytest.param(f"{UUID}-", False, id="no-number"),
        pytest.param(f"{UUID}-\u0663", False, id="other-digits"),
        pytest.param(f"{UUID}-1234567", False, id="too-long"),
        pytest.param("", False, id="empty"),
    ],
)
def test_own_ids_are_a_card_and_a_slot(device_id: str, is_own: bool) -> None:
    assert is_own_id(device_id, (UUID,)) is is_own


def test_own_ids_are_also_those_that_cards_have_instead() -> None:
    instance = "MIG-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
    assert is_own_id(instance, (UUID,), {instance})
    assert not is_own_id(UUID, (UUID,), {instance})
