from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.errors import WireError
from hami_node.extender.rules import request_of, rules_of
from hami_node.model import Container, Pod
from hami_node.settings import Settings
from hami_node.wire import names

RULES = rules_of(Settings())


def pod(**limits: str) -> Pod:
    return Pod(
        uid="u", namespace="default", name="p", containers=(Container(name="c0", limits=limits),)
    )


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({names.RESOURCE_GPU_MEMORY: "1000"}, id="memory"),
        pytest.param({names.RESOURCE_GPU_MEMORY_PERCENT: "50"}, id="percent"),
        pytest.param({names.RESOURCE_GPU_CORES: "10"}, id="cores"),
    ],
)
def test_share_without_a_number_of_cards_is_refused_with_the_cure(
    limits: Mapping[str, str],
) -> None:
    with pytest.raises(WireError, match=r"add nvidia\.com/gpu: 1"):
        request_of(pod(**limits), RULES)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="nothing"),
        pytest.param({names.RESOURCE_GPU_MEMORY: "0"}, id="a share of 0"),
        pytest.param({names.RESOURCE_GPU: "0", names.RESOURCE_GPU_MEMORY: "9"}, id="0 cards"),
        pytest.param({"amd.com/gpu": "1"}, id="another vendor"),
    ],
)
def test_pod_that_asks_for_nothing_is_left_alone(limits: Mapping[str, str]) -> None:
    assert request_of(pod(**limits), RULES).is_empty
