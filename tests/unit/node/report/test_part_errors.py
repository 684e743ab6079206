"""Driver errors that name a part of a card: whose they are, and how often that is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.node.report.part_errors import (
    EVENT,
    MAX_KINDS,
    PAUSE_S,
    PartErrorLabels,
    PartErrors,
)
from hami_node.ports import PartError
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.on_node.parts import PartsState
from tests.fakes.cards import uuid
from tests.fakes.divided_node import POD, DividedNode, own_part

OURS = own_part(7, 0)


def error_of(
    *numbers: int, code: int = 94, part: str = "", count: int = 1, why: str = "XID; delete it"
) -> PartError:
    return PartError(card=uuid(0), numbers=numbers, uuid=part, code=code, count=count, why=why)


class Looks(DividedNode):
    """A node, and a look at a time."""

    def __init__(self, tmp_path: Path, *own: PartView) -> None:
        super().__init__(tmp_path, *own)
        self.errors = PartErrors(self)

    def look(self, *errors: PartError) -> dict[PartErrorLabels, int]:
        self.backend.of_parts = errors
        self.errors.look()
        return dict(self.errors.counts)


@pytest.fixture
def looks(tmp_path: Path) -> Looks:
    return Looks(tmp_path)


def labels(**changes: str) -> PartErrorLabels:
    fields = PartErrorLabels("ml", "train", "main", uuid(0), OURS.uuid, "94", "false")
    return fields._replace(**changes)


def test_error_is_said_to_the_pod_that_has_the_part_and_counted_for_it(looks: Looks) -> None:
    assert looks.look(error_of(7, 0, part=OURS.uuid, count=3)) == {labels(): 3}
    (note,) = looks.notes
    assert (note.kind, note.namespace, note.name, note.uid) == ("Pod", "ml", "train", POD.uid)
    assert (note.reason, note.is_warning) == (EVENT, True)
    assert note.message == (f"container main, 1g.5gb {OURS.uuid} of card 0: XID; delete it")


def test_one_event_for_a_storm_and_another_after_a_while(looks: Looks) -> None:
    for _ in range(100):
        looks.look(error_of(7, 0, count=1000))
    assert len(looks.notes) == 1
    looks.look(error_of(7, 0, code=95))
    assert len(looks.notes) == 2, "another error is news"
    looks.time.advance(PAUSE_S)
    assert looks.look(error_of(7, 0))[labels()] == 100_001
    assert len(looks.notes) == 3


def test_harmless_error_is_counted_and_not_said(looks: Looks) -> None:
    assert looks.look(error_of(7, 0, code=31)) == {labels(xid="31", ignored="true"): 1}
    assert looks.notes == []


def test_error_of_the_whole_group_is_that_of_each_part_in_it(tmp_path: Path) -> None:
    other = own_part(7, 0, numbers=(7, 1), uuid="MIG-second", position=1)
    looks = Looks(tmp_path, OURS, other)
    found = looks.look(error_of(7))
    assert found == {labels(): 1, labels(part="MIG-second"): 1}


def test_part_of_somebody_else_is_nobodys_pod(looks: Looks) -> None:
    found = looks.look(error_of(8, 0))
    (seen,) = found
    assert (seen.namespace, seen.pod, seen.container) == ("", "", "")
    assert seen.part.startswith("MIG-00000008")
    assert looks.notes == []


def test_unknown_part_is_counted_for_the_card_and_marks_nobody(looks: Looks) -> None:
    empty = labels(namespace="", pod="", container="", part="")
    assert looks.look(error_of(99, 0), error_of()) == {empty: 2}
    assert looks.notes == []


def test_numbers_that_were_used_again_mark_no_other_pod(looks: Looks) -> None:
    found = looks.look(error_of(7, 0, part="MIG-before"))
    assert [seen.pod for seen in found] == [""]
    assert looks.notes == []


def test_part_that_is_lost_is_not_meant(tmp_path: Path) -> None:
    lost = replace(OURS, state=PartState.LOST, uuid="MIG-lost")
    found = Looks(tmp_path, lost).look(error_of(7, 0))
    assert "MIG-lost" not in [seen.part for seen in found]


def test_pod_that_is_gone_gets_no_event(looks: Looks) -> None:
    looks.cluster.show()
    found = looks.look(error_of(7, 0))
    assert [seen.part for seen in found] == [OURS.uuid]
    assert looks.notes == []


def test_series_go_with_their_parts(looks: Looks) -> None:
    looks.look(error_of(7, 0), error_of(99, 0))
    looks.parts.on_record = PartsState()
    looks.backend.cards = ()
    looks.owner.scan()
    assert [seen.part for seen in looks.look()] == [""]


def test_number_of_series_is_bounded(looks: Looks) -> None:
    flood = [error_of(7, 0, code=1000 + code) for code in range(2 * MAX_KINDS)]
    found = looks.look(*flood)
    assert len(found) == MAX_KINDS + 1
    assert sum(found.values()) == 2 * MAX_KINDS
