"""What containers use of parts of cards: by the driver's numbers, for whoever has the part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.node.usage.parts import uses_of_parts
from hami_node.ports import ContainerUse, HostUse, PartUse
from hami_node.vendors.divided import DividedCards
from tests.fakes.cards import uuid
from tests.fakes.divided_node import POD, DividedNode, own_part

OURS = own_part(7, 0)
READ = PartUse(
    uuid=OURS.uuid, numbers=(7, 0), memory_bytes=1000, limit_bytes=5000, processes=frozenset({4, 5})
)
NAMES = {POD.uid: (POD.namespace, POD.name)}


@pytest.fixture
def divided(tmp_path: Path) -> DividedCards:
    return DividedNode(tmp_path).owner.divided()


def uses(divided: DividedCards, *parts: PartUse) -> Iterator[ContainerUse]:
    return uses_of_parts({uuid(0): HostUse(parts=parts)}, divided, NAMES)


def test_memory_of_the_instance_is_its_containers(divided: DividedCards) -> None:
    (use,) = uses(divided, READ)
    assert (use.namespace, use.pod, use.container) == ("ml", "train", "main")
    assert (use.uuid, use.index, use.part) == (uuid(0), 0, OURS.uuid)
    assert (use.memory_bytes, use.limit_bytes, use.processes) == (1000, 5000, 2)
    assert (use.core_percent, use.core_limit_percent, use.last_kernel_s) == (None, None, None)


@pytest.mark.parametrize(
    "read",
    [
        replace(READ, uuid="MIG-other"),
        replace(READ, numbers=(6, 0)),
        replace(READ, memory_bytes=None),
        replace(READ, uuid="MIG-00000008-0000-5000-8000-000000000000", numbers=(8, 0)),
    ],
    ids=["number-used-again", "other-number", "not-told", "of-somebody-else"],
)
def test_what_is_not_certainly_a_containers_is_nobodys(
    divided: DividedCards, read: PartUse
) -> None:
    assert list(uses(divided, read)) == []


def test_pod_that_nobody_knows_has_no_use(divided: DividedCards) -> None:
    host = {uuid(0): HostUse(parts=(READ,))}
    assert list(uses_of_parts(host, divided, {})) == []
