from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from hami_node.errors import Conflict, KubeError
from hami_node.model import Node
from hami_node.node.report.reporter import Reporter
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually

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


def reporter(
    cluster: FakeCluster, *voices: Voice, clock: FakeClock | RealClock | None = None
) -> Reporter:
    return Reporter(
        node_name=NODE,
        kube=cluster,
        watched=cluster,
        publications=voices,
        clock=clock or FakeClock(),
    )


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
    cluster, clock = FakeCluster(), FakeClock()
    said = reporter(cluster, Voice(beat={BEAT: "t"}), clock=clock)
    for after_s in (0, 10, 19.9, 0.2):
        clock.advance(after_s)
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


def test_run_reports_after_a_wake_and_signs_off() -> None:
    cluster, stop = FakeCluster(), threading.Event()
    voice = Voice(wanted={A: "1"}, last={A: "gone", B: None})
    said = reporter(cluster, voice, clock=RealClock())
    thread = threading.Thread(target=said.run, args=(stop,))
    thread.start()
    eventually(lambda: cluster.actual_node.annotations.get(A) == "1")
    voice.wanted = {A: "2"}
    said.wake()
    eventually(lambda: cluster.actual_node.annotations.get(A) == "2")
    stop.set()
    said.wake()
    thread.join(10.0)
    assert not thread.is_alive()
    assert cluster.writes[-1] == {A: "gone"}


def test_run_sign_off_that_fails_ends_all_the_same() -> None:
    cluster, stop = FakeCluster(), threading.Event()
    cluster.fail_next(KubeError("down"))
    stop.set()
    reporter(cluster, Voice(last={A: "gone"})).run(stop)
    assert cluster.writes == []


def test_run_other_writer_who_undoes_ours_at_once_does_not_make_us_hurry() -> None:
    """Each time our patch is undone the pause doubles: a fight costs the API server little."""
    cluster, stop = FakeCluster(), threading.Event()

    class Fighter(Voice):
        def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
            said.wake()
            return {A: f"not {node.annotations.get(A)}"}

    said = reporter(cluster, Fighter(), clock=RealClock())
    thread = threading.Thread(target=said.run, args=(stop,))
    thread.start()
    eventually(lambda: cluster.writes)
    stop.wait(0.5)
    stop.set()
    thread.join(10.0)
    assert len(cluster.writes) <= 3
