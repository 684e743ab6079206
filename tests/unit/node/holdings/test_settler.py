"""The ledger between the calls of kubelet."""

from __future__ import annotations

import pytest

from hami_node.errors import KubeError, KubeletError
from hami_node.node.holdings.settler import Settler
from hami_node.ports import HeldContainer
from tests.fakes.ledgers import a_ledger, an_entry
from tests.fakes.live_kube import FakeCluster, FakeResources
from tests.unit.node.holdings.uses import a_pod, listed, live_use, used

IDS = an_entry().device_ids


def test_settle_everything_is_as_it_was_nobody_is_asked() -> None:
    cluster = FakeCluster(a_pod())
    resources = FakeResources(error=AssertionError("kubelet is asked"))
    settler = Settler(live=live_use(cluster), kube=cluster, resources=resources)
    settler.settle()
    settler.settle()
    assert cluster.reads == []


@pytest.mark.parametrize(
    ("found", "wanted"),
    [((), [0, 0]), ((listed("p", *IDS),), [1000, 0])],
    ids=["ended", "containers-run"],
)
def test_settle_deleted_pod_is_freed_as_kubelet_lists_it(
    found: tuple[HeldContainer, ...], wanted: list[int]
) -> None:
    cluster, resources = FakeCluster(a_pod()), FakeResources(*found)
    live = live_use(cluster, ledger=a_ledger(an_entry()))
    settler = Settler(live=live, kube=cluster, resources=resources)
    settler.settle()
    cluster.show()
    settler.settle()
    assert used(live) == wanted


def test_settle_pod_deleted_while_the_daemon_was_down_is_asked_for_once() -> None:
    cluster = FakeCluster()
    live = live_use(cluster, ledger=a_ledger(an_entry()))
    settler = Settler(live=live, kube=cluster, resources=FakeResources())
    settler.settle()
    settler.settle()
    assert cluster.reads == ["default/p"]
    assert used(live) == [0, 0]


@pytest.mark.parametrize("lacks", ["api", "kubelet"])
def test_settle_kubelet_or_the_api_server_is_away_so_that_it_stays(lacks: str) -> None:
    cluster, resources = FakeCluster(), FakeResources()
    if lacks == "api":
        cluster.fail_next(KubeError("timeout"))
    else:
        resources.error = KubeletError("no socket")
    live = live_use(cluster, ledger=a_ledger(an_entry()))
    settler = Settler(live=live, kube=cluster, resources=resources)
    settler.settle()
    assert used(live) == [1000, 0]
    resources.error = None
    settler.settle()
    assert used(live) == [0, 0]


def test_begin_without_kubelets_list_counts_what_annotations_show_and_records_nothing() -> None:
    cluster, ledger = FakeCluster(a_pod(), a_pod("q", is_served=False)), a_ledger()
    live = live_use(cluster, ledger=ledger)
    resources = FakeResources(error=KubeletError("no socket"))
    Settler(live=live, kube=cluster, resources=resources).begin()
    assert used(live) == [1000, 0]
    assert ledger.entries() == ()
