"""The memory of a card in MIG mode, which the driver tells only who has rights."""

from __future__ import annotations

import pytest

from tests.nvml_stub.control import MEMORY_MIB, Stub
from tests.unit.vendors.nvidia.nvml.conftest import Open
from tests.unit.vendors.nvidia.nvml.mig_calls import in_mig_mode


@pytest.mark.parametrize(
    ("rights", "memory_mib"),
    [("none", 40192), ("monitor", MEMORY_MIB), ("config", MEMORY_MIB), ("root", MEMORY_MIB)],
)
def test_card_has_its_largest_profiles_memory_where_the_driver_tells_no_other(
    start: Open, stub: Stub, rights: str, memory_mib: int
) -> None:
    stub.write(*in_mig_mode(0), f"rights {rights}")
    found = start().scan()
    assert [card.healthy for card in found] == [True, True, True]
    assert [card.memory_mib for card in found] == [memory_mib, MEMORY_MIB, MEMORY_MIB]


def test_card_that_tells_neither_is_unhealthy_and_the_others_are_not(
    start: Open, stub: Stub
) -> None:
    asked = "fail nvmlDeviceGetGpuInstanceProfileInfo 0 3"
    stub.write(*in_mig_mode(0), "rights none", asked, asked.replace("Info", "InfoV", 1))
    found = start().scan()
    assert [card.healthy for card in found] == [False, True, True]
    assert "neither the memory nor the MIG profiles" in found[0].unhealthy_reason
