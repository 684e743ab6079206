"""A user's pod, from its limits to its slice: webhook, kube-scheduler, extender, daemon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire import names
from hami_node.wire.grants import decode_grants
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.extender import DEFAULT, SCHEDULER, Extender
from tests.e2e.limiter import CONTAINERS
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

_QUOTA = "/api/v1/namespaces/default/resourcequotas"
_WHOLE_MIB = cards.MEMORY_MIB


def _card_of(pods: Pods, name: str) -> str:
    """The card of a pod's only grant."""
    key = nvidia_names.POD_ALLOCATED
    slots = decode_grants(pods.annotation(name, key), key, NVIDIA)
    (grant,) = [grant for slot in slots for grant in slot]
    return grant.uuid


def _events(api: Api, pod: str) -> dict[str, str]:
    """The last message of each reason about a pod."""
    path = "/api/v1/namespaces/default/events"
    found = api.read(path, fieldSelector=f"involvedObject.name={pod}")["items"]
    return {one["reason"]: str(one.get("message")) for one in found}


def _one(memory_mib: int | None = 3000, cores: int | None = 10) -> RealContainer:
    return RealContainer(name="c0", cards=1, memory_mib=memory_mib, cores=cores)


@pytest.fixture(scope="module")
def ended() -> list[str]:
    """UIDs of pods of earlier tests."""
    return []


@pytest.mark.usefixtures("extender")
def test_pod_comes_from_its_limits_to_its_slice(pods: Pods, api: Api, ended: list[str]) -> None:
    began = time.monotonic()
    pod = pods.create("mine", RealContainer(name="c0", cards=1, memory_mib=3000), scheduler=DEFAULT)
    assert pod["spec"]["schedulerName"] == SCHEDULER
    pods.wait_running("mine")
    print(f"a pod with a card runs {time.monotonic() - began:.1f} s after its creation")
    inside = pods.inside("mine", "c0")
    assert inside.memory_limits == ("3000m",)
    assert inside.cards == (_card_of(pods, "mine"),)
    assert pods.annotation("mine", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    events = eventually("both Events", lambda: _told(api, "mine"))
    assert "find fit node" in events["FilteringSucceed"]
    assert _folders(pod["metadata"]["uid"])
    ended.append(pod["metadata"]["uid"])


def _folders(uid: str) -> list[Path]:
    """What the daemon keeps on the node for the pod's containers."""
    return list(CONTAINERS.glob(f"{uid}_*"))


def _told(api: Api, pod: str) -> dict[str, str]:
    events = _events(api, pod)
    assert {"FilteringSucceed", "BindingSucceed"} <= events.keys(), events
    return events


@pytest.mark.usefixtures("extender")
def test_container_without_share_gets_the_whole_card(pods: Pods) -> None:
    pod = pods.create("whole", _one(None, None), scheduler=DEFAULT)
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits[nvidia_names.RESOURCE_GPU_CORES] == "100"
    pods.wait_running("whole")
    assert pods.inside("whole", "c0").memory_limits == (f"{_WHOLE_MIB}m",)


@pytest.mark.usefixtures("extender")
def test_twenty_pods_at_once_all_get_their_own(pods: Pods) -> None:
    wanted = {f"crowd-{n:02d}": 1000 + 37 * n for n in range(20)}
    began = time.monotonic()
    for name, memory_mib in wanted.items():
        pods.create(name, _one(memory_mib), scheduler=DEFAULT)
    pods.wait_running(*wanted)
    print(f"20 pods run {time.monotonic() - began:.1f} s after the first was created")
    for name, memory_mib in wanted.items():
        inside = pods.inside(name, "c0")
        assert inside.memory_limits == (f"{memory_mib}m",), name
        assert inside.cards == (_card_of(pods, name),), name
    per_card = Counter(_card_of(pods, name) for name in wanted)
    assert max(per_card.values()) <= cards.SPLIT


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize(("policy", "cards_used"), [("binpack", 1), ("spread", 4)])
def test_policy_decides_how_many_cards_four_pods_share(
    pods: Pods, policy: str, cards_used: int
) -> None:
    created = [f"{policy}-{n}" for n in range(4)]
    for name in created:
        wish = {names.POD_GPU_POLICY: policy}
        pods.create(name, _one(), annotations=wish, scheduler=DEFAULT)
    pods.wait_running(*created)
    assert len({_card_of(pods, name) for name in created}) == cards_used


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize(
    ("wish", "number"),
    [
        pytest.param({nvidia_names.USE_GPU_UUID: cards.uuid_of(5)}, 5, id="use-uuid"),
        pytest.param(
            {
                nvidia_names.NOUSE_GPU_UUID: ",".join(cards.UUIDS[:-2]),
                nvidia_names.USE_GPU_TYPE: "h100",
            },
            None,
            id="nouse-uuid-and-type",
        ),
    ],
)
def test_wish_is_granted(pods: Pods, wish: dict[str, str], number: int | None) -> None:
    pods.create("wish", _one(), annotations=wish, scheduler=DEFAULT)
    pods.wait_running("wish")
    allowed = cards.UUIDS[-2:] if number is None else (cards.uuid_of(number),)
    assert _card_of(pods, "wish") in allowed


@pytest.mark.usefixtures("extender")
def test_foreign_model_is_waited_for_with_the_reason(pods: Pods, api: Api) -> None:
    pods.create("a100", _one(), annotations={nvidia_names.USE_GPU_TYPE: "a100"}, scheduler=DEFAULT)
    said = eventually("an Event", lambda: _events(api, "a100").get("FilteringFailed"))
    assert said is not None
    assert "CardTypeMismatch" in said
    assert pods.read("a100")["status"]["phase"] == "Pending"


@pytest.mark.usefixtures("extender")
def test_over_ask_waits_with_the_reason_and_runs_when_room_appears(pods: Pods, api: Api) -> None:
    here = {nvidia_names.USE_GPU_UUID: cards.uuid_of(3)}
    pods.create("first", _one(_WHOLE_MIB - 1000), annotations=here, scheduler=DEFAULT)
    pods.wait_running("first")
    pods.create("second", _one(2000), annotations=here, scheduler=DEFAULT)
    said = eventually("an Event", lambda: _events(api, "second").get("FilteringFailed"))
    assert said is not None
    assert "CardInsufficientMemory" in said
    assert "1000 MiB free" in said
    assert "2000 MiB requested" in said
    pods.delete("first")
    pods.wait_running("second")


@pytest.mark.usefixtures("extender")
def test_room_of_a_deleted_pod_is_free_at_once(pods: Pods) -> None:
    here = {nvidia_names.USE_GPU_UUID: cards.uuid_of(2)}
    pods.create("before", _one(_WHOLE_MIB), annotations=here, scheduler=DEFAULT)
    pods.wait_running("before")
    pods.delete("before")
    began = time.monotonic()
    pods.create("after", _one(_WHOLE_MIB), annotations=here, scheduler=DEFAULT)
    eventually(
        "the same room is given again",
        lambda: pods.annotation("after", nvidia_names.POD_ALLOCATED),
        limit_s=25,  # kube-scheduler looks by itself after 30 s
        every_s=0.05,
    )
    print(f"the room of a deleted pod was given again after {time.monotonic() - began:.2f} s")
    pods.wait_running("after")


@pytest.fixture
def quota(api: Api) -> Iterator[None]:
    """At most 4000 MiB of cards in the namespace."""
    hard = {f"limits.{nvidia_names.RESOURCE_GPU_MEMORY}": "4000"}
    api.create(_QUOTA, {"metadata": {"name": "cards"}, "spec": {"hard": hard}})
    yield
    api.delete(f"{_QUOTA}/cards")


@pytest.mark.usefixtures("extender", "quota")
def test_quota_holds_a_pod_back(pods: Pods, api: Api) -> None:
    pods.create("within", _one(3000), scheduler=DEFAULT)
    pods.wait_running("within")
    pods.create("beyond", _one(1001), scheduler=DEFAULT)
    said = eventually("an Event", lambda: _events(api, "beyond").get("FilteringFailed"))
    assert said is not None
    assert "ResourceQuotaNotFit" in said
    pods.delete("within")
    pods.wait_running("beyond")


def test_plain_pod_is_left_alone(pods: Pods, extender: Extender) -> None:
    pod = pods.create("plain", RealContainer(name="c0"), scheduler=DEFAULT)
    assert pod["spec"]["schedulerName"] == DEFAULT
    pods.wait_running("plain")
    assert extender.wait_leader()


@pytest.mark.usefixtures("daemon")
def test_files_of_a_pod_that_ended_a_minute_ago_are_gone(ended: list[str]) -> None:
    """The last of the module: most of the minute went by in the tests before."""
    if not ended:
        pytest.skip("no pod has ended: the first test of the module did not run")
    eventually("the files are gone", lambda: not any(map(_folders, ended)))
