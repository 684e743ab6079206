"""(e) What can't be had is refused in a sentence; nobody else notices."""

from __future__ import annotations

import re

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards
from tests.e2e.api import Api
from tests.e2e.parts import NODE
from tests.e2e.pods import NOBODY, Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually

_CARD, _OTHER = cards.uuid_of(0), cards.uuid_of(1)


def _messages(api: Api, pod: str) -> list[str]:
    """The texts of the Events about a pod."""
    events = api.read(
        "/api/v1/namespaces/default/events", fieldSelector=f"involvedObject.name={pod}"
    )
    return [str(e["message"]) for e in events["items"]]


def _hold(pods: Pods, scheduler: Scheduler, name: str, uuid: str, memory_mib: int) -> None:
    pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=memory_mib))
    scheduler.place(pod, {"c0": (Slice(uuid=uuid, memory_mib=memory_mib),)})
    pods.wait_running(name)


def test_overcommit_is_refused_and_only_that_pod_suffers(
    api: Api, pods: Pods, scheduler: Scheduler
) -> None:
    _hold(pods, scheduler, "holder", _CARD, 60_000)
    before = pods.incarnations()
    greedy = pods.create("greedy", RealContainer(name="c0", cards=1, memory_mib=40_000))
    scheduler.place(greedy, {"c0": (Slice(uuid=_CARD, memory_mib=40_000),)}, is_locked=True)
    status = pods.wait_phase("greedy", "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    message = status["message"]
    assert _CARD in message
    assert re.search(r"\b40000\b", message)
    assert re.search(rf"\b{cards.MEMORY_MIB - 60_000}\b", message)
    eventually(
        "the pod is marked as failed",
        lambda: pods.annotation("greedy", names.POD_BIND_PHASE) == names.PHASE_FAILED,
    )
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    sentence = message.partition("desc = ")[2].partition(", which is unexpected")[0]
    eventually(
        "an event of our own says the same",
        lambda: any(m == sentence for m in _messages(api, "greedy")),
    )
    now = pods.incarnations()
    assert {k: v for k, v in now.items() if k in before} == before
    _hold(pods, scheduler, "modest", _OTHER, 40_000)


def test_cores_beyond_the_card_are_refused(pods: Pods, scheduler: Scheduler) -> None:
    for name, cores in (("most", 70), ("rest", 40)):
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=1000, cores=cores))
        scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=1000, cores=cores),)})
        if name == "most":
            pods.wait_running(name)
    message = pods.wait_phase("rest", "Failed")["message"]
    assert _CARD in message
    assert re.search(r"\b30\b", message)
    assert re.search(r"\b40\b", message)


def test_eleventh_container_of_a_card_is_refused(pods: Pods, scheduler: Scheduler) -> None:
    for number in range(cards.SPLIT + 1):
        pod = pods.create(f"p{number}", RealContainer(name="c0", cards=1, memory_mib=100))
        scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=100),)})
    pods.wait_running(*(f"p{n}" for n in range(cards.SPLIT)))
    assert _CARD in pods.wait_phase(f"p{cards.SPLIT}", "Failed")["message"]


def test_reservation_above_the_containers_own_limits_is_refused(
    pods: Pods, scheduler: Scheduler
) -> None:
    pod = pods.create("forged", RealContainer(name="c0", cards=1, memory_mib=1000))
    scheduler.place(pod, {"c0": (Slice(uuid=_CARD, memory_mib=50_000),)})
    message = pods.wait_phase("forged", "Failed")["message"]
    assert re.search(r"\b50000\b", message)
    assert re.search(r"\b1000\b", message)


def test_card_of_another_node_is_refused(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("stray", RealContainer(name="c0", cards=1, memory_mib=1000))
    scheduler.place(pod, {"c0": (Slice(uuid="GPU-of-another-node", memory_mib=1000),)})
    assert "GPU-of-another-node" in pods.wait_phase("stray", "Failed")["message"]


def test_pod_that_bypassed_the_scheduler_is_told_so(api: Api, pods: Pods) -> None:
    box = RealContainer(name="c0", cards=1, memory_mib=1000)
    spec = {"nodeName": NODE, "containers": [box.manifest()], "restartPolicy": "Never"}
    api.create(Pods.path, {"metadata": {"name": "bypass"}, "spec": spec})
    message = pods.wait_phase("bypass", "Failed")["message"]
    assert "default/bypass" in message
    assert "reserv" in message


def test_malformed_annotations_of_others_hurt_nobody(
    api: Api, pods: Pods, scheduler: Scheduler
) -> None:
    for number, text in enumerate(
        ("GPU-1,NVIDIA,x,y:;", ";;;,,,::", "\U0001f600", "[]", "a" * 999)
    ):
        annotations = {nvidia_names.POD_TO_ALLOCATE: text, nvidia_names.POD_ALLOCATED: text}
        pods.create(
            f"odd-{number}", RealContainer(name="c0"), annotations=annotations, scheduler=NOBODY
        )
        pod = pods.create(f"odd-bound-{number}", RealContainer(name="c0"), annotations=annotations)
        scheduler.bind(pod)
    _hold(pods, scheduler, "good", _CARD, 1000)
    assert pods.inside("good", "c0").cards == (_CARD,)
