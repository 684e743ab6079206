from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Ask, Container, Vendor
from hami_node.wire.requests import (
    RequestConfig,
    ResourceNames,
    asks_of,
    check_percentage,
    check_quantities,
    checked_asks_of,
    rounded_neuron_cores,
)

Quantities = dict[str, str]

GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
PCT, CORES = "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"
NEURON, NEURON_CORE = "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"
NAMES = ResourceNames()
NEW = RequestConfig(is_odd_neuron_rejected=True)


def container(limits: Quantities, requests: Quantities | None = None) -> Container:
    return Container(name="main", limits=limits, requests=requests or {})


def gpu(count: int, memory: int | None = None, percent: int | None = None, cores: int = 0) -> Ask:
    return Ask(
        vendor=Vendor.NVIDIA, count=count, memory_mib=memory, memory_percent=percent, cores=cores
    )


def neuron(count: int, cores: int) -> Ask:
    return Ask(vendor=Vendor.AWS_NEURON, count=count, cores=cores)


def whole(count: int) -> Ask:
    return Ask(vendor=Vendor.AWS_NEURON, count=count, cores=2, is_whole_device=True)


@pytest.mark.parametrize(
    ("limits", "requests", "ask"),
    [
        pytest.param({GPU: "1"}, {}, gpu(1, percent=100), id="count alone: the whole card"),
        pytest.param({GPU: "2", MEM: "3000", CORES: "30"}, {}, gpu(2, 3000, None, 30), id="all"),
        pytest.param({GPU: "1", PCT: "50"}, {}, gpu(1, percent=50), id="percentage"),
        pytest.param({GPU: "1", MEM: "3000", PCT: "50"}, {}, gpu(1, 3000, 50), id="both"),
        pytest.param({GPU: "1", PCT: "150"}, {}, gpu(1, percent=100), id="percentage clamped"),
        pytest.param({GPU: "1", PCT: "0"}, {}, gpu(1, percent=100), id="percentage 0: unset"),
        pytest.param({GPU: "1", MEM: "0"}, {}, gpu(1, percent=100), id="memory 0: unset"),
        pytest.param({GPU: "1", MEM: "8Ki"}, {}, gpu(1, 8192), id="binary suffix"),
        pytest.param({GPU: "1", MEM: "4k"}, {}, gpu(1, 4000), id="decimal suffix"),
        pytest.param({GPU: "1", MEM: "1Gi"}, {}, gpu(1, 2**30), id="bytes by mistake"),
        pytest.param({GPU: "1", CORES: "250"}, {}, gpu(1, percent=100, cores=250), id="cores raw"),
        pytest.param({}, {GPU: "1", MEM: "100"}, gpu(1, 100), id="requests where no limits"),
        pytest.param({GPU: "1"}, {GPU: "4", MEM: "100"}, gpu(1, 100), id="limits win one by one"),
    ],
)
def test_asks_of_gpu(limits: Quantities, requests: Quantities, ask: Ask) -> None:
    assert asks_of(container(limits, requests)) == (ask,)
    assert checked_asks_of(container(limits, requests)) == (ask,)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({}, id="nothing"),
        pytest.param({GPU: "0", MEM: "100"}, id="count 0"),
        pytest.param({MEM: "100"}, id="memory without a count"),
        pytest.param({"cpu/x": "1"}, id="other resources"),
        pytest.param({NEURON: "0", NEURON_CORE: "4"}, id="no Neuron device"),
    ],
)
def test_asks_of_nothing(limits: Quantities) -> None:
    assert asks_of(container(limits)) == ()
    assert checked_asks_of(container(limits)) == ()


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
        pytest.param({NEURON: "500m"}, NEURON, "whole number", id="half a device"),
        pytest.param({NEURON_CORE: "-1"}, NEURON_CORE, "negative", id="negative Neuron cores"),
    ],
)
def test_asks_of_bad_value_asks_for_nothing_and_the_check_names_it(
    limits: Quantities, resource: str, why: str
) -> None:
    assert asks_of(container(limits)) == ()
    with pytest.raises(WireError, match=why) as caught:
        checked_asks_of(container(limits))
    assert caught.value.key == resource


def test_checked_asks_of_memory_times_factor_too_large_is_a_wire_error() -> None:
    config = RequestConfig(memory_factor=256)
    asked = container({GPU: "1", MEM: "9000000"})

    assert asks_of(asked, NAMES, config) == ()
    with pytest.raises(WireError, match="too large"):
        checked_asks_of(asked, NAMES, config)


def test_checked_asks_of_negative_percentage_is_a_wire_error_where_hami_reads_unset() -> None:
    asked = container({GPU: "1", PCT: "-5"})

    assert asks_of(asked) == (gpu(1, percent=100),)
    with pytest.raises(WireError, match="negative"):
        checked_asks_of(asked)


def test_check_quantities_bad_request_beside_a_good_limit_is_found() -> None:
    with pytest.raises(WireError, match="whole number"):
        check_quantities(container({GPU: "1"}, {GPU: "500m"}))


@pytest.mark.parametrize(("percent", "is_bad"), [("0", 0), ("100", 0), ("101", 1), ("-1", 1)])
def test_check_percentage_outside_0_to_100_is_a_wire_error(percent: str, is_bad: int) -> None:
    asked = container({GPU: "1", PCT: percent})

    if is_bad:
        with pytest.raises(WireError, match="from 0 to 100"):
            check_percentage(asked)
    else:
        check_percentage(asked)


@pytest.mark.parametrize(
    ("limits", "config", "ask"),
    [
        pytest.param({}, RequestConfig(default_memory_mib=5000), gpu(1, 5000), id="memory"),
        pytest.param(
            {},
            RequestConfig(default_memory_mib=5000, memory_factor=10),
            gpu(1, 5000),
            id="default memory is not multiplied",
        ),
        pytest.param(
            {PCT: "50"}, RequestConfig(default_memory_mib=5000), gpu(1, percent=50), id="percentage"
        ),
        pytest.param({MEM: "10"}, RequestConfig(memory_factor=256), gpu(1, 2560), id="factor"),
        pytest.param({MEM: "10"}, RequestConfig(memory_factor=0), gpu(1, 10), id="factor below 1"),
        pytest.param(
            {}, RequestConfig(default_cores=20), gpu(1, percent=100, cores=20), id="cores"
        ),
        pytest.param(
            {CORES: "0"}, RequestConfig(default_cores=20), gpu(1, percent=100), id="cores 0 given"
        ),
    ],
)
def test_asks_of_defaults(limits: Quantities, config: RequestConfig, ask: Ask) -> None:
    assert asks_of(container({GPU: "1", **limits}), NAMES, config) == (ask,)


@pytest.mark.parametrize(
    ("limits", "old", "new"),
    [
        pytest.param({NEURON: "4"}, whole(4), whole(4), id="devices"),
        pytest.param({NEURON: "2", NEURON_CORE: "3"}, whole(2), whole(2), id="both"),
        pytest.param({NEURON_CORE: "1"}, neuron(1, 1), neuron(1, 1), id="one core"),
        pytest.param({NEURON_CORE: "2"}, neuron(1, 2), neuron(1, 2), id="one device"),
        pytest.param({NEURON_CORE: "4"}, neuron(2, 2), neuron(2, 2), id="two devices"),
        pytest.param({NEURON_CORE: "3"}, neuron(1, 2), None, id="three cores"),
        pytest.param({NEURON_CORE: "5"}, neuron(2, 2), None, id="five cores"),
        pytest.param({NEURON_CORE: "0"}, neuron(1, 1), None, id="no core"),
    ],
)
def test_asks_of_neuron_in_both_generations(limits: Quantities, old: Ask, new: Ask | None) -> None:
    assert asks_of(container(limits)) == (old,)
    assert asks_of(container(limits), NAMES, NEW) == ((new,) if new else ())


def test_checked_asks_of_odd_neuron_cores_in_2_10_names_what_is_allowed() -> None:
    with pytest.raises(WireError, match="1 or a multiple of 2"):
        checked_asks_of(container({NEURON_CORE: "3"}), NAMES, NEW)


def test_checked_asks_of_no_neuron_core_reserves_nothing() -> None:
    assert checked_asks_of(container({NEURON_CORE: "0"})) == ()


@pytest.mark.parametrize(
    ("limits", "config", "lost"),
    [
        ({NEURON_CORE: "5"}, RequestConfig(), 1),
        ({NEURON_CORE: "4"}, RequestConfig(), 0),
        ({NEURON_CORE: "1"}, RequestConfig(), 0),
        ({NEURON: "1", NEURON_CORE: "5"}, RequestConfig(), 0),
        ({NEURON_CORE: "5"}, NEW, 0),
        ({}, RequestConfig(), 0),
    ],
)
def test_rounded_neuron_cores_counts_what_rounding_takes(
    limits: Quantities, config: RequestConfig, lost: int
) -> None:
    assert rounded_neuron_cores(container(limits), NAMES, config) == lost


def test_asks_of_two_vendors_gives_one_ask_each() -> None:
    assert asks_of(container({GPU: "1", NEURON: "1"})) == (gpu(1, percent=100), whole(1))


def test_asks_of_renamed_resources_reads_only_the_new_names() -> None:
    names = ResourceNames(gpu="example.com/vgpu", gpu_memory="example.com/mem")

    assert asks_of(container({"example.com/vgpu": "1", "example.com/mem": "5"}), names) == (
        gpu(1, 5),
    )
    assert asks_of(container({GPU: "1"}), names) == ()


QUANTITIES = st.dictionaries(
    st.sampled_from([GPU, MEM, PCT, CORES, NEURON, NEURON_CORE]),
    st.text(max_size=6) | st.integers(-9, 2**40).map(str) | st.sampled_from(["1Ki", "5m", "1e9"]),
)
CONFIGS = st.builds(
    RequestConfig,
    default_memory_mib=st.integers(0, 9),
    default_cores=st.integers(0, 9),
    memory_factor=st.integers(0, 9),
    is_odd_neuron_rejected=st.booleans(),
)


@given(QUANTITIES, QUANTITIES, CONFIGS)
def test_asks_of_any_quantities_give_only_asks_that_can_be_served(
    limits: Quantities, requests: Quantities, config: RequestConfig
) -> None:
    for ask in asks_of(container(limits, requests), NAMES, config):
        assert ask.count >= 1
        assert ask.cores >= 0
        assert ask.memory_mib is None or ask.memory_mib > 0
        assert ask.memory_percent is None or 1 <= ask.memory_percent <= 100
        assert ask.vendor is Vendor.AWS_NEURON or (ask.memory_mib or ask.memory_percent)


@given(QUANTITIES, QUANTITIES, CONFIGS)
def test_checked_asks_of_where_it_answers_it_agrees_with_asks_of(
    limits: Quantities, requests: Quantities, config: RequestConfig
) -> None:
    asked = container(limits, requests)
    try:
        checked = checked_asks_of(asked, NAMES, config)
    except WireError:
        return

    assert set(checked) <= set(asks_of(asked, NAMES, config))
