from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.errors import WireError
from hami_node.extender.rules import rules_of
from hami_node.model import Container, Pod
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.settings_block import NVIDIA_SETTINGS
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.request import request_of
from tests.fakes.settings import settings

RULES = rules_of(settings(), VENDORS)


def pod(**limits: str) -> Pod:
    return Pod(
        uid="u", namespace="default", name="p", containers=(Container(name="c0", limits=limits),)
    )


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({nvidia_names.RESOURCE_GPU_MEMORY: "1000"}, id="memory"),
        pytest.param({nvidia_names.RESOURCE_GPU_MEMORY_PERCENT: "50"}, id="percent"),
        pytest.param({nvidia_names.RESOURCE_GPU_CORES: "10"}, id="cores"),
    ],
)
def test_share_without_a_number_of_cards_is_refused_with_the_hint(
    limits: Mapping[str, str],
) -> None:
    with pytest.raises(WireError, match=r"add nvidia\.com/gpu: 1"):
        request_of(pod(**limits), RULES.vendors)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="nothing"),
        pytest.param({nvidia_names.RESOURCE_GPU_MEMORY: "0"}, id="a share of 0"),
        pytest.param(
            {nvidia_names.RESOURCE_GPU: "0", nvidia_names.RESOURCE_GPU_MEMORY: "9"}, id="0 cards"
        ),
        pytest.param({"amd.com/gpu": "1"}, id="another vendor"),
    ],
)
def test_pod_that_asks_for_nothing_is_left_alone(limits: Mapping[str, str]) -> None:
    assert request_of(pod(**limits), RULES.vendors).is_empty


def test_quota_limits_the_vendor_whose_cards_have_one() -> None:
    limited = rules_of(settings(resource_memory="a.b/mem", memory_factor=256), VENDORS).limited
    assert limited is not None
    assert (limited.memory, limited.cores) == ("a.b/mem", nvidia_names.RESOURCE_GPU_CORES)
    assert limited.memory_factor == 256
    without = [vendor for vendor in VENDORS if vendor.settings is not NVIDIA_SETTINGS]
    assert rules_of(settings(), without).limited is None
