"""The limiter comes from an image and is upgraded under running containers: each keeps its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from tests.e2e import cards
from tests.e2e.api import Json
from tests.e2e.assets import IMAGE
from tests.e2e.daemon import Daemon
from tests.e2e.limiter import HOOK, LIBRARY
from tests.e2e.machine import NODE_DIR
from tests.e2e.parts import BUSYBOX
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.fakes.limiter import build_library

_SOURCE = NODE_DIR / "limiter-image"  # stands for the files of the publisher's image
_SAYS = f"sha256sum {LIBRARY}; trap 'exit 0' TERM; sleep 100000 & wait"


def _deliver(pod: Json) -> None:
    """The two init containers of components/limiter-image."""
    pod["volumes"] += [
        {"name": "source", "hostPath": {"path": str(_SOURCE), "type": "Directory"}},
        {"name": "fetched", "emptyDir": {}},
    ]
    fetched = {"name": "fetched", "mountPath": "/limiter"}
    common = {"imagePullPolicy": "Never"}
    pod["initContainers"] = [
        {
            "name": "fetch-limiter",
            "image": BUSYBOX,
            "command": ["cp", "-R", "/source/.", "/limiter/"],
            "securityContext": {"runAsUser": 65534, "runAsNonRoot": True},
            "volumeMounts": [
                {"name": "source", "mountPath": "/source", "readOnly": True},
                fetched,
            ],
            **common,
        },
        {
            "name": "install-limiter",
            "image": IMAGE,
            "args": ["install-limiter", "--from=/limiter"],
            "env": [{"name": "HOOK_PATH", "value": str(HOOK)}],
            "securityContext": pod["containers"][0]["securityContext"],
            "volumeMounts": [
                fetched | {"readOnly": True},
                {"name": "limiter", "mountPath": str(HOOK / "vgpu")},
            ],
            **common,
        },
    ]


@pytest.fixture(autouse=True)
def _as_before(changeable: Daemon) -> Iterator[None]:
    """What was installed is gone afterwards."""
    yield
    for path in (HOOK / "vgpu").glob("l*"):
        if path.name not in ("libvgpu.so", "ld.so.preload", "lock"):
            path.unlink()


def _build(version: str) -> str:
    """Another build of the library in the image; its sha256."""
    for old in _SOURCE.glob("*"):
        old.unlink()
    path = _SOURCE / f"libvgpu.so.{version}"
    build_library(path, version)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _start(pods: Pods, scheduler: Scheduler, name: str, card: int) -> str:
    """A pod with a part of a card; the sha256 of the limiter in it."""
    pod = pods.create(
        name,
        RealContainer(name="c0", cards=1, memory_mib=2000, script=_SAYS),
        restart_policy="Always",
    )
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(card), memory_mib=2000),)})
    pods.wait_running(name)
    return _inside(pods, name)


def _inside(pods: Pods, name: str) -> str:
    """What the container says first, once it has said it."""
    return eventually(f"{name} has spoken", lambda: pods.inside(name, "c0").extra.split())[0]


def test_limiter_is_upgraded_under_running_containers(
    changeable: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    first = _build("v2.7.1")
    changeable.run_changed(_deliver)
    changeable.wait_offered()
    assert _start(pods, scheduler, "old", 0) == first
    second = _build("v2.9.0")
    changeable.forget_crashes()
    changeable.wait_offered()
    assert _start(pods, scheduler, "new", 1) == second
    assert changeable.metric("hami_node_limiter_info", sha256=second) == 1

    def served(pod: str) -> bool:
        return changeable.metric("hami_node_container_limiter_info", pod=pod) == 1

    eventually("each limiter is known", lambda: all(map(served, ("old", "new"))))
    before = pods.incarnations()["old/c0"]
    changeable.cluster.ctr("tasks", "kill", "--signal", "KILL", before[0].split("/")[-1])
    eventually("it runs again", lambda: pods.incarnations()["old/c0"][1] > before[1])
    pods.wait_running("old")
    assert _inside(pods, "old") == first
