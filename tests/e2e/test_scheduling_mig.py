"""(m) Cards in MIG mode: instances are made for pods, seen by them alone, and go with them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards, mig
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pods import Pods, RealContainer, describe
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.trouble import Trouble, impatient_kubelet
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_EVERY_S: Final = 1.0
_PID: Final = 4242


@pytest.fixture(scope="module")
def divided(api: Api, changeable: Daemon, scheduling: Extender) -> Iterator[Daemon]:
    """The daemon on a node whose cards are divided; the extender knows their geometries."""
    with mig.divided_node(api, changeable):
        scheduling.wait_for_settings(mig.OLD_MODEL)
        yield changeable
    scheduling.replace()
    scheduling.wait_for_settings(mig.OLD_MODEL, is_there=False)


@pytest.fixture
def daemon(divided: Daemon) -> Daemon:
    """In place of the usual one: ready, with every instance offered."""
    divided.wait_ready()
    divided.wait_offered(mig.SLOTS)
    return divided


@pytest.fixture(autouse=True)
def clean_hardware(pods: Pods) -> Iterator[None]:
    """After each test no pod, no process and nobody else's instance is left."""
    yield
    pods.clear()
    mig.clear()


def _small(card: int, start: int) -> Slice:
    """The smallest instance of a card, as 2.10 reserves it."""
    instance = ("1g.10gb", start, 1)
    return Slice(uuid=cards.uuid_of(card), memory_mib=9984, cores=13, instance=instance)


def _double(card: int, start: int) -> Slice:
    instance = ("2g.20gb", start, 2)
    return Slice(uuid=cards.uuid_of(card), memory_mib=20096, cores=25, instance=instance)


def _box(name: str = "c0", count: int = 1, memory_mib: int = 9000) -> RealContainer:
    return RealContainer(name=name, cards=count, memory_mib=memory_mib)


def _check_inside(pods: Pods, name: str, container: str, wanted: Sequence[str]) -> None:
    """It is told of exactly these instances, and has nothing of the limiter's."""
    inside = pods.inside(name, container)
    assert inside.cards == tuple(wanted)
    assert not [name for name in inside.env if name.startswith("CUDA_")], inside.env
    assert not [path for path in inside.mounts if "vgpu" in path], inside.mounts
    assert "libvgpu" not in inside.preload


def _at(card: int, start: int) -> str:
    """The UUID of the instance at that place."""
    places = {place: uuid for uuid, place in mig.instances().items()}
    return next(u for (c, _, s), u in places.items() if (c, s) == (cards.uuid_of(card), start))


def test_api_server_takes_the_overlay_with_the_rights_for_instances(cluster: Cluster) -> None:
    overlay = Path(__file__).parents[2] / "daemonset/overlays/mig"
    taken = cluster.kubectl("apply", "--dry-run=server", "-k", str(overlay))
    assert "daemonset.apps/hami-node configured (server dry run)" in taken


def test_card_without_mode_is_switched_to_it_while_nobody_is_on_it(daemon: Daemon) -> None:
    assert daemon.allocatable(nvidia_names.RESOURCE_GPU) == mig.SLOTS
    card = mig.HARDWARE.look()[cards.uuid_of(mig.FORMERLY_OFF)]
    assert (card.current, card.pending) == (1, 1)


def test_containers_see_the_instances_that_were_made_for_them(
    daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    pod = pods.create("two", _box("c0"), _box("c1", count=2))
    reserved = {"c0": (_small(0, 6),), "c1": (_small(0, 5), _double(1, 0))}
    scheduler.place(pod, reserved, is_locked=True)
    pods.wait_running("two")
    mig.wait_agreed(pods)
    _check_inside(pods, "two", "c0", [_at(0, 6)])
    _check_inside(pods, "two", "c1", [_at(0, 5), _at(1, 0)])
    assert pods.annotation("two", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    pods.delete("two")
    eventually("nothing is left", lambda: not mig.instances())
    assert daemon.restarts() == 0


def test_template_of_the_older_generations_gets_the_profile_that_its_slot_names(
    pods: Pods, scheduler: Scheduler
) -> None:
    for name, slot, memory_mib in (("big", 1, 10240), ("small", 0, 5120), ("next", 2, 10240)):
        pod = pods.create(name, _box(memory_mib=memory_mib - 1000))
        card = f"{cards.uuid_of(mig.BY_TEMPLATE)}[0-{slot}]"
        scheduler.place(pod, {"c0": (Slice(uuid=card, memory_mib=memory_mib),)})
    pods.wait_running("big", "small", "next")
    there = mig.instances()
    for name, profile in (("big", "2g.10gb"), ("small", "1g.5gb"), ("next", "2g.10gb")):
        (uuid,) = pods.inside(name, "c0").cards
        assert there[uuid][:2] == (cards.uuid_of(mig.BY_TEMPLATE), profile)
    pods.clear()
    eventually("nothing is left", lambda: not mig.instances())


def test_place_is_made_anew_for_a_pod_that_comes_right_after_another(
    pods: Pods, scheduler: Scheduler
) -> None:
    scheduler.place(pods.create("former", _box()), {"c0": (_small(2, 3),)})
    pods.wait_running("former")
    former = _at(2, 3)
    pods.remove_by_force("former")
    eventually("it is gone", lambda: not pods.all())
    scheduler.place(pods.create("latter", _box()), {"c0": (_small(2, 3),)})
    status = eventually("it runs or not", lambda: _ended_or_runs(pods, "latter"))
    if status == "Failed":  # its predecessor's container was still there: refused by name
        assert "former" in describe(pods.read("latter")["status"])
    else:
        mig.wait_agreed(pods)
        assert _at(2, 3) != former


def _ended_or_runs(pods: Pods, name: str) -> str:
    phase = str(pods.read(name)["status"]["phase"])
    return phase if phase in ("Running", "Failed") else ""


def test_busy_instance_keeps_its_place_and_nothing_else(
    daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    scheduler.place(pods.create("former", _box()), {"c0": (_small(3, 0),)})
    pods.wait_running("former")
    busy = _at(3, 0)
    mig.HARDWARE.run(busy, _PID)
    pods.delete("former")
    stays("the busy instance is there", lambda: busy in mig.instances(), 4)
    eventually("its place is not offered", lambda: 0 not in _starts(daemon, 3, "1g.10gb"))
    scheduler.place(pods.create("same", _box()), {"c0": (_small(3, 0),)})
    assert str(_PID) in pods.wait_phase("same", "Failed")["message"]
    for name, slice_ in (("beside", _small(3, 1)), ("elsewhere", _small(4, 0))):
        scheduler.place(pods.create(name, _box()), {"c0": (slice_,)})
    pods.wait_running("beside", "elsewhere")
    mig.HARDWARE.end(busy)
    eventually("it is gone", lambda: busy not in mig.instances())
    eventually("its place is offered", lambda: 0 in _starts(daemon, 3, "1g.10gb"))


def _starts(daemon: Daemon, card: int, profile: str) -> set[int]:
    """Where the node offers a profile of a card."""
    for row in json.loads(daemon.annotations()[nvidia_names.NODE_REGISTER]):
        if row["id"] == cards.uuid_of(card):
            profiles = {item["name"]: item["placements"] for item in row["migProfiles"]}
            return {place.get("start", 0) for place in profiles.get(profile, [])}
    raise AssertionError(f"card {card} is not registered")


def test_instance_of_somebody_else_is_taken_and_never_touched(
    daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    foreign = mig.make_foreign(4, "3g.40gb", 4)
    eventually("its places are not offered", lambda: _starts(daemon, 4, "1g.10gb") == {0, 1, 2, 3})
    scheduler.place(pods.create("on-it", _box()), {"c0": (_small(4, 5),)})
    assert foreign in pods.wait_phase("on-it", "Failed")["message"]
    scheduler.place(pods.create("beside", _box()), {"c0": (_small(4, 2),)})
    pods.wait_running("beside")
    pods.clear()
    eventually("only it is left", lambda: set(mig.instances()) == {foreign})
    mig.clear()
    eventually("all is offered", lambda: _starts(daemon, 4, "1g.10gb") == set(range(7)))


@pytest.fixture
def impatient(cluster: Cluster, api: Api, daemon: Daemon) -> Iterator[None]:
    """A kubelet that starts crashed containers again within seconds."""
    with impatient_kubelet(cluster, api):
        daemon.wait_offered(mig.SLOTS)
        yield
    daemon.forget_crashes()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("impatient", "scheduling")
@shows(
    "M6",
    fault="the daemon is killed 20 times while 30 pods with instances come and go",
    happens="the hardware has the instances of the pods that run and no other, no lock stays",
    lost="pods that came while no plugin served: kubelet refuses them",
)
@pytest.mark.e2e_long
@pytest.mark.parametrize(("many", "kills"), [(30, 20)])
def test_kills_at_random_moments_leave_no_instance_and_lose_none(
    daemon: Daemon, pods: Pods, scheduler: Scheduler, many: int, kills: int
) -> None:
    seed = random.Random(12)
    foreign = mig.make_foreign(0, "2g.20gb", 2)
    trouble = Trouble(seed, many * _EVERY_S)
    trouble.kill("daemon", kills, daemon.kill)
    for number in range(many):
        memory_mib = seed.choice([5000, 15000, 30000])
        box = RealContainer(name="c0", cards=1, memory_mib=memory_mib)
        pods.create(f"churn-{number:02d}", box, scheduler=DEFAULT)
        if number % 3 == 2:
            for victim in seed.sample(range(number - 2, number + 1), 2):
                pods.remove_by_force(f"churn-{victim:02d}")
        time.sleep(_EVERY_S)
    for thread in trouble.threads:
        thread.join()
    assert not trouble.errors
    assert len(pods.all()) < mig.HALVES  # the foreign instance is on one
    daemon.wait_ready()
    eventually("no pod waits", lambda: _no_pod_waits(pods))
    mig.wait_agreed(pods, foreign)
    running = [pod["metadata"]["name"] for pod in pods.all() if pod["status"]["phase"] == "Running"]
    seen = [pods.inside(name, "c0").cards for name in running]
    assert seen
    assert {uuid for (uuid,) in seen} == set(mig.instances()) - {foreign}
    assert len(set(seen)) == len(seen)
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    print(f"killed {dict(trouble.done)}; {len(running)} of {many} run")
    pods.clear()
    eventually("only it is left", lambda: set(mig.instances()) == {foreign})


def _no_pod_waits(pods: Pods) -> bool:
    waiting = {
        pod["metadata"]["name"]: describe(pod["status"])
        for pod in pods.all()
        if pod["status"]["phase"] == "Pending"
    }
    assert not waiting, waiting
    return True
