from __future__ import annotations

from hami_node.extender.rules import rules_of
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.settings_block import NVIDIA_SETTINGS
from hami_node.vendors.registry import VENDORS
from tests.fakes.settings import settings


def test_quota_limits_the_vendor_whose_cards_have_one() -> None:
    limited = rules_of(settings(resource_memory="a.b/mem", memory_factor=256), VENDORS).limited
    assert limited is not None
    assert (limited.memory, limited.cores) == ("a.b/mem", nvidia_names.RESOURCE_GPU_CORES)
    assert limited.memory_factor == 256
    without = [vendor for vendor in VENDORS if vendor.settings is not NVIDIA_SETTINGS]
    assert rules_of(settings(), without).limited is None
