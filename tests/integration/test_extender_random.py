"""A seeded random run against the extender: never over-committed, nothing leaked, nothing lost.

Set HAMI_NODE_TEST_SEED to run a given seed again.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

import pytest

from hami_node.model import ContainerKind
from hami_node.simulate.store import Json
from hami_node.vendors.holding import UNBOUND_S
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.integration.extender_rig import (
    ExtenderRig,
    is_over,
    pod_manifest,
)

SEED: Final = int(os.environ.get("HAMI_NODE_TEST_SEED", "20260"))
NODES: Final = ("n0", "n1", "n2", "n3", "n4", "n5")
WITH_IDENTITY: Final = ("n0", "n1", "n2")
WORKERS: Final = 4
CHECK_EVERY: Final = 50
CALM_EVERY: Final = 250
MOST_PODS: Final = 90
QUICK_FAULTS: Final[tuple[int | str, ...]] = (409, 500, "reset", "reset-after")
FAULTY: Final = (
    ("patch", "pods"),
    ("get", "pods"),
    ("create", "pods"),  # bindings
    ("patch", "nodes"),
    ("get", "nodes"),
    ("create", "events"),
    ("watch", "*"),
    ("list", "*"),
)


class Run:
    """One run: chooses steps, plays everybody, and lets calls of different pods overlap."""

    def __init__(self, rig: ExtenderRig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.names: list[str] = []
        self.created: dict[str, Json] = {}
        self.chosen: dict[str, str] = {}
        self.done: Counter[str] = Counter()
        self.last_name = 0
        self.calls: dict[Future[None], str] = {}
        self.pool = ThreadPoolExecutor(WORKERS)
        self.lock = threading.Lock()
        steps: tuple[tuple[float, Callable[[], None]], ...] = (
            (18, self.create),
            (26, self.filter_one),
            (26, self.bind_one),
            (3, self.filter_again),
            (2, self.bind_wrongly),
            (3, self.call_twice),
            (13, self.serve_one),
            (9, self.finish_one),
            (14, self.delete_one),
            (2, self.end_inits),
            (2.5, self.change_node),
            (2, self.fail_quickly),
            (0.1, self.fail_slowly),
            (0.25, self.lose_binding),
            (0.1, self.blind),
            (0.05, self.outage),
            (0.3, self.expire),
            (0.05, self.wait_long),
            (0.5, self.rig.sweep),
        )
        self.weights = [weight for weight, _ in steps]
        self.steps = [step for _, step in steps]

    def step(self, number: int) -> None:
        self.random.choices(self.steps, self.weights)[0]()
        if number % CHECK_EVERY == 0:
            self.check()
        if number % CALM_EVERY == 0:
            self.rig.settle()  # a watch that waits before it tries again slows nobody here down

    def check(self) -> None:
        wrongs = self.rig.wrongs()
        assert not wrongs, wrongs

    # -- calls side by side ------------------------------------------------------------------------
    def call(self, name: str, body: Callable[[], None]) -> None:
        while len(self.calls) >= WORKERS:
            self.collect()
        self.calls[self.pool.submit(body)] = name

    def collect(self, *, all_of_them: bool = False) -> None:
        while self.calls:
            done, _ = wait(self.calls, timeout=60, return_when=FIRST_COMPLETED)
            assert done, f"calls hang: {list(self.calls.values())}"
            for call in done:
                del self.calls[call]
                call.result()
            if not all_of_them:
                return

    def idle(self) -> list[str]:
        """Pods about which nothing is asked just now."""
        busy = set(self.calls.values())
        return [name for name in self.names if name not in busy]

    def some(self, wanted: Callable[[Json], bool]) -> Json | None:
        """A pod like this, as it stands."""
        for name in self.random.sample(idle := self.idle(), min(len(idle), 12)):
            pod = self.rig.find(name)
            if pod is not None and wanted(pod):
                return pod
        return None

    # -- pods --------------------------------------------------------------------------------------
    def create(self) -> None:
        if len(self.names) >= MOST_PODS:
            self.delete_one()
            return
        if self.random.random() < 0.1 and self.last_name:
            name = f"p{self.random.randrange(self.last_name)}"  # a name that was used before
            if name in self.names:
                return
        else:
            name, self.last_name = f"p{self.last_name}", self.last_name + 1
        self.created[name] = self.rig.api.create("pods", pod_manifest(name, self.boxes(), {}))
        self.names.append(name)
        self.chosen.pop(name, None)

    def boxes(self) -> list[Box]:
        pick = self.random
        if pick.random() < 0.05:
            return [Box(cards=0)]

        def box(name: str, kind: ContainerKind = ContainerKind.APP) -> Box:
            cards = pick.choice((0, 1, 1, 1, 2)) if name != "c0" else pick.choice((1, 1, 1, 2))
            if not cards:
                return Box(name=name, kind=kind, cards=0)
            return Box(
                name=name,
                kind=kind,
                cards=cards,
                memory_mib=pick.choice((500, 500, 1000, 1000, 3000, 8000, None)),
                memory_percent=pick.choice((None, 5, 10, 25)),
                cores=pick.choice((None, None, 0, 10, 10, 30, 50, 100)),
            )

        boxes = [box(f"c{number}") for number in range(pick.choice((1, 1, 2)))]
        if pick.random() < 0.2:
            boxes.append(box("init", ContainerKind.INIT))
        if pick.random() < 0.15:
            boxes.append(box("side", ContainerKind.SIDECAR))
        return boxes

    def serve_one(self) -> None:
        pod = self.some(lambda pod: bool(pod["spec"].get("nodeName")) and _waits(pod))
        if pod is not None:
            self.rig.serve(pod["metadata"]["name"])

    def finish_one(self) -> None:
        pod = self.some(lambda pod: bool(pod["spec"].get("nodeName")) and not is_over(pod))
        if pod is not None:
            phase = self.random.choice(("Succeeded", "Failed"))
            self.rig.edit(pod["metadata"]["name"], lambda body: body["status"].update(phase=phase))

    def delete_one(self) -> None:
        """In whatever phase it is, also in the middle of a call."""
        if not self.names:
            return
        name = self.random.choice(self.names)
        if self.random.random() < 0.2:
            self.rig.edit(
                name, lambda body: body["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z")
            )
            return
        self.names.remove(name)
        self.rig.delete(name)

    def end_inits(self) -> None:
        pod = self.some(
            lambda pod: bool(pod["spec"]["initContainers"] and pod["spec"].get("nodeName"))
        )
        if pod is None:
            return
        ended = [
            {"name": container["name"], "state": {"terminated": {"exitCode": 0}}}
            for container in pod["spec"]["initContainers"]
            if container.get("restartPolicy") != "Always"
        ]
        self.rig.edit(
            pod["metadata"]["name"],
            lambda body: body["status"].update(initContainerStatuses=ended),
        )

    # -- kube-scheduler ----------------------------------------------------------------------------
    def filter_one(self) -> None:
        pod = self.some(
            lambda pod: (
                not pod["spec"].get("nodeName") and pod["metadata"]["name"] not in self.chosen
            )
        )
        if pod is not None:
            self.call_filter(pod)

    def filter_again(self) -> None:
        """A pod with a reservation, or with anything; at times as it was long ago."""
        pod = self.some(lambda pod: True)
        if pod is not None and self.random.random() < 0.3:
            pod = self.created[pod["metadata"]["name"]]
        if pod is not None:
            self.call_filter(pod)

    def call_filter(self, pod: Json) -> None:
        nodes = list(NODES) if self.random.random() < 0.7 else self.random.sample(NODES, 3)

        def body() -> None:
            answer = self.rig.filter(pod, [*nodes, "unknown"])
            chosen = answer["NodeNames"] or []
            with self.lock:
                self.done["filtered" if chosen else "not filtered"] += 1
                if chosen:
                    self.chosen[pod["metadata"]["name"]] = chosen[0]
                else:
                    self.chosen.pop(pod["metadata"]["name"], None)

        self.call(pod["metadata"]["name"], body)

    def bind_one(self) -> None:
        pod = self.some(
            lambda pod: not pod["spec"].get("nodeName") and pod["metadata"]["name"] in self.chosen
        )
        if pod is not None:
            self.call_bind(pod, self.chosen[pod["metadata"]["name"]])

    def bind_wrongly(self) -> None:
        """Without a filter, twice, to another node, or as another pod."""
        pod = self.some(lambda pod: True)
        if pod is not None:
            uid = "another" if self.random.random() < 0.3 else ""
            self.call_bind(pod, self.random.choice((*NODES, "unknown")), uid)

    def call_bind(self, pod: Json, node: str, uid: str = "") -> None:
        name = pod["metadata"]["name"]
        is_served = self.random.random() < 0.8

        def body() -> None:
            error = self.rig.bind(pod, node, uid)
            with self.lock:
                self.done["not bound" if error else "bound"] += 1
                self.chosen.pop(name, None)
            if not error and is_served:
                self.rig.serve(name)

        self.call(name, body)

    def call_twice(self) -> None:
        """As after a time-out of kube-scheduler: two calls about one pod at once."""
        pod = self.some(lambda pod: not pod["spec"].get("nodeName"))
        if pod is None:
            return
        node = self.chosen.get(pod["metadata"]["name"])
        for _ in range(2):
            if node is None or self.random.random() < 0.4:
                self.call_filter(pod)
            else:
                self.call_bind(pod, node)

    # -- nodes -------------------------------------------------------------------------------------
    def change_node(self) -> None:
        name, pick = self.random.choice(NODES), self.random
        what = pick.choice(("sick", "cordoned", "unserved", "gone", "identity", *["well"] * 6))
        if what == "gone":
            if name in self.rig.nodes():
                self.rig.api.delete("nodes", name)
            return
        self.rig.write_node(
            name,
            has_identity=name in WITH_IDENTITY and what != "identity",
            is_old=name in ("n2", "n5"),
            sick=(pick.randrange(4),) if what == "sick" else (),
            is_served=what != "unserved",
            is_cordoned=what == "cordoned",
        )

    # -- faults ------------------------------------------------------------------------------------
    def fail_quickly(self) -> None:
        verb, resource = self.random.choice(FAULTY)
        self.rig.api.fail_next(
            verb, resource, self.random.choice(QUICK_FAULTS), self.random.choice((1, 1, 2, 3))
        )
        self.done["faults"] += 1

    def fail_slowly(self) -> None:
        verb, resource = self.random.choice(FAULTY[:5])
        self.rig.api.fail_next(verb, resource, self.random.choice((429, 503, "hang")))
        timer = threading.Timer(0.2, self.rig.api.faults.clear)
        timer.start()
        self.done["faults"] += 1

    def lose_binding(self) -> None:
        """The next binding is made, and nobody learns of it."""
        self.rig.api.fail_next("create", "pods", "reset-after")
        self.rig.api.fail_next("get", "pods", 500)
        self.blind()

    def blind(self) -> None:
        """The watch of pods is away for a moment."""
        self.rig.api.fail_next("watch", "pods", 500)
        self.rig.api.drop_watches()
        self.done["blind"] += 1

    def outage(self) -> None:
        self.rig.api.go_down()
        self.rig.extender.stop.wait(0.1)
        self.rig.api.start()
        self.done["outages"] += 1

    def expire(self) -> None:
        self.rig.api.expire_watches()
        self.done["410s"] += 1

    def wait_long(self) -> None:
        """Long enough for every unbound reservation and every lock to expire."""
        self.collect(all_of_them=True)
        self.rig.api.faults.clear()
        self.rig.settle()
        self.rig.pass_time(UNBOUND_S + 10.0)
        self.done["long waits"] += 1

    # -- the end -----------------------------------------------------------------------------------
    def calm_down(self) -> None:
        """Calls end, faults are over, the sweeper has been there."""
        self.collect(all_of_them=True)
        self.rig.api.faults.clear()
        self.rig.settle()
        for _ in range(5):
            self.rig.sweep()
            self.rig.settle()
        assert self.rig.state.leftovers() == ()

    def clear_all(self) -> None:
        for name in self.names:
            self.rig.delete(name)
        self.rig.settle()


def _waits(pod: Json) -> bool:
    said = pod["metadata"].get("annotations") or {}
    return said.get(names.POD_BIND_PHASE) == names.PHASE_ALLOCATING


@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_random_run_never_overcommits_and_loses_nothing(steps: int) -> None:
    rig = ExtenderRig().start()
    for node in NODES:
        rig.write_node(node, has_identity=node in WITH_IDENTITY, is_old=node in ("n2", "n5"))
    rig.settle()
    run = Run(rig, SEED)
    number = 0
    try:
        for number in range(1, steps + 1):
            run.step(number)
        run.calm_down()
        run.check()
        drift = rig.drift()
        assert not drift, "\n".join(drift)
        rig.pass_time(UNBOUND_S + 10.0)
        run.calm_down()
        drift = rig.drift()
        assert not drift, "\n".join(drift)
        bound = {pod.uid for pod in rig.pods() if pod.node_name and not pod.is_over}
        assert set(rig.state.charges()) <= bound
        run.clear_all()
        assert rig.state.charges() == {}
        assert rig.state.sizes()[1] == 0
        assert rig.state._pods._pods == {}
        assert run.done["bound"] > steps / 40, run.done
    finally:
        print(f"seed {SEED}, step {number} of {steps}: {dict(run.done)}")  # shown on a failure
        run.pool.shutdown(cancel_futures=True)
        rig.close()
