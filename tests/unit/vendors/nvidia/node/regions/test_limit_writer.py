from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.errors import RegionError, RegionNotReady
from hami_node.model import Container, Grant, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.node.regions.limit_writer import NvidiaLimitWriter
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Mount, Slice
from hami_node.vendors.on_node.limits import CardLimit
from tests.fakes.cards import card, uuid
from tests.fakes.limited import LimitedContainer

CARDS = {item.uuid: item for item in (card(0), card(1))}
ENV = {
    f"{names.ENV_MEMORY_LIMIT}_0": "1000m",
    f"{names.ENV_MEMORY_LIMIT}_1": "2000m",
    names.ENV_CORE_LIMIT: "30",
}
PRELOAD = Mount(container_path="/etc/ld.so.preload", host_path="/h", is_read_only=True)


def grant(memory_mib: int, cores: int = 30, at: int = 0) -> Grant:
    return Grant(uuid=uuid(at), vendor=NVIDIA, memory_mib=memory_mib, cores=cores)


def part(*grants: Grant, **env: str) -> Slice:
    return Slice(pod_uid="u", container=Container(name="c", env=env), grants=grants, cards=CARDS)


@pytest.fixture
def box(tmp_path: Path) -> LimitedContainer:
    return LimitedContainer(tmp_path, "u", "c")


@pytest.fixture
def writer(tmp_path: Path) -> NvidiaLimitWriter:
    settings = NvidiaSettings(hook_path=tmp_path)
    return NvidiaLimitWriter(lambda: settings)


def test_cards_are_found_by_uuid_whatever_their_order(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    box.start(ENV, (uuid(1), uuid(0)))  # the container numbers them the other way round
    box.allocate(7, place=0)
    both = part(grant(500, at=0), grant(900, at=1))
    assert [(item.uuid, item.used_mib) for item in writer.read(both)] == [
        (uuid(0), 0),
        (uuid(1), 7),
    ]
    writer.write(both)
    assert (box.limit_mib(0), box.limit_mib(1)) == (900, 500)
    assert [item.memory_mib for item in writer.read(both)] == [500, 900]


def test_limits_are_written_as_the_variables_would_mean_them(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    box.start(ENV, (uuid(0), uuid(1)))
    writer.write(part(grant(0, cores=0), grant(5, cores=40, at=1)))
    whole = CARDS[uuid(0)].memory_mib
    assert (box.limit_mib(0), box.limit_mib(1)) == (whole, 5)
    assert (box.cores(0), box.cores(1)) == (100, 100)
    wanted = writer.wanted(part(grant(5, cores=40)))
    assert wanted == (CardLimit(uuid=uuid(0), memory_mib=5, cores=40),)


def test_nothing_is_written_that_stands_there(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    box.start(ENV, (uuid(0),))
    same = part(grant(1000))
    assert [item.memory_mib for item in writer.read(same)] == [1000]
    box.path.chmod(0o444)
    writer.write(same)
    assert box.limit_mib() == 1000


def test_file_without_cards_is_not_ready_and_one_with_others_is_wrong(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    with pytest.raises(RegionNotReady):
        writer.read(part(grant(1)))
    box.start(ENV, ())
    with pytest.raises(RegionNotReady, match="names no card yet"):
        writer.write(part(grant(1)))
    box.path.unlink()
    box.start(ENV, (Uuid("GPU-other"),))
    with pytest.raises(RegionError, match="does not name"):
        writer.write(part(grant(1)))
    assert box.limit_mib() == 1000


def test_file_without_uuids_is_in_the_order_of_the_variables(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    box.start(ENV, (Uuid(""), Uuid("")))
    writer.write(part(grant(900, at=1), grant(500, at=0)))
    assert (box.limit_mib(0), box.limit_mib(1)) == (500, 900)
    with pytest.raises(RegionError, match="does not name"):
        writer.write(part(grant(500)))  # as many cards as the container has, or none


@pytest.mark.parametrize("named", [(), ("GPU-x",), ("", "", uuid(0)), ("GPU-x", "", uuid(0))])
def test_first_cards_are_kept_whatever_the_container_names(
    box: LimitedContainer, writer: NvidiaLimitWriter, named: tuple[str, ...]
) -> None:
    box.start(ENV, named)
    assert writer.keep(part(grant(500)))
    assert not writer.keep(part(grant(500)))
    box.tamper(9000)
    assert writer.keep(part(grant(500)))
    assert box.limit_mib(0) == 500
    if uuid(0) in named:
        assert box.limit_mib(2) == 500


def test_cards_in_another_order_are_kept_where_they_are(
    box: LimitedContainer, writer: NvidiaLimitWriter
) -> None:
    box.start(ENV, (uuid(1), uuid(0)))
    both = part(grant(500, at=0), grant(900, at=1))
    assert writer.keep(both)
    assert not writer.keep(both)
    assert (box.limit_mib(0), box.limit_mib(1)) == (900, 500)


@pytest.mark.parametrize(
    ("env", "answer", "why"),
    [
        ({}, None, ""),
        ({}, ContainerResponse(envs=(), mounts=(PRELOAD,)), ""),
        ({}, ContainerResponse(envs=()), "started without the limiter"),
        ({names.ENV_DISABLE_CONTROL: "true"}, None, "runs without limits"),
        (
            {},
            ContainerResponse(envs=((names.ENV_DRIVER_MEMORY_LIMIT, "1"),), mounts=(PRELOAD,)),
            "the driver limits the memory",
        ),
    ],
)
def test_container_that_nothing_of_ours_limits_is_told(
    writer: NvidiaLimitWriter, env: dict[str, str], answer: ContainerResponse | None, why: str
) -> None:
    found = writer.problem(part(grant(1), **env), answer)
    assert why in found
    assert bool(found) == bool(why)
