from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.config.settings import plain
from hami_node.config.sources import ConfigSources, Resolved, resolve
from hami_node.errors import WireError
from hami_node.model import Container, Device, Grant, Uuid
from hami_node.setting_types import Role
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import cards_in_shares
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.settings_block import NVIDIA_SETTINGS
from hami_node.vendors.nvidia.shares import CardShares, share_of, share_resource, shares_in
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.cards import card, uuid

QUARTER, THIRD = "nvidia.com/gpu-1of4", "nvidia.com/gpu-1of3"


# -- the setting -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (4, {"*": 4}),
        ("4", {"*": 4}),
        (" 4 ", {"*": 4}),
        ("0=2,*=4", {"0": 2, "*": 4}),
        (f" {uuid(0)} = 1 , 1 = 100 ", {uuid(0): 1, "1": 100}),
        ({"0": 2, 1: 3}, {"0": 2, "1": 3}),
    ],
)
def test_read_every_form(written: object, wanted: dict[str, int]) -> None:
    found = CardShares.read(written)
    assert found == CardShares(wanted)
    assert CardShares.read(found.plain()) == found


@pytest.mark.parametrize(
    "written",
    [
        0,
        101,
        -1,
        True,
        None,
        2.0,
        "",
        "x",
        "²",
        "0=",
        "=4",
        "0=2,0=3",
        "00=2",
        "0=2;1=3",
        "9" * 5000,
        {},
        {"0": "2"},
        {"0": True},
        {True: 2},
        {"": 2},
        {" 0": 2},
        {0: 1, "0": 2},
        {-1: 2},
        [4],
        {str(i): 2 for i in range(257)},
    ],
)
def test_read_anything_else_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match=r"^(no|a) "):
        CardShares.read(written)


def test_shares_of_a_card_by_uuid_then_number_then_the_rest() -> None:
    shares = CardShares({uuid(0): 1, "0": 2, "1": 3})
    assert [shares.of(card(i)) for i in range(3)] == [1, 3, None]
    assert CardShares({"1": 3, "*": 5}).of(card(2)) == 5
    assert shares.sizes == (1, 2, 3)


def resolved(tmp_path: Path, yaml: str = "", nodes: str = "", **flags: str) -> Resolved:
    device_config, node_config = tmp_path / "device-config.yaml", tmp_path / "config.json"
    device_config.write_text(yaml or "hami-node: {}", encoding="utf-8")
    node_config.write_text(nodes or '{"nodeconfig": []}', encoding="utf-8")
    return resolve(
        ConfigSources(
            blocks=SETTINGS_BLOCKS,
            flags={"node_name": "n1", **flags},
            config_file=device_config,
            node_config_file=node_config,
        )
    )


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        ({"yaml": "hami-node: {standalone: true, standalone-shares: 2}"}, {"*": 2}),
        ({"yaml": 'hami-node: {standalone: true, standalone-shares: {0: 2, "*": 8}}'}, None),
        ({"nodes": '{"nodeconfig": [{"name": "n1", "standalone": true}]}'}, {"*": 4}),
        (
            {
                "nodes": '{"nodeconfig": [{"name": "n*", "standalone": true, '
                '"standaloneshares": {"0": 2, "*": 8}}]}'
            },
            None,
        ),
        ({"standalone": "true", "standalone_shares": "0=2,*=8"}, None),
    ],
    ids=["yaml", "yaml-by-card", "node", "node-by-card", "flag"],
)
def test_setting_from_every_source(
    tmp_path: Path, sources: dict[str, str], wanted: dict[str, int] | None
) -> None:
    found = resolved(tmp_path, **sources)
    assert found.errors == ()
    nvidia = found.settings.of(NvidiaSettings)
    assert nvidia.standalone
    assert nvidia.standalone_shares == CardShares(wanted or {"0": 2, "*": 8})
    assert plain(found.settings)["standalone-shares"] == nvidia.standalone_shares.plain()


def test_setting_that_is_wrong_names_what_is_allowed(tmp_path: Path) -> None:
    (error,) = resolved(tmp_path, standalone_shares="0=0").errors
    assert "--standalone-shares" in str(error)
    assert "from 1 to 100" in str(error)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"memory_scaling": "1.5"}, "memory-scaling"),
        ({"core_scaling": "2"}, "core-scaling"),
        ({"core_scaling": "0.03"}, "standalone-shares"),
        ({"resource_count": f"nvidia.com/{'x' * 60}"}, "resource-count"),
    ],
)
def test_what_can_not_be_together_is_refused(
    tmp_path: Path, flags: dict[str, str], named: str
) -> None:
    assert resolved(tmp_path, **flags).errors == ()
    (error,) = resolved(tmp_path, standalone="true", **flags).errors
    assert named in str(error)


def test_other_ways_of_sharing_are_refused() -> None:
    values = NvidiaSettings(standalone=True, operating_mode=Mode.MIG)
    (error,) = NVIDIA_SETTINGS.problems(values, Role.DAEMON)
    assert "operating-mode" in str(error)


@pytest.mark.parametrize("role", Role)
def test_resource_that_a_scheduler_places_can_not_be_named_like_a_share(role: Role) -> None:
    values = NvidiaSettings(resource_count="example.com/gpu-1of4")
    (error,) = NVIDIA_SETTINGS.problems(values, role)
    assert "-1ofN" in str(error)


# -- resources -------------------------------------------------------------------------------------
def test_names_say_the_size() -> None:
    assert share_resource("nvidia.com/gpu", 4) == QUARTER
    sizes = {
        QUARTER: 4,
        "nvidia.com/gpu-1of100": 100,
        "nvidia.com/gpu-1of101": 0,
        "nvidia.com/gpu-1of0": 0,
        "nvidia.com/gpu-1of04": 0,
        "nvidia.com/gpu": 0,
        "nvidia.com/gpu-1of4-1of2": 0,
        "nvidia.com/gpux-1of4": 0,
        "example.com/gpu-1of4": 0,
    }
    assert {name: shares_in(name, "nvidia.com/gpu") for name in sizes} == sizes


def test_served_one_resource_for_each_size_and_each_card_in_one_of_them() -> None:
    assert NVIDIA_SPEC.served is not None
    settings = NvidiaSettings(
        standalone=True, standalone_shares=CardShares({"0": 2, "*": 4}), filter_indexes=(3,)
    )
    cards = tuple(card(i, slots=1) for i in range(4))
    served = {
        each.name: [(it.index, it.slots, it.cores) for it in each.offered(cards, settings)]
        for each in NVIDIA_SPEC.served.resources(settings, cards)
    }
    assert served == {
        "nvidia.com/gpu-1of2": [(0, 2, 100)],
        QUARTER: [(1, 4, 100), (2, 4, 100)],
    }


def test_cards_that_are_not_named_are_left_alone() -> None:
    settings = NvidiaSettings(standalone=True, standalone_shares=CardShares({"1": 4}))
    assert [it.index for it in cards_in_shares((card(0), card(1)), settings, 4)] == [1]


# -- grants ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("shares", [1, 2, 3, 7, 64, 99, 100])
@pytest.mark.parametrize("memory_mib", [1000, 16384, 40960, 81559])
def test_shares_together_never_exceed_the_card_and_all_are_the_whole(
    shares: int, memory_mib: int
) -> None:
    whole = card(0, memory_mib=memory_mib)
    assert share_of(whole, shares, shares) == (memory_mib, 100)
    for first in range(1, shares):
        first_part, rest = share_of(whole, first, shares), share_of(whole, shares - first, shares)
        assert first_part[0] + rest[0] <= memory_mib
        assert first_part[1] + rest[1] <= 100
        assert min(first_part) >= 1


def ids(counts: dict[Uuid, int]) -> list[str]:
    """So many device IDs of each card."""
    return [f"{uuid}-{i}" for uuid, count in counts.items() for i in range(count)]


def test_fixed_grants_one_for_each_card_by_number() -> None:
    cards = {it.uuid: it for it in (card(0), card(1, memory_mib=1001))}
    found = nvidia_protocol().fixed_grants(THIRD, ids({uuid(1): 2, uuid(0): 1}), cards)
    assert found == (
        Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=13653, cores=33),
        Grant(uuid=uuid(1), vendor=NVIDIA, memory_mib=667, cores=66),
    )


@pytest.mark.parametrize(
    ("resource", "counts", "cards"),
    [
        (QUARTER, {uuid(0): 1}, ()),
        (QUARTER, {uuid(0): 5}, (card(0),)),
        (QUARTER, {uuid(0): 0}, (card(0),)),
        (QUARTER, {uuid(0): 1}, (card(0, memory_mib=3),)),
        (QUARTER, {uuid(0): 1}, (card(0, cores=3),)),
        ("nvidia.com/gpu", {uuid(0): 1}, (card(0),)),
    ],
    ids=["no-card", "too-many", "none", "no-memory", "no-cores", "no-share"],
)
def test_fixed_grants_what_would_be_no_limit_or_no_share_is_refused(
    resource: str, counts: dict[Uuid, int], cards: tuple[Device, ...]
) -> None:
    by_uuid = {it.uuid: it for it in cards}
    with pytest.raises(WireError, match=resource):
        nvidia_protocol().fixed_grants(resource, ids(counts), by_uuid)


@pytest.mark.parametrize(
    "beside", ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores", THIRD]
)
def test_beside_shares_nothing_of_the_vendor_can_be_asked_for(beside: str) -> None:
    asked = Container(name="main", limits={QUARTER: "1", beside: "1", "cpu": "1", "a.b/c": "1"})
    with pytest.raises(WireError, match=beside):
        nvidia_protocol().refuse_beside(asked, QUARTER)
    nvidia_protocol().refuse_beside(
        Container(name="x", limits={QUARTER: "1", beside: "0"}), QUARTER
    )
