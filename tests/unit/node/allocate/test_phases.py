"""Refused pods get their phase, each by itself, however often that fails."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hami_node.errors import Conflict, Forbidden, KubeError, NotFound
from hami_node.model import Pod
from hami_node.node.allocate.phases import LONGEST_PAUSE_S, MAX_UNANSWERED, Phases
from hami_node.ports import JsonPatch
from hami_node.wire import names
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.reliability import shows
from tests.unit.node.holdings.uses import live_use

ALLOCATING = {names.POD_BIND_PHASE: names.PHASE_ALLOCATING}


class Cluster(FakeCluster):
    """Pods whose patches may be refused, by name; what was tried is noted."""

    def __init__(self, *pods: Pod) -> None:
        super().__init__(*pods)
        self.errors_of: dict[str, KubeError] = {}
        self.tried: list[str] = []
        self.patches: list[JsonPatch] = []

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        self.tried.append(name)
        if name in self.errors_of:
            raise self.errors_of[name]
        self.patches.append(patch)
        (pod,) = (pod for pod in self.shown.values() if pod.name == name)
        return replace(
            pod, annotations={names.POD_BIND_PHASE: names.PHASE_FAILED}, resource_version="9"
        )


def a_pod(name: str, *, refusal: str = "", phase: str = names.PHASE_ALLOCATING) -> Pod:
    return Pod(
        uid=f"uid-{name}",
        namespace="default",
        name=name,
        refusal=refusal,
        annotations={names.POD_BIND_PHASE: phase} if phase else {},
        resource_version="1",
    )


def phases(cluster: Cluster, *refused: str) -> tuple[Phases, FakeClock]:
    clock = FakeClock()
    node: Any = SimpleNamespace(
        clock=clock,
        kube=cluster,
        live=live_use(cluster, clock),
        refused={f"uid-{name}": True for name in refused},
    )
    return Phases(node), clock


@pytest.mark.parametrize(
    ("pod", "is_refused", "is_written"),
    [
        (a_pod("p"), True, True),
        (a_pod("p", phase=""), True, True),
        (a_pod("p", phase=names.PHASE_SUCCESS), True, True),
        (a_pod("p", phase=names.PHASE_FAILED), True, False),
        (a_pod("p"), False, False),
        (a_pod("p", refusal="no"), False, True),
        (a_pod("p", refusal="no", phase=names.PHASE_SUCCESS), False, True),
        (a_pod("p", refusal="no", phase=""), False, False),
    ],
)
def test_phase_is_written_to_those_that_were_refused(
    pod: Pod, *, is_refused: bool, is_written: bool
) -> None:
    cluster = Cluster(pod)
    found, _ = phases(cluster, *(["p"] if is_refused else []))
    found.look()
    assert cluster.tried == (["p"] if is_written else [])
    if is_written:
        assert cluster.patches[0][0] == {"op": "test", "path": "/metadata/uid", "value": "uid-p"}
        assert cluster.patches[0][-1]["value"] == names.PHASE_FAILED
    found.look()
    assert len(cluster.tried) == is_written


@shows(
    "N4",
    fault="a policy, or a webhook that hangs, keeps the phase from one refused pod for good",
    happens="the others get theirs at once; that one is tried again ever more rarely",
)
@pytest.mark.parametrize("error", [Forbidden("policy", 403), KubeError("timed out")], ids=str)
def test_pod_that_can_not_be_written_keeps_no_other_from_its_phase(error: KubeError) -> None:
    cluster = Cluster(a_pod("a"), a_pod("b"), a_pod("c"))
    cluster.errors_of["a"] = error
    found, clock = phases(cluster, "a", "b", "c")
    wait_s = found.look()
    assert cluster.tried == ["a", "b", "c"]
    waits = []
    for _ in range(12):
        assert wait_s is not None
        waits.append(wait_s)
        clock.advance(wait_s)
        wait_s = found.look()
    assert cluster.tried == ["a", "b", "c", *["a"] * 12]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_PAUSE_S
    cluster.errors_of.clear()
    clock.advance(LONGEST_PAUSE_S)
    assert found.look() is not None
    assert found.look() is None


def test_server_that_is_away_is_asked_for_few_of_many() -> None:
    pods = [a_pod(f"p{n}") for n in range(20)]
    cluster = Cluster(*pods)
    cluster.errors_of = {pod.name: KubeError("refused") for pod in pods}
    found, clock = phases(cluster, *(pod.name for pod in pods))
    for looks in range(1, 4):
        wait_s = found.look()
        assert wait_s is not None
        assert len(cluster.tried) == looks * MAX_UNANSWERED
        clock.advance(wait_s)
    assert len(set(cluster.tried)) > MAX_UNANSWERED  # others come first


@pytest.mark.parametrize("error", [NotFound("gone", 404), Conflict("another uid", 422)], ids=str)
def test_pod_that_is_gone_or_another_is_tried_rarely_until_the_watch_shows_it(
    error: KubeError,
) -> None:
    cluster = Cluster(a_pod("p"))
    cluster.errors_of["p"] = error
    found, clock = phases(cluster, "p")
    for _ in range(600):
        found.look()
        clock.advance(0.1)
    assert 5 <= len(cluster.tried) <= 10
    cluster.show()
    assert found.look() is None
