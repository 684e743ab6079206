"""Pods that got whole cards from another plugin before the daemon came keep those cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.daemon import NAME, NAMESPACE, Daemon
from tests.e2e.foreign_plugin import foreign_plugin
from tests.e2e.kubelet import held_slices
from tests.e2e.parts import NODE
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.reliability import shows

_SET = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}"
_GPU = nvidia_names.RESOURCE_GPU


@pytest.fixture
def without_daemon(api: Api, daemon: Daemon) -> Iterator[None]:
    """The node before the daemon was installed; it is back after the test."""
    api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"hami-node.io/serve": "false"}}})
    eventually("the daemon is gone", lambda: _is_gone(api))
    yield
    daemon.install()


def _is_gone(api: Api) -> bool:
    found = api.read(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector="app=hami-node")
    return not found["items"]


def _closed(daemon: Daemon) -> set[str]:
    listed = decode_register(daemon.annotations().get(nvidia_names.NODE_REGISTER, ""))
    return {str(card.uuid) for card in listed if not card.healthy}


@pytest.mark.usefixtures("without_daemon")
@shows(
    "F1",
    fault="a pod holds a card from another plugin when the daemon is installed",
    happens="the card is closed for the scheduler and in Allocate until the pod has ended, and "
    "the pod goes on",
)
def test_card_of_another_plugin_is_closed_until_its_pod_has_ended(
    daemon: Daemon, pods: Pods, api: Api, scheduler: Scheduler
) -> None:
    with foreign_plugin(cards.UUIDS):
        eventually("whole cards", lambda: daemon.allocatable(_GPU) == cards.COUNT)
        pod = pods.create("earlier", RealContainer(name="c0", cards=1))
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        api.create(
            f"{Pods.path}/earlier/binding",
            {"metadata": {"name": pod["metadata"]["name"]}, "target": target},
        )
        pods.wait_running("earlier")
        (held,) = held_slices()["earlier/c0"]
        running = pods.incarnations()
    daemon.install()
    eventually("the card is closed", lambda: _closed(daemon) == {held})
    others = (cards.COUNT - 1) * cards.SPLIT
    daemon.wait_offered(others)
    other = pods.create("late", RealContainer(name="c0", cards=1, memory_mib=1000))
    scheduler.place(other, {"c0": (Slice(uuid=held, memory_mib=1000),)})
    assert "earlier" in pods.wait_phase("late", "Failed")["message"]
    assert {k: v for k, v in pods.incarnations().items() if k in running} == running
    pods.delete("earlier")
    eventually("the card is open", lambda: not _closed(daemon))
    daemon.wait_offered()
