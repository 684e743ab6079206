"""What is owed after an answer: merged by pod, bounded, written in parts, never to another pod."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from hami_node.cluster.node_lock import NodeLock
from hami_node.errors import Conflict, Forbidden, KubeError, NotFound, RecordError
from hami_node.model import Pod
from hami_node.node.allocate.debt import Debt
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.owed import LONGEST_PAUSE_S, MAX_DEBTS, OwedWrites
from hami_node.ports import JsonPatch
from hami_node.wire import names
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import MemoryFile
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import NODE
from tests.reliability import shows
from tests.unit.node.holdings.uses import VENDOR, live_use

LOCK = "2027-01-15T08:00:00Z,default,p"
FAILED = {"phase": names.PHASE_FAILED, "reason": "AllocationRefused", "message": "no"}


class Cluster(FakeCluster):
    """Records what is patched; `pod_errors` are raised by the next patches of pods."""

    def __init__(self, annotations: Mapping[str, str] | None = None) -> None:
        super().__init__(annotations=annotations)
        self.patches: list[JsonPatch] = []
        self.pod_errors: list[KubeError] = []

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        if self.pod_errors:
            raise self.pod_errors.pop(0)
        self.patches.append(patch)
        return Pod(uid="uid-p", namespace=namespace, name=name)


def owed(cluster: Cluster, file: MemoryFile | None = None) -> OwedWrites:
    clock = FakeClock()
    keeper = LockKeeper(
        lock=NodeLock(cluster, clock),
        kube=cluster,
        watched=cluster,
        live=live_use(cluster, clock),
        vendors=[VENDOR],
        node_name=NODE,
        clock=clock,
    )
    return OwedWrites(kube=cluster, locks=keeper, file=file or MemoryFile(), clock=clock)


def debt(name: str = "p", **fields: Any) -> Debt:
    return Debt(uid=f"uid-{name}", namespace="default", name=name, **fields)


def pay(found: OwedWrites) -> float | None:
    return found.pay(threading.Event())


def phases(cluster: Cluster) -> list[object]:
    return [patch[-1]["value"] for patch in cluster.patches]


def test_all_parts_are_written_once() -> None:
    cluster = Cluster({names.NODE_LOCK: LOCK})
    found = owed(cluster)
    found.add(debt(lock=LOCK, **FAILED))
    assert pay(found) is None
    assert phases(cluster) == [names.PHASE_FAILED]
    assert cluster.patches[0][0] == {"op": "test", "path": "/metadata/uid", "value": "uid-p"}
    assert names.NODE_LOCK not in cluster.actual_node.annotations
    assert [event.message for event in cluster.events] == ["no"]
    pay(found)
    assert len(cluster.patches) == len(cluster.events) == 1


@pytest.mark.parametrize(
    "error", [KubeError("down"), KubeError("busy", 503), Forbidden("no", 403), Conflict("x", 409)]
)
def test_part_that_fails_stays_owed_and_the_others_are_written(error: KubeError) -> None:
    cluster = Cluster({names.NODE_LOCK: LOCK})
    cluster.pod_errors = [error]
    found = owed(cluster)
    found.add(debt(lock=LOCK, **FAILED))
    wait_s = pay(found)
    assert wait_s is not None
    assert 0 < wait_s <= LONGEST_PAUSE_S
    assert (len(cluster.patches), len(cluster.events)) == (0, 1)
    assert pay(found) is None
    assert (len(cluster.patches), len(cluster.events)) == (1, 1)


@pytest.mark.parametrize("error", [NotFound("gone", 404), Conflict("another uid", 422)])
def test_pod_that_is_gone_or_another_ends_the_phase(error: KubeError) -> None:
    cluster = Cluster()
    cluster.pod_errors = [error]
    found = owed(cluster)
    found.add(debt(phase=names.PHASE_FAILED))
    assert pay(found) is None
    assert pay(found) is None
    assert cluster.patches == []


def test_pauses_grow_up_to_a_limit() -> None:
    cluster = Cluster()
    cluster.pod_errors = [KubeError("busy", 503)] * 30
    found = owed(cluster)
    found.add(debt(phase=names.PHASE_FAILED))
    waits = [cast(float, pay(found)) for _ in range(30)]
    assert waits[0] < 1.0
    assert LONGEST_PAUSE_S / 2 <= waits[-1] <= LONGEST_PAUSE_S


@shows(
    "N4",
    fault="the daemon ends while something is owed",
    happens="the debts are read from the record by the next one",
)
def test_debts_are_read_back_from_the_file() -> None:
    file, first, second = MemoryFile(), Cluster(), Cluster()
    owed(first, file).add(debt(phase=names.PHASE_FAILED))
    pay(owed(second, file))
    assert phases(second) == [names.PHASE_FAILED]
    assert first.patches == []


@shows(
    "N4",
    fault="what is owed can't be recorded, because the disk is full",
    happens="it is written to the API server all the same",
)
def test_file_that_can_not_be_written_costs_no_debt() -> None:
    file, cluster = MemoryFile(), Cluster()
    file.error = RecordError("disk full")
    found = owed(cluster, file)
    found.add(debt(phase=names.PHASE_FAILED))
    assert pay(found) is None
    assert phases(cluster) == [names.PHASE_FAILED]


def test_debts_of_a_pod_are_joined_and_forgiven() -> None:
    cluster = Cluster({names.NODE_LOCK: LOCK})
    found = owed(cluster)
    found.add(debt(lock=LOCK))
    found.add(debt(**FAILED))
    found.forgive("uid-p")
    assert pay(found) is None
    assert cluster.patches == []
    assert cluster.events == []
    assert names.NODE_LOCK not in cluster.actual_node.annotations


def test_nothing_owed_is_not_recorded() -> None:
    file = MemoryFile()
    owed(Cluster(), file).add(debt())
    assert file.saves == 0


def test_more_debts_than_the_limit_the_oldest_is_given_up() -> None:
    cluster = Cluster()
    found = owed(cluster)
    for n in range(MAX_DEBTS + 1):
        found.add(debt(f"p{n}", phase=names.PHASE_FAILED))
    pay(found)
    tested = [patch[0]["value"] for patch in cluster.patches]
    assert len(tested) == MAX_DEBTS
    assert "uid-p0" not in tested


def test_debt_that_grew_while_it_was_paid_keeps_what_was_added() -> None:
    seen = debt(phase="failed", lock="a")
    now = seen.joined(debt(lock="b", reason="r", message="m"))
    assert now.without(seen, debt()) == debt(lock="b", reason="r", message="m")
