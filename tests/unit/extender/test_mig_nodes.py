"""Nodes in MIG mode under HAMi 2.5 to 2.9: the geometries come from the configuration."""

from __future__ import annotations

import json

import pytest

from hami_node.config.files import read_device_config
from hami_node.engine.quota import Limits
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.pods import Box
from tests.reliability import shows
from tests.unit.extender.desk import Desk

# A part of the device-config.yaml of HAMi 2.9's chart.
CONFIG = """
nvidia:
  knownMigGeometries:
    - models: ["A30"]
      allowedGeometries:
        - - {name: 1g.6gb, core: 25, memory: 6144, count: 4}
    - models: ["A100-SXM4-40GB", "A100-40GB-PCIe"]
      allowedGeometries:
        - - {name: 1g.5gb, core: 14, memory: 5120, count: 7}
        - - {name: 1g.5gb, core: 14, memory: 5120, count: 1}
          - {name: 2g.10gb, core: 28, memory: 10240, count: 3}
        - - {name: 3g.20gb, core: 42, memory: 20480, count: 2}
        - - {name: 7g.40gb, core: 100, memory: 40960, count: 1}
    - models: ["H100"]
      allowedGeometries:
        - - {name: 3g.40gb, memory: 40960, count: 2}
"""
WITHOUT_GEOMETRIES = "nvidia: {}"
CARD = "GPU-12345678-1234-1234-1234-123456780000"
# What the plugins of both releases registered.
CSV = f"{CARD},10,40960,100,NVIDIA-NVIDIA A100-SXM4-40GB,0,true,0,mig:"
JSON = (
    f'[{{"id":"{CARD}","count":10,"devmem":40960,"devcore":100,"type":"NVIDIA A100-SXM4-40GB",'
    '"mode":"mig","health":true,"devicepairscore":{}}]'
)
PODS = tuple(enumerate((9000, 4000, 9000, 9000, 4000)))
FORMS = pytest.mark.parametrize("register", [CSV, JSON], ids=["2.7", "2.9"])


def desk_with(register: str, config: str = CONFIG, compat: str = "2.8") -> Desk:
    text = f'{config}\nhami-node: {{compat: "{compat}"}}\n'
    found = read_device_config(text.encode(), "device-config.yaml", SETTINGS_BLOCKS)
    assert found.errors == ()
    desk = Desk(values=found.values)
    desk.add_node("n")
    desk.kube.merge_patch_node("n", {nvidia_names.NODE_REGISTER: register})
    desk.sync()
    return desk


def granted(desk: Desk, name: str, memory_mib: int) -> str:
    """Filter and bind a pod: its grant, or why it got none."""
    desk.add_pod(name, memory_mib=memory_mib)
    desk.sync()
    answer: Json = desk.ask(name, "n")
    if not answer["NodeNames"]:
        refused: dict[str, str] = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        return refused["n"]
    desk.sync()
    assert desk.bind(name, "n") == ""
    desk.sync()
    return desk.notes_of(name)[nvidia_names.POD_ALLOCATED].strip(":;")


@FORMS
def test_seed_002_get_node_devices_templates_are_the_configurations(register: str) -> None:
    """The grants are those that HAMi 2.9 wrote for the same pods on the same card."""
    desk = desk_with(register)
    assert [granted(desk, f"p{memory_mib}-{at}", memory_mib) for at, memory_mib in PODS] == [
        f"{CARD}[1-1],NVIDIA,10240,28",
        f"{CARD}[1-0],NVIDIA,5120,14",
        f"{CARD}[1-2],NVIDIA,10240,28",
        f"{CARD}[1-3],NVIDIA,10240,28",
        "1/1 CardNotFoundCustomFilterRule",
    ]


@FORMS
@pytest.mark.parametrize(
    ("compat", "reason"),
    [("2.8", "CardNotFoundCustomFilterRule"), ("2.10", "CardMigTopologyInfeasible")],
)
@pytest.mark.parametrize(
    ("config", "memory_mib"),
    [
        pytest.param(CONFIG, 40961, id="no template holds it"),
        pytest.param(WITHOUT_GEOMETRIES, 1000, id="no geometries"),
        pytest.param(CONFIG.replace("A100", "A200"), 1000, id="none for the model"),
    ],
)
def test_seed_000_6_1_card_without_a_template_is_refused(
    register: str, config: str, memory_mib: int, compat: str, reason: str
) -> None:
    desk = desk_with(register.replace("40960", "50000"), config, compat)
    assert granted(desk, "p", memory_mib) == f"1/1 {reason}"
    assert f"1 nodes {reason}(n)" in desk.notes[-1].message


@shows(
    "E3",
    fault="the rounded cores of MIG instances sum up to more than the card has (7 x 15 of 100)",
    happens="filter and bind judge alike: what fits is bound",
)
def test_rounded_up_cores_of_instances_never_stop_a_bind() -> None:
    """7 x 15 cores of 100: HAMi 2.10 rounds each instance's share up."""
    profile = {
        "name": "1g.5gb",
        "memoryMB": 4864,
        "core": 15,
        "sliceCount": 1,
        "placements": [{"start": start, "size": 1} for start in range(7)],
    }
    (registered,) = json.loads(JSON)
    desk = desk_with(json.dumps([registered | {"migProfiles": [profile]}]), compat="2.10")
    answers = [granted(desk, f"p{at}", 1000) for at in range(7)]
    assert answers == [f"{CARD},NVIDIA,4864,15"] * 7


# -- quotas ----------------------------------------------------------------------------------------
PROFILES = [
    {
        "name": name,
        "memoryMB": memory_mib,
        "core": cores,
        "sliceCount": slices,
        "placements": [{"start": start, "size": size} for start in starts],
    }
    for name, memory_mib, cores, slices, size, starts in (
        ("1g.5gb", 4864, 15, 1, 1, range(7)),
        ("2g.10gb", 9856, 29, 2, 2, (0, 2, 4)),
    )
]


def _cards(count: int, **changes: object) -> str:
    (registered,) = json.loads(JSON)
    return json.dumps(
        [registered | {"id": f"GPU-{at}", "index": at} | changes for at in range(count)]
    )


def _used(desk: Desk) -> tuple[int, int]:
    quota = desk.state.in_use().quotas["default"]
    return quota.memory_used_mib, quota.cores_used


@shows(
    "E3",
    fault="pods ask for 1 MiB of cards in MIG mode, in a namespace with a quota",
    happens="the instances that they would get are what is checked, as they are what counts",
)
@pytest.mark.parametrize(
    ("compat", "profiles", "instance"),
    [("2.8", None, (5120, 14)), ("2.10", None, (5120, 14)), ("2.10", PROFILES, (4864, 15))],
    ids=["2.8", "2.10 with geometries", "2.10"],
)
def test_quota_counts_the_instance_that_is_given(
    compat: str, profiles: object, instance: tuple[int, int]
) -> None:
    desk = desk_with(_cards(4, migProfiles=profiles), compat=compat)
    desk.state.set_quota("default", "q", Limits(memory_mib=6000, cores=20))
    desk.add_pod("greedy", Box(cards=28, memory_mib=1))
    desk.sync()
    assert desk.choose("greedy", "n") == ""
    memory_mib, cores = instance
    assert (
        "the ResourceQuota of namespace default: 0 of 6000 MiB and 0 of 20 % of cores are in use, "
        f"and on n the pod would count {28 * memory_mib} MiB and {28 * cores} %, or more"
    ) in desk.notes[-1].message
    assert granted(desk, "one", 1).endswith(f",NVIDIA,{memory_mib},{cores}")
    assert _used(desk) == instance
    assert "ResourceQuotaNotFit" in granted(desk, "two", 1)
    desk.delete_pod("one")
    desk.sync()
    assert granted(desk, "three", 1).endswith(f",NVIDIA,{memory_mib},{cores}")


LARGE_FIRST = """
nvidia:
  knownMigGeometries:
    - models: ["A100-SXM4-40GB"]
      allowedGeometries:
        - - {name: 7g.40gb, core: 100, memory: 40960, count: 1}
        - - {name: 3g.20gb, core: 42, memory: 20480, count: 1}
          - {name: 1g.5gb, core: 14, memory: 5120, count: 2}
"""


def test_smaller_instance_is_found_where_the_first_is_beyond_the_quota() -> None:
    desk = desk_with(_cards(1), LARGE_FIRST)
    desk.state.set_quota("default", "q", Limits(memory_mib=6000))
    assert granted(desk, "p", 1000) == "GPU-0[1-1],NVIDIA,5120,14"


def test_card_that_is_not_in_mig_mode_is_found_where_instances_are_beyond_the_quota() -> None:
    by_mode = [json.loads(_cards(1)), json.loads(_cards(2, mode="hami-core"))[1:]]
    for order in (by_mode, by_mode[::-1]):
        desk = desk_with(json.dumps([card for cards in order for card in cards]))
        desk.state.set_quota("default", "q", Limits(memory_mib=3000))
        assert granted(desk, "p", 3000) == "GPU-1,NVIDIA,3000,0"
        assert _used(desk) == (3000, 0)
