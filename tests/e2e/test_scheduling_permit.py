"""Gangs under a Permit plugin: their pods wait in kube-scheduler until all of them have a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pods import Pods, RealContainer, describe
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_ALL: Final = len(cards.UUIDS)


@pytest.fixture(scope="module")
def _held_back(scheduling: Extender) -> Iterator[None]:
    """kube-scheduler has the plugin of programs/kubernetes/kube-scheduler in force."""
    with scheduling.plugin_of_scheduler("E2EGang"):
        yield


pytestmark = pytest.mark.usefixtures("_held_back")


def _box(count: int) -> RealContainer:
    return RealContainer(name="c0", cards=count)


def _member(pods: Pods, name: str, count: int, *, size: int, wait_s: int) -> None:
    """A pod of the gang `NAME` of `NAME-0`; `size` pods wait so long for each other.

    Each test has a gang of its own: the plugin does not try one that waited in vain as long again.
    """
    annotations = {
        "e2e.hami-node/gang": name.rpartition("-")[0],
        "e2e.hami-node/size": str(size),
        "e2e.hami-node/wait-seconds": str(wait_s),
    }
    pods.create(name, _box(count), annotations=annotations, scheduler=DEFAULT)


def _bound(pods: Pods) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods.all() if pod["spec"].get("nodeName")}


def _was_given_up(pods: Pods, name: str) -> bool:
    """kube-scheduler has tried the pod and said why it is not bound."""
    return "PodScheduled" in str(pods.read(name)["status"].get("conditions"))


def _check_no_card_is_given_twice(pods: Pods) -> None:
    key, held = nvidia_names.POD_ALLOCATED, []
    for name in sorted(_bound(pods)):
        for slot in decode_grants(pods.annotation(name, key), key, NVIDIA):
            held += [grant.uuid for grant in slot]
    assert held, "nobody has cards"
    assert len(held) == len(set(held)), held


@shows(
    "E5",
    fault="half of a gang waits in Permit for 40 s while another pod wants all cards of its node",
    happens="it keeps its cards; the gang is bound as a whole once the rest is there",
)
def test_half_of_a_gang_keeps_its_cards_until_the_rest_is_there(
    pods: Pods, extender: Extender
) -> None:
    gang = [f"half-{number}" for number in range(4)]
    for name in gang[:2]:
        _member(pods, name, 2, size=4, wait_s=300)
    eventually("half of the cards are reserved", lambda: extender.slots_used() == 4)
    pods.create("other", _box(_ALL), scheduler=DEFAULT)
    eventually("the other waits", lambda: _was_given_up(pods, "other"))
    stays("nobody is bound", lambda: not _bound(pods), for_s=40, every_s=1)
    assert extender.slots_used() == 4
    for name in gang[2:]:
        _member(pods, name, 2, size=4, wait_s=300)
    pods.wait_running(*gang)
    assert _bound(pods) == set(gang)
    _check_no_card_is_given_twice(pods)
    pods.delete(*gang)
    pods.wait_running("other")


@shows(
    "E5",
    fault="a gang does not fit: its last pod finds no node, and the others wait in Permit",
    happens="none of it is bound; as soon as it is rejected its cards are others'",
)
def test_gang_that_does_not_fit_gives_its_cards_back(pods: Pods, extender: Extender) -> None:
    gang = ["large-0", "large-1", "large-2"]
    for name in gang:
        _member(pods, name, 3, size=3, wait_s=15)
    eventually("two of the three have cards", lambda: extender.slots_used() == 6)
    pods.create("other", _box(_ALL), scheduler=DEFAULT)
    eventually("the other waits", lambda: _was_given_up(pods, "other"))
    assert not _bound(pods) & set(gang)
    eventually(
        "the gang is rejected",
        lambda: any("in vain" in describe(pods.read(name)["status"]) for name in gang),
        every_s=0.05,
    )
    began = time.monotonic()
    eventually("the other has its cards", lambda: _bound(pods) == {"other"})
    print(f"from the rejection to the other's binding: {time.monotonic() - began:.1f} s")
    pods.wait_running("other")
    _check_no_card_is_given_twice(pods)


def _leader_dies(pods: Pods, extender: Extender) -> None:
    """While lost-0 waits in Permit, with six of the eight cards."""
    _member(pods, "lost-0", 6, size=2, wait_s=300)  # a killed replica is back by then
    eventually("its cards are reserved", lambda: extender.slots_used() == 6)
    before = extender.kill_leader()
    eventually("another leads", lambda: extender.leading() not in ("", before))
    extender.wait_ready()


@shows(
    "E5",
    fault="the leader dies while half of a gang waits in Permit, and its pod is nominated",
    happens="the next leader keeps its room: Kubernetes 1.35 and later nominates what waits so",
)
def test_extender_killed_while_half_of_a_nominated_gang_waits(
    pods: Pods, extender: Extender
) -> None:
    _leader_dies(pods, extender)
    assert pods.read("lost-0")["status"]["nominatedNodeName"]
    pods.create("other", _box(4), scheduler=DEFAULT)
    eventually("the other waits", lambda: _was_given_up(pods, "other"))
    _member(pods, "lost-1", 1, size=2, wait_s=90)
    pods.wait_running("lost-0", "lost-1")
    assert _bound(pods) == {"lost-0", "lost-1"}
    _check_no_card_is_given_twice(pods)
    pods.delete("lost-0", "lost-1")
    pods.wait_running("other")


@pytest.mark.e2e_long
@shows(
    "E5",
    fault="the leader dies while half of a gang waits in Permit, and others take its cards",
    happens="the gang's pod is decided again when it is bound, and waits for cards that are free",
)
def test_extender_killed_while_half_of_a_gang_waits(
    api: Api, pods: Pods, extender: Extender
) -> None:
    _leader_dies(pods, extender)
    nobody = {"status": {"nominatedNodeName": None}}  # as before Kubernetes 1.35
    api.patch(f"{Pods.path}/lost-0/status", nobody)
    pods.create("other", _box(4), scheduler=DEFAULT)
    pods.wait_running("other")
    _member(pods, "lost-1", 1, size=2, wait_s=90)
    pods.wait_running("lost-1")
    eventually("lost-0 is given up", lambda: _was_given_up(pods, "lost-0"))
    assert _bound(pods) == {"other", "lost-1"}
    _check_no_card_is_given_twice(pods)
    pods.delete("other")
    pods.wait_running("lost-0")
    _check_no_card_is_given_twice(pods)
