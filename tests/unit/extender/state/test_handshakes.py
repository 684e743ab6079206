from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.errors import KubeError
from hami_node.extender.state.handshakes import ANSWER_EVERY_S, MAX_WRITES, HandshakeKeeper
from hami_node.model import ContainerKind, Node
from hami_node.simulate.store import Json
from hami_node.vendors.holding import keeps_inits
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_csv9, encode_json
from hami_node.wire import names
from hami_node.wire.objects import decode_node
from tests.fakes.extender_kube import FakeExtenderKube
from tests.fakes.pods import Box, Part, layout, pod_body, reservation
from tests.reliability import shows
from tests.unit.extender.desk import Desk, card

REPORTED = "Reported 2026-11-21 00:35:42.504460835 +0000 UTC m=+60.1"


class Talk:
    """One node that polls, of a csv generation unless said otherwise."""

    def __init__(
        self, *, is_csv: bool = True, is_leading: bool = True, selector: tuple[str, ...] = ()
    ) -> None:
        self.desk = Desk("n1", values={"node_label_selector": selector})
        cards = (card("n1", 0),)
        self.note(nvidia_names.NODE_REGISTER, encode_csv9(cards) if is_csv else encode_json(cards))
        self.keeper = HandshakeKeeper(
            self.desk.state, self.desk.kube, self.desk.clock, lambda: is_leading
        )

    def note(self, key: str, text: str) -> None:
        self.desk.kube.merge_patch_node("n1", {key: text})
        self.desk.sync()

    def say(self, text: str) -> None:
        self.note(nvidia_names.NODE_HANDSHAKE, text)

    def look(self, after_s: float = 15.0) -> str:
        """Look after some time; the word that stands then."""
        self.desk.clock.advance(after_s)
        self.keeper.look()
        self.desk.sync()
        node = decode_node(self.desk.kube.store.read("nodes", "", "n1"))
        return node.annotations.get(nvidia_names.NODE_HANDSHAKE, "").partition("_")[0]

    @property
    def notes(self) -> Mapping[str, str]:
        """The node's annotations."""
        return self.node.annotations

    @property
    def node(self) -> Node:
        return decode_node(self.desk.kube.store.read("nodes", "", "n1"))

    @property
    def counts_inits(self) -> bool:
        """What the node's daemon reads."""
        return keeps_inits(self.node, self.desk.state.rules.vendors)

    @property
    def is_offered(self) -> bool:
        return bool(self.desk.state.sizes()[0])


QUESTION = "Requesting_2026-11-21 00:12:50"
ASKED = (None, 15.0, "Requesting")


@pytest.mark.parametrize(
    ("is_csv", "steps", "is_offered"),
    [
        pytest.param(
            True, [(REPORTED, 15.0, "Requesting"), *[ASKED] * 3], True, id="45 s without an answer"
        ),
        pytest.param(
            True,
            [(REPORTED, 15.0, "Requesting"), *[ASKED] * 3, *[(None, 60.0, "Deleted")] * 20],
            False,
            id="a minute without an answer",
        ),
        pytest.param(
            True,
            [(REPORTED, 15.0, "Requesting"), (None, 45.0, "Requesting")] * 10,
            True,
            id="answered in time",
        ),
        pytest.param(
            True,
            [
                (REPORTED, 15.0, "Requesting"),
                *[ASKED] * 3,
                (None, 60.0, "Deleted"),
                (REPORTED, 0.0, "Requesting"),
            ],
            True,
            id="given up, then heard of",
        ),
        pytest.param(
            True, [(QUESTION, 15.0, "Requesting"), *[ASKED] * 20], True, id="asked by another one"
        ),
        pytest.param(
            False,
            [(REPORTED, 15.0, "Requesting"), *[ASKED] * 20],
            True,
            id="json is never given up",
        ),
    ],
)
def test_only_a_node_that_polls_and_is_silent_for_a_minute_is_given_up(
    is_csv: bool, steps: list[tuple[str | None, float, str]], is_offered: bool
) -> None:
    talk = Talk(is_csv=is_csv)
    for said, after_s, word in steps:
        if said is not None:
            talk.say(said)
        assert talk.look(after_s) == word
    assert talk.is_offered is is_offered


def test_json_daemon_is_asked_rarely() -> None:
    talk = Talk(is_csv=False)
    talk.say(REPORTED)
    assert talk.look() == "Requesting"
    talk.say(REPORTED)
    assert talk.look() == REPORTED
    assert talk.look(ANSWER_EVERY_S) == "Requesting"


def test_large_cluster_is_asked_in_turns() -> None:
    every = [f"n{number:03d}" for number in range(MAX_WRITES + 10)]
    desk = Desk(*every)
    for name in every:
        cards = encode_json((card(name, 0),))
        notes = {nvidia_names.NODE_REGISTER: cards, nvidia_names.NODE_HANDSHAKE: REPORTED}
        desk.kube.merge_patch_node(name, notes)
    desk.sync()
    keeper = HandshakeKeeper(desk.state, desk.kube, desk.clock)
    asked = []
    for _ in range(3):
        keeper.look()
        desk.sync()
        words = [node.annotations[nvidia_names.NODE_HANDSHAKE] for node in desk.state.nodes()]
        asked.append(sum(word.startswith("Requesting") for word in words))
    assert asked == [MAX_WRITES, MAX_WRITES + 10, MAX_WRITES + 10]


class HangingKube(FakeExtenderKube):
    """No write of a node is answered before its timeout."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk, self.asked = desk, list[str]()

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        del annotations
        self.asked.append(name)
        self._desk.clock.advance(8.0)
        raise KubeError("timed out")


@shows(
    "E6",
    fault="the API server answers no write of a handshake for minutes",
    happens="a pass ends after 5 s and one timeout, and the next one goes on with the next nodes; "
    "silent daemons are given up and leftovers swept all the while",
)
@pytest.mark.parametrize("is_csv", [True, False])
def test_writes_that_hang_do_not_hold_the_pass(is_csv: bool) -> None:
    every = [f"n{number}" for number in range(8)]
    desk = Desk(*every)
    for name in every:
        cards = encode_csv9((card(name, 0),)) if is_csv else encode_json((card(name, 0),))
        notes = {nvidia_names.NODE_REGISTER: cards, nvidia_names.NODE_HANDSHAKE: REPORTED}
        desk.kube.merge_patch_node(name, notes)
    desk.sync()
    kube = HangingKube(desk)
    keeper = HandshakeKeeper(desk.state, kube, desk.clock)
    for _ in range(len(every)):
        begun_s = desk.clock.monotonic()
        keeper.look()
        assert desk.clock.monotonic() - begun_s <= 5.0 + 8.0
    assert sorted(kube.asked) == every


@pytest.mark.parametrize("text", ["", "nonsense", "Reportedly"])
def test_unreadable_word_changes_nothing(text: str) -> None:
    talk = Talk()
    talk.say(text)
    before = len(talk.desk.kube.calls)
    talk.look(100.0)
    talk.keeper.look()
    assert talk.is_offered
    assert "Deleted" not in talk.look()
    assert len(talk.desk.kube.calls) - before <= 1


def test_replica_that_does_not_lead_writes_nothing() -> None:
    talk = Talk(is_leading=False)
    talk.say(REPORTED)
    assert talk.look() == REPORTED


def test_neuron_daemon_that_stops_reporting_is_given_up() -> None:
    talk = Talk()
    talk.note(neuron_names.NODE_NEURON_HANDSHAKE, "Reported_2026-11-21T00:00:00Z")
    talk.look()
    assert "reported for" not in talk.desk.state.why_not_offered("n1")
    talk.note(nvidia_names.NODE_REGISTER, "")
    talk.look(100.0)
    assert "has not reported for" in talk.desk.state.why_not_offered("n1")
    talk.note(neuron_names.NODE_NEURON_HANDSHAKE, "Reported_2026-11-21T00:05:00Z")
    talk.look()
    assert "has not reported for" not in talk.desk.state.why_not_offered("n1")


@shows(
    "N15",
    fault="an operator or another program removes the mark of our extender from a node",
    happens="it is written again at the next report; nothing is written for it while it stands",
)
def test_mark_is_written_once_and_again_when_it_is_gone() -> None:
    talk = Talk(is_csv=False)
    talk.say(REPORTED)
    talk.look()
    before = len(talk.desk.kube.calls)
    for _ in range(20):
        talk.say(REPORTED)
        talk.look(1.0)
    said = 20
    assert len(talk.desk.kube.calls) == before + said
    talk.desk.kube.merge_patch_node("n1", {names.NODE_READ_BY: None})
    talk.desk.sync()
    before = len(talk.desk.kube.calls)
    for _ in range(20):
        talk.look(1.0)
    assert len(talk.desk.kube.calls) == before + 1


@pytest.mark.parametrize("register", ["", "rubbish,", "[{"])
def test_node_that_cant_be_read_is_not_marked(register: str) -> None:
    talk = Talk()
    talk.note(nvidia_names.NODE_REGISTER, register)
    talk.say(REPORTED)
    talk.look()
    assert names.NODE_READ_BY not in talk.notes


@shows(
    "E15",
    fault="pods were placed by a scheduler that counts no init container that has ended",
    happens="the node is told that they count only once all of them have room; until then its "
    "daemon counts as that scheduler did, and refuses none of these pods",
)
@pytest.mark.parametrize("is_csv", [True, False])
def test_node_is_told_that_init_containers_count_once_they_have_room(is_csv: bool) -> None:
    talk = Talk(is_csv=is_csv)
    init, main = Box(name="init", memory_mib=8000, kind=ContainerKind.INIT), Box(memory_mib=1000)
    for name, boxes in {"a": (init, main), "b": (main, Box(name="more", memory_mib=2000))}.items():
        held = {b.name: [Part(uuid="GPU-n1-0", memory_mib=b.memory_mib or 0)] for b in boxes}
        body = pod_body(name, boxes, reservation(layout(boxes, held)))
        talk.desk.kube.store.create("pods", "default", body)
    talk.desk.sync()
    talk.say(REPORTED)
    assert talk.look() == "Requesting"
    assert talk.notes[names.NODE_READ_BY] == names.READ_BY_EXTENDER
    talk.desk.delete_pod("b")
    talk.say(REPORTED)
    assert talk.look(ANSWER_EVERY_S) == "Requesting"
    assert talk.counts_inits


def test_question_of_a_scheduler_before_or_after_us_ends_that_init_containers_count() -> None:
    talk = Talk(is_csv=False)
    talk.say("Requesting_2026-11-21 00:12:50")
    talk.look()
    assert not talk.counts_inits
    talk.say(REPORTED)
    talk.look()
    assert talk.counts_inits
    talk.say(REPORTED)
    assert talk.counts_inits
    talk.say("Requesting_2030-11-21 00:12:50")  # an older extender of ours, or HAMi's
    assert not talk.counts_inits
    talk.say(REPORTED)
    talk.look(ANSWER_EVERY_S)
    assert talk.counts_inits


# -- given up, and judged again --------------------------------------------------------------------


@shows(
    "E6",
    fault="a node was given up, and its plugin is upgraded to one that writes no handshake",
    happens="the node is judged again with the next change of its annotations",
)
def test_node_given_up_is_judged_anew_after_an_upgrade_of_its_plugin() -> None:
    talk = Talk()
    talk.say(REPORTED)
    for _ in range(8):
        talk.look()
    assert not talk.is_offered
    talk.note(nvidia_names.NODE_REGISTER, encode_json((card("n1", 0),)))
    talk.look()
    assert talk.is_offered
    for _ in range(20):
        talk.look(60.0)
    assert talk.is_offered


@shows(
    "E6",
    fault="a Neuron daemon is uninstalled, and its annotations are removed",
    happens="the node counts again by what AWS's plugin offers",
)
def test_neuron_node_given_up_is_taken_back_without_the_daemons_annotation() -> None:
    talk = Talk()
    neuron = {"aws.amazon.com/neuron": "6", "aws.amazon.com/neuroncore": "12"}

    def offer(body: Json) -> Json:
        body["metadata"]["labels"] = {neuron_names.INSTANCE_TYPE: "inf2.24xlarge"}
        body["status"]["allocatable"] = neuron
        return body

    talk.desk.kube.store.change("nodes", "", "n1", offer)
    talk.note(neuron_names.NODE_NEURON_HANDSHAKE, "Reported_2026-11-21T00:00:00Z")
    talk.look()
    talk.look(100.0)
    assert "has not reported for" in talk.desk.state.why_not_offered("n1")
    talk.desk.kube.merge_patch_node("n1", {neuron_names.NODE_NEURON_HANDSHAKE: None})
    talk.desk.sync()
    talk.look()
    assert len(talk.desk.state.cards_of("n1")) == 6
