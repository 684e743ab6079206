from __future__ import annotations

import pytest

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.requests import check_percentage
from hami_node.vendors.nvidia.settings import NvidiaSettings

Quantities = dict[str, str]

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
PCT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
SETTINGS = NvidiaSettings()


def container(limits: Quantities, requests: Quantities | None = None) -> Container:
    return Container(name="main", limits=limits, requests=requests or {})


def ask_of(
    limits: Quantities,
    requests: Quantities | None = None,
    *,
    settings: NvidiaSettings = SETTINGS,
) -> Ask | None:
    return nvidia_protocol(settings).ask_of(container(limits, requests))


def gpu(count: int, memory: int | None = None, percent: int | None = None, cores: int = 0) -> Ask:
    return Ask(vendor=NVIDIA, count=count, memory_mib=memory, memory_percent=percent, cores=cores)


@pytest.mark.parametrize("limits", [{MEM: "100"}, {PCT: "50"}, {CORES: "10"}])
def test_ask_of_a_share_without_a_number_of_cards_is_refused_with_a_hint(
    limits: Quantities,
) -> None:
    with pytest.raises(WireError, match=r"add nvidia\.com/gpu: 1") as caught:
        ask_of(limits)
    assert [caught.value.key] == list(limits)


@pytest.mark.parametrize(
    ("limits", "resource", "why"),
    [
        pytest.param({GPU: "1500m"}, GPU, "whole number", id="part of a card"),
        pytest.param({GPU: "-1"}, GPU, "negative", id="negative count"),
        pytest.param({GPU: "two"}, GPU, "quantity", id="no quantity"),
        pytest.param({GPU: "1", MEM: "1500m"}, MEM, "whole number", id="part of a MiB"),
        pytest.param({GPU: "1", MEM: "-5"}, MEM, "negative", id="negative memory"),
        pytest.param({GPU: "1", MEM: "4Gi"}, MEM, "too large", id="bytes as MiB"),
        pytest.param({GPU: "1", CORES: "-5"}, CORES, "negative", id="negative cores"),
        pytest.param({GPU: "1", CORES: "0.5"}, CORES, "whole number", id="part of a percent"),
        pytest.param({GPU: "1", PCT: "-5"}, PCT, "negative", id="negative percentage"),
    ],
)
def test_ask_of_bad_value_is_a_wire_error_that_names_it(
    limits: Quantities, resource: str, why: str
) -> None:
    with pytest.raises(WireError, match=why) as caught:
        ask_of(limits)
    assert caught.value.key == resource


def test_ask_of_memory_times_factor_too_large_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="too large"):
        ask_of({GPU: "1", MEM: "9000000"}, settings=NvidiaSettings(memory_factor=256))


def test_ask_of_bad_request_beside_a_good_limit_is_found() -> None:
    with pytest.raises(WireError, match="whole number"):
        ask_of({GPU: "1"}, {GPU: "500m"})


@pytest.mark.parametrize(
    ("percent", "is_101_unset", "is_bad"),
    [
        ("0", False, 0), ("100", False, 0), ("101", False, 1), ("-1", False, 1),
        ("101", True, 0), ("102", True, 1), ("-1", True, 1),
    ],
)  # fmt: skip
def test_check_percentage_outside_0_to_100_is_a_wire_error(
    percent: str, is_101_unset: bool, is_bad: int
) -> None:
    asked = container({GPU: "1", PCT: percent})

    if is_bad:
        with pytest.raises(WireError, match="from 0 to 100"):
            check_percentage(asked, SETTINGS, is_101_unset=is_101_unset)
    else:
        check_percentage(asked, SETTINGS, is_101_unset=is_101_unset)


DEFAULT_5000 = NvidiaSettings(default_memory_mib=5000)


@pytest.mark.parametrize(
    ("limits", "settings", "ask"),
    [
        pytest.param({PCT: "101"}, DEFAULT_5000, gpu(1, 5000), id="default"),
        pytest.param({PCT: "101"}, SETTINGS, gpu(1, percent=100), id="whole card"),
        pytest.param({PCT: "101", MEM: "10"}, DEFAULT_5000, gpu(1, 10), id="MiB"),
        pytest.param({PCT: "102"}, DEFAULT_5000, gpu(1, percent=100), id="102"),
    ],
)
def test_seed_004_step_1_percentage_of_101_is_not_given(
    limits: Quantities, settings: NvidiaSettings, ask: Ask
) -> None:
    asked = container({GPU: "1", **limits})
    assert nvidia_protocol(settings, is_101_unset=True).ask_of(asked) == ask


def test_percentage_of_101_is_the_whole_card_in_2_10() -> None:
    assert ask_of({GPU: "1", PCT: "101"}, settings=DEFAULT_5000) == gpu(1, percent=100)


def test_ask_of_renamed_resources_reads_only_the_new_names() -> None:
    renamed = NvidiaSettings(resource_count="example.com/vgpu", resource_memory="example.com/mem")

    assert ask_of({"example.com/vgpu": "1", "example.com/mem": "5"}, settings=renamed) == gpu(1, 5)
    assert ask_of({GPU: "1"}, settings=renamed) is None
