from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from hami_node.errors import Conflict, KubeError
from hami_node.model import Node
from hami_node.node.report.reporter import FIRST_LIST_S, Reporter
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import NODE
from tests.unit.node.served import Served

A, B, BEAT = "hami.io/a", "hami.io/b", "hami.io/beat"


@dataclass
class Voice:
    """A publication that says what the test wants."""

    wanted: dict[str, str | None] = field(default_factory=dict)
    beat: dict[str, str | None] = field(default_factory=dict)
    last: dict[str, str | None] = field(default_factory=dict)

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        del node, now
        return self.wanted

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        del node
        return {key: f"{text}{now:.0f}" for key, text in self.beat.items()}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        del node
        return self.last


def reporter(cluster: FakeCluster, *voices: Voice) -> Reporter:
    return Reporter(Served(Path("/nowhere"), cluster), voices)


@pytest.mark.parametrize(
    ("standing", "wanted", "written"),
    [
        ({}, {A: "1"}, [{A: "1"}]),
        ({A: "1"}, {A: "1"}, []),
        ({A: "2"}, {A: "1"}, [{A: "1"}]),
        ({A: "2"}, {A: None}, [{A: None}]),
        ({}, {A: None}, []),
        ({"other": "x"}, {A: "1"}, [{A: "1"}]),
        ({A: "1", B: "2"}, {A: "1", B: "3"}, [{B: "3"}]),
    ],
    ids=["new", "same", "other", "remove", "absent", "foreign", "one-of-two"],
)
def test_report_only_differences_are_written(
    standing: dict[str, str],
    wanted: dict[str, str | None],
    written: list[dict[str, str | None]],
) -> None:
    cluster = FakeCluster(annotations=standing)
    assert reporter(cluster, Voice(wanted=wanted)).report() == bool(written)
    assert cluster.writes == written


def test_report_voices_are_written_in_one_patch() -> None:
    cluster = FakeCluster()
    reporter(cluster, Voice(wanted={A: "1"}, beat={BEAT: "t"}), Voice(wanted={B: "2"})).report()
    assert cluster.writes == [{A: "1", B: "2", BEAT: "t1800000000"}]


def test_report_heartbeat_comes_once_an_interval() -> None:
    cluster = FakeCluster()
    node = Served(Path("/nowhere"), cluster)
    said = Reporter(node, [Voice(beat={BEAT: "t"})])
    for after_s in (0, 10, 19.9, 0.2):
        node.time.advance(after_s)
        said.report()
    assert cluster.writes == [{BEAT: "t1800000000"}, {BEAT: "t1800000030"}]


@pytest.mark.parametrize("error", [KubeError("down"), Conflict("changed", 409)], ids=str)
def test_report_that_failed_is_not_remembered_as_done(error: KubeError) -> None:
    cluster = FakeCluster()
    said = reporter(cluster, Voice(wanted={A: "1"}, beat={BEAT: "t"}))
    cluster.fail_next(error)
    with pytest.raises(KubeError):
        said.report()
    assert said.age_s is None
    assert said.report()
    assert cluster.writes == [{A: "1", BEAT: "t1800000000"}]
    assert said.age_s == 0


def test_report_watch_lags_behind_our_own_patch_it_is_not_written_again() -> None:
    cluster = FakeCluster()
    said = reporter(cluster, Voice(wanted={A: "1"}))
    said.report()
    assert cluster.shown_node is not None
    assert A not in cluster.shown_node.annotations
    said.report()
    assert len(cluster.writes) == 1


def test_report_somebody_undid_it_it_is_written_again() -> None:
    cluster = FakeCluster()
    said = reporter(cluster, Voice(wanted={A: "1"}))
    said.report()
    cluster.set_node({A: "tampered"})
    said.report()
    assert cluster.actual_node.annotations == {A: "1"}


@pytest.mark.parametrize("has_caught_up", [True, False])
def test_report_node_of_a_restored_backup_is_believed_rather_than_our_own_patch(
    has_caught_up: bool,
) -> None:
    cluster = FakeCluster()
    cluster.actual_node = cluster.shown_node = replace(cluster.actual_node, resource_version="1000")
    said = reporter(cluster, Voice(wanted={A: "1"}))
    assert said.report()
    if has_caught_up:
        cluster.shown_node = cluster.actual_node
        assert not said.report()
    cluster.actual_node = cluster.shown_node = Node(name=NODE, resource_version="11")
    assert said.report()
    assert cluster.actual_node.annotations == {A: "1"}
    assert not said.report(), "and is waited for"


def test_report_watch_is_empty_the_node_is_read() -> None:
    cluster = FakeCluster(annotations={A: "1"})
    cluster.shown_node = None
    assert not reporter(cluster, Voice(wanted={A: "1"})).report()
    assert cluster.reads == [NODE]


# -- as a step of the loop -------------------------------------------------------------------------
class Looked:
    """A node whose reporter looks when the loop would let it."""

    def __init__(self, *voices: Voice) -> None:
        self.cluster = FakeCluster()
        self.node = Served(Path("/nowhere"), self.cluster)
        self.said = Reporter(self.node, voices)

    def wait(self) -> float:
        """A look; then the time passes until the next one."""
        wait_s = self.said.look()
        self.node.time.advance(wait_s)
        return wait_s


def test_look_comes_again_with_the_next_heartbeat() -> None:
    looked = Looked(Voice(wanted={A: "1"}, beat={BEAT: "t"}))
    assert looked.wait() == 30
    assert looked.wait() == 30
    assert len(looked.cluster.writes) == 2


def test_look_nothing_is_reported_before_the_record_is_read_but_for_a_while() -> None:
    looked = Looked(Voice(wanted={A: "1"}))
    looked.node.recorded.clear()
    assert looked.said.look() == FIRST_LIST_S
    assert looked.cluster.writes == []
    looked.node.recorded.set()
    looked.said.look()
    assert len(looked.cluster.writes) == 1
    late = Looked(Voice(wanted={A: "1"}))
    late.node.recorded.clear()
    late.wait()
    late.wait()
    assert len(late.cluster.writes) == 1


def test_look_other_writer_who_undoes_ours_at_once_does_not_make_us_hurry() -> None:
    """Each time our patch is undone the pause doubles: a fight costs the API server little."""
    looked, voice = Looked(), Voice()
    said = Reporter(looked.node, [voice])
    waits = []
    for number in range(6):
        voice.wanted = {A: str(number)}
        said.look()
        waits.append(said.look())
        looked.node.time.advance(waits[-1])
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4])
    looked.node.time.advance(1.0)
    said.look()
    voice.wanted = {A: "calm"}
    said.look()
    assert said.look() == pytest.approx(0.2)


def test_sign_off_writes_the_last_words() -> None:
    looked = Looked(Voice(wanted={A: "1"}, last={A: "gone", B: None}))
    looked.wait()
    looked.said.sign_off()
    assert looked.cluster.writes[-1] == {A: "gone"}
