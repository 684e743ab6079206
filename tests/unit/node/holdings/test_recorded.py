"""What an entry's texts say is what was granted and answered, to the byte."""

from __future__ import annotations

import pytest

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Grant, Uuid
from hami_node.node.holdings.recorded import answer_of, answer_text
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.vendors.on_node.answer import ContainerResponse, Mount
from tests.fakes.cards import uuid
from tests.fakes.ledgers import CODEC, an_entry

CARD = Uuid(uuid(0))
PLAIN = Grant(uuid=CARD, vendor=NVIDIA, memory_mib=1000, cores=30)
OTHER = Grant(uuid=Uuid(uuid(1)), vendor=NVIDIA, memory_mib=0, cores=0)
OLD_MIG = Grant(
    uuid=CARD, vendor=NVIDIA, memory_mib=1000, cores=0, part=TemplateSlot(template=1, slot=2)
)
NEW_MIG = Grant(
    uuid=CARD,
    vendor=NVIDIA,
    memory_mib=1000,
    cores=0,
    part=MigInstance(profile="1g.10gb", placement=MigPlacement(start=2, size=1)),
)


@pytest.mark.parametrize(
    "grants",
    [(PLAIN,), (PLAIN, OTHER), (OLD_MIG,), (NEW_MIG,), (OTHER, NEW_MIG)],
    ids=["one", "two", "mig-2.9", "mig-2.10", "mixed"],
)
def test_grants_are_read_as_they_were_granted(grants: ContainerGrants) -> None:
    assert CODEC.decode("NVIDIA", *CODEC.encode("NVIDIA", grants)) == grants


@pytest.mark.parametrize("text", ["", "rubbish,,:", f"{uuid(0)},NVIDIA,1,1:;;"])
def test_grants_that_are_no_containers_are_an_error(text: str) -> None:
    with pytest.raises(WireError):
        CODEC.decode("NVIDIA", text, "")


def test_grants_of_a_vendor_that_is_not_served_are_none() -> None:
    assert CODEC.decode("Other", "x,Other,1,1:;", "") == ()
    assert CODEC.encode("Other", (PLAIN,)) == ("", "")


def test_answer_is_read_as_it_was_given() -> None:
    answer = ContainerResponse(
        envs=(("A", "1"), ("Ä", "\n")),
        mounts=(Mount(container_path="/a", host_path="/b", is_read_only=True),),
        cdi_devices=("x.com/gpu=0",),
    )
    assert answer_of(an_entry(answer=answer_text(answer))) == answer


@pytest.mark.parametrize("text", ["", "{", "[]", '{"envs":1}'])
def test_answer_that_is_unknown_is_none(text: str) -> None:
    assert answer_of(an_entry(answer=text)) is None
