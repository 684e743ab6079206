"""Nodes that could not serve what was sent there: closed for a while, and opened with one write."""

from __future__ import annotations

import pytest

from hami_node.errors import KubeError
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.node_back_off import FIRST_S, FORGET_S, LONGEST_S
from hami_node.extender.sweeper import AT_ONCE, LOOK_S, RETRY_S, Waker
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.reliability import shows
from tests.unit.extender.desk import MEMORY_MIB, SCHEDULER, Desk

UNAVAILABLE = (
    "Allocate failed due to rpc error: code = Unavailable desc = no driver, which is unexpected"
)
REFUSED = UNAVAILABLE.replace("Unavailable", "FailedPrecondition")


class Scene(Desk):
    """A desk with what writes nodes that are open again."""

    def __init__(self, *nodes: str, cards: int = 1, is_patched: bool = False) -> None:
        super().__init__(*nodes, cards=cards, is_patched=is_patched)
        self.waker = Waker(self.state, self.kube, self.clock, lambda: self.is_leading)

    def add(self, name: str) -> str:
        self.add_pod(name, memory_mib=100)
        self.sync()
        return name

    def send(self, name: str, *nodes: str) -> str:
        """Filter and bind a new pod; its node."""
        node = self.choose(self.add(name), *nodes)
        if node:
            assert self.bind(name, node) == ""
            self.sync()
        return node

    def refuse(self, name: str, message: str = UNAVAILABLE) -> None:
        """The node's plugin calls it failed, and then kubelet fails it."""
        self.edit_pod(name, annotations={names.POD_BIND_PHASE: names.PHASE_FAILED})
        self.sync()
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
        self.edit_pod(name, status=status)
        self.sync()

    def fail(self, node: str) -> None:
        """A pod that is sent there finds no plugin."""
        name = f"sent-{len(self.shown_pods)}"
        assert self.send(name, node) == node
        self.refuse(name)

    def waits(self, name: str, *nodes: str) -> None:
        """A pod finds every node closed."""
        answer = self.ask(self.add(name), *nodes)
        assert not answer["NodeNames"]
        assert "NodeBackedOff" in str(answer)

    def change_node(self, name: str, *, slices: str = "10", hand_over: str = "") -> None:
        def change(body: Json) -> Json:
            body["status"]["allocatable"][nvidia_names.RESOURCE_GPU] = slices
            body["metadata"]["annotations"][names.NODE_HAND_OVER] = hand_over
            return body

        self.kube.store.change("nodes", "", name, change)
        self.sync()

    def mark_of(self, node: str) -> str:
        """What was written when the node was open again."""
        read = self.kube.store.read("nodes", "", node)
        return str((read["metadata"].get("labels") or {}).get(names.OPENED_NODE, ""))

    def writes(self) -> int:
        return self.kube.calls.count("label_node")

    def restarted(self) -> None:
        """Another process: all that it knows is what it lists."""
        self.state = ClusterState(self.state.rules, self.clock)
        for node in self.shown_nodes.values():
            self.state.node_changed(None, node)
        for pod in self.shown_pods.values():
            self.state.pod_changed(None, pod)
        self.state.begin_term(SCHEDULER)
        self.waker = Waker(self.state, self.kube, self.clock, lambda: self.is_leading)


@pytest.fixture
def desk() -> Scene:
    return Scene("n0", "n1")


# -- what closes a node ----------------------------------------------------------------------------
def test_a_broken_node_gets_no_more_pods_and_the_others_do(desk: Scene) -> None:
    desk.fail("n0")
    assert [desk.send(f"next-{number}") for number in range(3)] == ["n1"] * 3
    answer = desk.ask(desk.add("third"), "n0")
    why = answer["FailedAndUnresolvableNodes"]["n0"]
    assert why.startswith("NodeBackedOff: its device plugin did not answer")
    assert "until 20" in why
    assert "sent-" not in why, "another tenant's pod is nobody's business"
    assert "NodeBackedOff(n0)" in desk.notes[-1].message
    assert desk.state.back_offs() == {"plugin-unavailable": 1}


def test_waits_double_with_every_fault_up_to_a_minute_and_begin_anew_in_time(desk: Scene) -> None:
    found = []
    for _ in range(9):
        desk.fail("n0")
        began_s = desk.clock.now()
        while desk.state.backed_off():
            desk.clock.advance(FIRST_S)
        found.append(desk.clock.now() - began_s)
    assert found == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    desk.clock.advance(FORGET_S + 1)
    desk.sweep()
    desk.fail("n0")
    desk.clock.advance(FIRST_S)
    assert not desk.state.backed_off()


def test_pods_that_were_on_their_way_together_are_one_fault(desk: Scene) -> None:
    for number in range(5):
        assert desk.send(f"early-{number}", "n0") == "n0"
    for number in range(5):
        desk.refuse(f"early-{number}")
    desk.clock.advance(FIRST_S)
    assert not desk.state.backed_off()


def test_pods_that_our_reservation_did_not_send_say_nothing(desk: Scene) -> None:
    """Anybody may create a pod with a node's name in it, whose Allocate then fails."""
    desk.add("direct")
    desk.edit_pod(
        "direct",
        spec={"nodeName": "n0"},
        annotations={names.POD_BIND_PHASE: names.PHASE_FAILED, names.POD_NODE: "n0"},
        status={"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": UNAVAILABLE},
    )
    desk.sync()
    assert not desk.state.backed_off()


def test_a_bind_that_places_anew_respects_it_too() -> None:
    desk = Scene("n0", cards=2)
    assert desk.send("first", "n0") == "n0"
    assert desk.choose(desk.add("late"), "n0") == "n0"
    desk.state.begin_term(SCHEDULER)
    desk.refuse("first")
    assert "NodeBackedOff" in desk.bind("late", "n0")


# -- what opens it ---------------------------------------------------------------------------------
def test_it_is_open_as_soon_as_its_slices_are_back_and_the_first_wait_is_next(desk: Scene) -> None:
    for _ in range(4):
        desk.fail("n0")
        desk.clock.advance(LONGEST_S)
    desk.fail("n0")
    desk.change_node("n0", slices="0")
    assert desk.state.backed_off()
    desk.change_node("n0", slices="10")
    assert not desk.state.backed_off()
    desk.fail("n0")
    desk.clock.advance(FIRST_S)
    assert not desk.state.backed_off()


def test_a_clock_that_is_set_back_opens_it(desk: Scene) -> None:
    desk.fail("n0")
    desk.clock.advance(-100_000)
    assert not desk.state.backed_off()
    desk.fail("n0")
    assert desk.state.backed_off()


# -- the pods that wait ----------------------------------------------------------------------------


def test_each_wait_that_ends_changes_what_is_written(desk: Scene) -> None:
    """What is equal to what stands there is no change, and wakes nobody."""
    written = set()
    for number in range(3):
        desk.fail("n0")
        desk.waits(f"waits-{number}", "n0")
        desk.change_node("n0", slices="0")
        desk.change_node("n0")
        desk.waker.look()
        written.add(desk.mark_of("n0"))
        desk.clock.advance(0.01)
    assert len(written) == 3


def test_a_node_without_slices_for_long_is_not_written_again_and_again(desk: Scene) -> None:
    """kube-scheduler does not name it any more, and asks by itself once it has slices."""
    desk.fail("n0")
    desk.waits("waits", "n0")
    desk.change_node("n0", slices="0")
    for _ in range(600):
        desk.clock.advance(LOOK_S)
        desk.waker.look()
    assert desk.writes() == 1
    desk.change_node("n0")
    assert desk.choose("waits", "n0") == "n0"


@shows(
    "E13",
    fault="a node is closed again right after its wait ended, before this was written",
    happens="it is written when the second wait ends",
)
def test_a_node_that_fails_again_before_it_is_written_is_written_later(desk: Scene) -> None:
    desk.fail("n0")
    desk.waits("waits", "n0")
    desk.clock.advance(FIRST_S)
    desk.fail("n0")
    desk.waker.look()
    assert not desk.writes()
    desk.clock.advance(2 * FIRST_S)
    desk.waker.look()
    assert desk.writes() == 1


@shows(
    "E13",
    fault="the API server refuses the write for a node that is open again, or does not answer",
    happens="it is written again until that succeeds, other nodes meanwhile, for five minutes at "
    "most: then kube-scheduler takes up every pod by itself",
)
def test_a_write_that_fails_is_repeated_and_holds_up_no_other_node(desk: Scene) -> None:
    for name in ("n0", "n1"):
        desk.fail(name)
        desk.waits(f"waits-for-{name}", name)
    desk.clock.advance(FIRST_S)
    desk.kube.fail("label_node", KubeError("timed out"))
    assert not desk.waker.look()
    assert bool(desk.mark_of("n0")) != bool(desk.mark_of("n1"))
    assert desk.waker.look()
    assert desk.mark_of("n0")
    assert desk.mark_of("n1")
    desk.fail("n0")
    desk.waits("waits-again", "n0")
    desk.kube.fail("label_node", *(KubeError("forbidden", 403) for _ in range(1000)))
    for _ in range(500):
        desk.clock.advance(RETRY_S)
        desk.sweep()
        desk.waker.look()
    assert desk.writes() < 3 + FORGET_S / RETRY_S + 5


@shows(
    "E13",
    fault="5,000 nodes fail at once while pods wait for each",
    happens="ten nodes a second are written at most, until pods are placed",
)
def test_writes_of_very_many_nodes_are_spread() -> None:
    nodes = [f"n{number}" for number in range(60)]
    desk = Scene(*nodes)
    for node in nodes:
        desk.fail(node)
    desk.waits("waits")
    desk.clock.advance(FIRST_S)
    for look in range(1, 6):
        desk.waker.look()
        assert desk.writes() == look * AT_ONCE
    assert AT_ONCE / LOOK_S <= 10
    for _ in range(60):
        desk.waker.look()
    assert desk.writes() == 60


@shows(
    "E13",
    fault="the extender is killed while a node is backed off that pods wait for",
    happens="the next one sends pods there at once, and writes the node so that they are taken up",
)
def test_after_a_restart_the_pods_that_waited_are_taken_up(desk: Scene) -> None:
    for _ in range(4):
        desk.fail("n0")
        desk.clock.advance(LONGEST_S)
    desk.fail("n0")
    desk.waits("waits", "n0")
    desk.clock.advance(5)
    desk.restarted()
    assert not desk.state.backed_off()
    desk.waker.look()
    assert desk.writes() == 1
    assert desk.mark_of("n0")


@shows(
    "E13",
    fault="the leader changes while a node is backed off that pods wait for",
    happens="the next leader, which saw the fault too, keeps pods away for the rest of the wait, "
    "and then writes the node; the former one writes nothing",
)
def test_a_new_leader_wakes_the_pods_that_the_one_before_refused(desk: Scene) -> None:
    desk.fail("n0")
    desk.waits("waits", "n0")
    desk.lose_lead()
    desk.clock.advance(FIRST_S)
    desk.waker.look()
    assert not desk.writes()
    other = Scene("n0")
    other.fail("n0")
    other.state.begin_term(SCHEDULER)
    other.waker.look()
    assert not other.writes()
    other.clock.advance(FIRST_S)
    other.waker.look()
    assert other.writes() == 1


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_node_that_is_deleted_meanwhile_is_forgotten(desk: Scene, is_made_anew: bool) -> None:
    desk.fail("n0")
    desk.waits("waits", "n0")
    desk.kube.store.delete("nodes", "", "n0")
    if is_made_anew:
        desk.add_node("n0")
    desk.sync()
    assert not desk.state.backed_off()
    desk.clock.advance(FIRST_S)
    assert desk.waker.look()
    assert not desk.writes()


# -- cards that are free without an event of kube-scheduler's -------------------------------------
@pytest.fixture
def full() -> Scene:
    """`a` is reserved on `n0`, and `b` finds no room there."""
    full = Scene("n0")
    full.add_pod("a", memory_mib=MEMORY_MIB)
    full.sync()
    assert full.choose("a") == "n0"
    full.add_pod("b", memory_mib=MEMORY_MIB)
    full.sync()
    assert not full.choose("b")
    assert full.waker.look()
    assert not full.writes()
    return full


@shows(
    "E13",
    fault="a pod with a reservation is deleted, and another is tried before the cards are free",
    happens="the node is written once they are, upon which kube-scheduler takes up who waits",
)
def test_pods_that_came_before_a_deletion_was_seen_are_taken_up(full: Scene) -> None:
    full.delete_pod("a")
    full.sync()
    for _ in range(2):
        assert full.waker.look()
    assert full.writes() == 1
    assert full.choose("b") == "n0"


def test_reservation_that_is_made_again_frees_nothing(full: Scene) -> None:
    assert full.choose("a") == "n0"
    assert full.waker.look()
    assert not full.writes()


@shows(
    "E13",
    fault="a new leader keeps cards for a binding of the former one that never arrives",
    happens="pods that were refused meanwhile, by either leader, are taken up once they are free",
)
def test_pods_are_taken_up_once_the_reservations_of_a_former_leader_are_cleared() -> None:
    desk = Scene("n0", is_patched=True)
    desk.add_pod("a", memory_mib=MEMORY_MIB)
    desk.sync()
    assert desk.choose("a") == "n0"
    desk.sync()
    desk.restarted()
    assert desk.held() == {"a": MEMORY_MIB}
    desk.clear_leftovers()
    assert desk.held() == {}
    assert desk.waker.look()
    assert desk.writes() == 1
