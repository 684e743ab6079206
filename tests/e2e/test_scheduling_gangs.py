"""Gangs, gates and pods that fail late, under the real kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.wire import names
from tests.e2e import cards
from tests.e2e.api import Api, Json
from tests.e2e.extender import DEFAULT
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually
from tests.reliability import shows

_CARDS: Final = len(cards.UUIDS)
_CLAIM: Final = "/api/v1/namespaces/default/persistentvolumeclaims/e2e-late"
_JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
_CLASS: Final = "/apis/storage.k8s.io/v1/storageclasses/e2e-late"


def _asking(count: int) -> RealContainer:
    return RealContainer(name="c0", cards=count)


@pytest.fixture
def claim(api: Api) -> Iterator[str]:
    """A volume that waits for its pod, of a provisioner that does not exist."""
    api.create(
        _CLASS.rpartition("/")[0],
        {
            "metadata": {"name": "e2e-late"},
            "provisioner": "nobody.example/none",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "e2e-late",
        "resources": {"requests": {"storage": "1Mi"}},
    }
    api.create(_CLAIM.rpartition("/")[0], {"metadata": {"name": "e2e-late"}, "spec": spec})
    yield "e2e-late"
    _remove_claim(api)
    api.delete(_CLASS)


def _remove_claim(api: Api) -> None:
    """Kubernetes protects it while a pod names it, and puts the protection back once."""
    api.delete(_CLAIM)
    bare = {"metadata": {"finalizers": None}}
    eventually("the claim is gone", lambda: not (api.exists(_CLAIM) and api.patch(_CLAIM, bare)))


def _pod(name: str, count: int, **spec: object) -> Json:
    """A pod as `Pods.create` makes it, with more in its spec."""
    return {
        "metadata": {"name": name, "labels": {"e2e": "pod"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [_asking(count).manifest()],
            **spec,
        },
    }


@shows(
    "E5",
    fault="a pod's volume is gone after its cards were reserved, and before it is bound",
    happens="its cards are free as soon as kube-scheduler has given it up, not after 25 minutes",
)
@pytest.mark.usefixtures("extender")
def test_pod_whose_volume_fails_gives_its_cards_back(api: Api, pods: Pods, claim: str) -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
    api.create(Pods.path, _pod("late", _CARDS, volumes=[volume]))
    key = "volume.kubernetes.io/selected-node"

    def is_chosen() -> bool:
        return key in api.read(_CLAIM)["metadata"].get("annotations", {})

    eventually("kube-scheduler waits for the volume", is_chosen)
    _remove_claim(api)
    pods.create("next", _asking(_CARDS), scheduler=DEFAULT)
    pods.wait_running("next")


@pytest.mark.usefixtures("extender")
def test_pod_with_a_scheduling_gate_holds_nothing_until_it_is_open(api: Api, pods: Pods) -> None:
    api.create(Pods.path, _pod("gated", _CARDS, schedulingGates=[{"name": "example.com/e2e"}]))
    pods.create("other", _asking(_CARDS), scheduler=DEFAULT)
    pods.wait_running("other")
    assert pods.annotation("gated", names.POD_NODE) == ""
    pods.delete("other")
    api.patch(f"{Pods.path}/gated", {"spec": {"schedulingGates": None}})
    pods.wait_running("gated")


@pytest.fixture
def job(api: Api) -> Iterator[str]:
    """A suspended Job of two pods that take half of the cards each: Kueue admits such ones."""
    template = _pod("unused", _CARDS // 2)
    del template["metadata"]["name"]
    spec = {"suspend": True, "parallelism": 2, "completions": 2, "template": template}
    api.create(_JOBS, {"metadata": {"name": "batch"}, "spec": spec})
    yield f"{_JOBS}/batch"
    api.delete(f"{_JOBS}/batch")


@pytest.mark.usefixtures("extender")
def test_suspended_job_holds_cards_only_while_it_is_admitted(
    api: Api, pods: Pods, job: str
) -> None:
    pods.create("other", _asking(_CARDS), scheduler=DEFAULT)
    pods.wait_running("other")
    assert [pod["metadata"]["name"] for pod in pods.all()] == ["other"]
    api.patch(job, {"spec": {"suspend": False}})
    eventually("its pods wait", lambda: len(pods.all()) == 3)
    pods.delete("other")
    members = [pod["metadata"]["name"] for pod in pods.all()]
    pods.wait_running(*members)
    pods.create("next", _asking(_CARDS), scheduler=DEFAULT)
    api.patch(job, {"spec": {"suspend": True}})  # Kueue takes it back for another workload
    pods.wait_running("next")
    over = ("Succeeded", "Failed")  # an ended pod's object may stay for a moment
    alive = [pod["metadata"]["name"] for pod in pods.all() if pod["status"]["phase"] not in over]
    assert alive == ["next"]
    eventually("the Job's pods are gone", lambda: len(pods.all()) == 1)
