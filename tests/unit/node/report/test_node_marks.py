"""The marks that a daemon publishes, and an operator's word that it takes off the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.model import Node, Uuid
from hami_node.node.report.hand_overs import HandOvers
from hami_node.node.report.node_marks import NodeMarks
from hami_node.record.ledger import ResizeNote
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.wire import names
from tests.fakes.cards import card, uuid
from tests.fakes.ledgers import an_entry
from tests.fakes.two_vendors import acme_card
from tests.unit.node.served import Served


class Kubelet:
    """Its socket of pod resources answers, or not."""

    def __init__(self, *, is_readable: bool) -> None:
        self._is_readable = is_readable

    def is_readable(self) -> bool:
        return self._is_readable


class Marked(Served):
    """A node with two cards, and its marks."""

    def __init__(self, folder: Path, *, is_readable: bool = True) -> None:
        super().__init__(folder)
        self.kubelet = Kubelet(is_readable=is_readable)  # type: ignore[assignment]
        self.gpu_backend.cards, self.card_backend.cards = (card(0),), (acme_card(),)
        self.scan()
        self.hand_overs = HandOvers(self)
        self.closed: dict[Uuid, str] = {}
        self.marks = NodeMarks(self, self.hand_overs, lambda: self.closed)

    def wanted(self, word: str | None = None) -> dict[str, str | None]:
        annotations = {} if word is None else {names.NODE_CLEAR_ERRORS: word}
        return dict(self.marks.desired(Node(name="n1", annotations=annotations), 0.0))


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(tmp_path)


@pytest.mark.parametrize("is_readable", [True, False])
def test_identity_mark_follows_the_socket(tmp_path: Path, is_readable: bool) -> None:
    marked = Marked(tmp_path, is_readable=is_readable)
    wanted = names.IDENTITY_POD_RESOURCES if is_readable else None
    assert marked.wanted()[names.NODE_IDENTITY] == wanted
    assert marked.wanted()[names.NODE_SIMULATED] == "true"


def test_versions_of_the_limiter_are_published_once_they_were_looked_at(marked: Marked) -> None:
    assert marked.wanted()[names.NODE_LIMITER] is None
    marked.hand_overs.limiters = (LimiterState(version="v2.10.0-0123456789ab"), LimiterState())
    assert marked.wanted()[names.NODE_LIMITER] == "v2.10.0-0123456789ab"


def test_closed_and_sick_cards_are_published_sorted_with_their_reasons(marked: Marked) -> None:
    assert marked.wanted()[names.NODE_CLOSED_CARDS] is None
    marked.closed = {Uuid("GPU-b"): "held by b", Uuid("ACME-0"): "held by a"}
    marked.gpu_backend.error = RuntimeError("gone")
    marked.scan()
    text = marked.wanted()[names.NODE_CLOSED_CARDS]
    sick = f'"{uuid(0)}":"the cards can\'t be read: RuntimeError"'
    assert text == f'{{"ACME-0":"held by a",{sick},"GPU-b":"held by b"}}'


def test_marks_that_are_only_true_while_it_serves_go_with_the_daemon(marked: Marked) -> None:
    gone = (names.NODE_IDENTITY, names.NODE_CLOSED_CARDS, names.NODE_HAND_OVER)
    assert marked.marks.shutdown(Node(name="n1")) == dict.fromkeys(gone)
    assert marked.marks.heartbeat(Node(name="n1"), 0.0) == {}


def test_resizes_are_not_told_before_the_record_is_read_nor_where_there_can_be_none(
    marked: Marked,
) -> None:
    marked.ledger.put(an_entry(resize=ResizeNote(id="a-1")))
    assert "a-1" in str(marked.wanted()[names.NODE_RESIZED])
    marked.recorded.clear()
    assert names.NODE_RESIZED not in marked.wanted()
    marked.vendor_cards = marked.vendor_cards[1:]
    marked.served = marked.served[1:]
    unable = NodeMarks(marked, marked.hand_overs, dict)
    assert unable.desired(Node(name="n1"), 0.0)[names.NODE_RESIZED] is None


# -- an operator's word --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("GPU-1", {"GPU-1"}),
        (" GPU-1 ,GPU-2,", {"GPU-1", "GPU-2"}),
        ("all", None),
        ("GPU-1,all", None),
        ("", set()),
        ("rubbish;" * 100, {"rubbish;" * 100}),
    ],
)
def test_word_reaches_every_vendor_and_goes(
    marked: Marked, text: str, asked: set[str] | None
) -> None:
    assert marked.wanted(text)[names.NODE_CLEAR_ERRORS] is None
    assert marked.gpu_backend.cleared == marked.card_backend.cleared == [asked]


def test_word_that_cant_be_taken_off_acts_once(marked: Marked) -> None:
    for _ in range(5):
        marked.wanted("GPU-1")
    assert len(marked.gpu_backend.cleared) == 1
    marked.wanted(None)
    assert len(marked.gpu_backend.cleared) == 1
    marked.wanted("GPU-1")
    assert len(marked.gpu_backend.cleared) == 2
