"""A running pod's share changes: the real extender as a process, the real daemon, usage files."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from hami_node.wire.resize import Approval, encode_approval, is_about
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.limited import LimitedContainer
from tests.fakes.pods import NODE, Box, Part
from tests.fakes.processes import started
from tests.fakes.tenant import ask as ask_tenant
from tests.fakes.tenant import build_tenant
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, SLOTS, Rig, inside, launch
from tests.reliability import shows

pytestmark = pytest.mark.timeout(180)
LIMIT_S: Final = 40.0


class Cluster:
    """A node, pods that run on it, and extenders that come and go."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ports: dict[str, int] = {}
        rig.api.edit(
            "nodes",
            NODE,
            lambda body: body["status"].update(allocatable={GPU: str(SLOTS * rig.card_count)}),
        )

    def extender(self, name: str) -> subprocess.Popen[bytes]:
        """A replica that takes part in the election."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.ports[name] = int(probe.getsockname()[1])
        flags = {
            "kubeconfig": self.rig.kubeconfig,
            "http-bind": f"127.0.0.1:{self.ports[name]}",
            "metrics-address": "off",
            "leader-elect": "true",
            "replica-name": name,
        }
        process = started(self.rig.root / f"{name}.log", "extender", flags)
        self.processes.append(process)
        return process

    def marked(self) -> None:
        """Wait until the leader has marked the node as read."""
        eventually(lambda: names.NODE_READ_BY in self.rig.notes, LIMIT_S)

    def run(self, name: str, memory_mib: int, cores: int = 20) -> LimitedContainer:
        """A pod on card 0 that is served and runs a program."""
        given = Part(uuid=uuid(0), memory_mib=memory_mib, cores=cores)
        self.rig.place(name, [Box(memory_mib=memory_mib, cores=cores)], {"main": [given]})
        answer = self.rig.admit(name)
        assert answer.is_admitted, answer.refusal
        box = LimitedContainer(self.rig.hook, f"uid-{name}")
        box.start(inside(answer), (uuid(0),))
        return box

    def ask(self, name: str, **amounts: int) -> None:
        text = json.dumps({"main": amounts})
        self.rig.api.annotate("pods", name, {names.POD_RESIZE: text}, "default")

    def state(self, name: str) -> dict[str, str]:
        notes = self.rig.pod(name).annotations
        return dict(json.loads(notes.get(names.POD_RESIZE_STATE, "{}")))

    def settled(self, name: str, outcome: str) -> str:
        """Wait for the outcome; what the pod is told."""
        text = self.rig.pod(name).annotations[names.POD_RESIZE]

        def is_settled() -> bool:
            state = self.state(name)
            return bool(state) and is_about(state["id"], text) and state["state"] == outcome

        eventually(is_settled, LIMIT_S)
        return self.state(name)["why"]

    def reserved(self, name: str) -> str:
        return self.rig.pod(name).annotations[nvidia_names.POD_ALLOCATED]

    def filter(self, name: str, memory_mib: int) -> str:
        """What kube-scheduler would hear about a new pod of that size for card 0."""
        box = Box(memory_mib=memory_mib)
        only = {nvidia_names.USE_GPU_UUID: uuid(0)}
        try:
            body = self.rig.api.create(
                "pods",
                {
                    "metadata": {"name": name, "namespace": "default", "annotations": only},
                    "spec": {"schedulerName": "hami-scheduler", "containers": [box.manifest()]},
                    "status": {"phase": "Pending"},
                },
            )
            for port in self.ports.values():
                if answer := _call(port, {"Pod": body, "NodeNames": [NODE]}):
                    return "".join(answer["NodeNames"] or ())
            return "?"
        finally:
            self.rig.api.delete("pods", name, "default")


def _call(port: int, body: dict[str, Any]) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/filter", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
        return dict(json.loads(text)) if response.status == 200 else None
    except OSError:
        return None
    finally:
        connection.close()


@contextmanager
def ended(cluster: Cluster) -> Iterator[None]:
    try:
        yield
    finally:
        for process in cluster.processes:
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def cluster(rig: Rig) -> Iterator[Cluster]:
    """The daemon runs in this process, the extender in one of its own."""
    found = Cluster(rig)
    with ended(found):
        found.extender("one")
        found.marked()
        yield found


def test_share_grows_shrinks_and_never_below_what_is_used(cluster: Cluster) -> None:
    rig = cluster.rig
    a, b = cluster.run("a", 10_000), cluster.run("b", 20_000)
    assert not a.allocate(15_000)

    cluster.ask("a", gpumem=20_000, gpucores=50)
    assert "20000 MiB, 50 %" in cluster.settled("a", "done")
    assert (a.limit_mib(), a.cores(), b.limit_mib()) == (20_000, 50, 20_000)
    assert a.allocate(15_000)
    assert cluster.reserved("a") == f"{uuid(0)},NVIDIA,20000,50:;"
    assert cluster.filter("c", 2000) == ""

    cluster.ask("b", gpumem=20_961)
    assert "too little free memory: 20960 MiB are left" in cluster.settled("b", "refused")

    cluster.ask("a", gpumem=14_000)
    assert "uses 15000 MiB" in cluster.settled("a", "refused")
    assert a.limit_mib() == 20_000
    assert cluster.reserved("a") == f"{uuid(0)},NVIDIA,20000,50:;"

    cluster.ask("a", gpumem=16_000)
    cluster.settled("a", "done")
    assert (a.limit_mib(), cluster.reserved("a")) == (16_000, f"{uuid(0)},NVIDIA,16000,50:;")
    eventually(lambda: cluster.filter("c", MEMORY_MIB - 36_000) == NODE, LIMIT_S)
    assert len(rig.events("Resized")) == 2
    assert len(rig.events("ResizeRefused")) == 2
    assert rig.metric("resizes_total", result="resized") == 2
    assert rig.metric("resizes_total", result="refused") == 1
    assert all(card.healthy for card in decode_register(rig.register_text))


@shows(
    "Z10",
    fault="a container that was never resized raises the memory limit in its own usage file",
    happens="the next reading finds it, and the limit of the ledger is written again",
)
def test_limit_is_kept_in_force_without_any_resize(rig: Rig) -> None:
    a = Cluster(rig).run("a", 10_000)
    for mib in (30_000, 0):
        a.tamper(mib)
        eventually(lambda: a.limit_mib() == 10_000, LIMIT_S)
    eventually(lambda: (rig.metric("resizes_total", result="kept") or 0) >= 2, LIMIT_S)


@shows(
    "Z6",
    fault="a resized container changes its own limit, or restarts with a new usage file",
    happens="the next pass writes the limit of the ledger again",
)
def test_repeated_allocate_and_restarted_container_have_the_new_limits(cluster: Cluster) -> None:
    a = cluster.run("a", 10_000)
    cluster.ask("a", gpumem=20_000)
    cluster.settled("a", "done")
    again = cluster.rig.kubelet.admit(cluster.rig.pod("a"), GPU)
    assert again.is_admitted, again.refusal
    assert inside(again)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "20000m"

    cluster.ask("a", gpumem=5000)
    cluster.settled("a", "done")
    a.path.unlink()
    a.start({f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "10000m"}, (uuid(0),))
    eventually(lambda: a.limit_mib() == 5000, LIMIT_S)
    a.tamper(30_000)
    eventually(lambda: a.limit_mib() == 5000, LIMIT_S)


def test_program_that_has_mapped_its_file_sees_the_new_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    program = build_tenant(tmp_path / "tenant")
    rig, control, out = cluster.rig, tmp_path / "control", tmp_path / "out"
    given = Part(uuid=uuid(0), memory_mib=3000, cores=20)
    rig.place("p", [Box(memory_mib=3000, cores=20)], {"main": [given]})
    answer = rig.admit("p")
    region = LimitedContainer(rig.hook, "uid-p").path
    ask_tenant(control, 2500)
    with out.open("wb") as file:
        env = inside(answer) | {nvidia_names.ENV_CACHE: str(region)}
        process = subprocess.Popen([str(program), str(control)], stdout=file, env=env)
    cluster.processes.append(process)

    def told(line: str) -> None:
        eventually(lambda: line in out.read_text().splitlines(), LIMIT_S)

    told("holds 2500 of 3000")
    cluster.ask("p", gpumem=9000)
    cluster.settled("p", "done")
    ask_tenant(control, 8000)
    told("holds 8000 of 9000")
    cluster.ask("p", gpumem=7000)
    assert "uses 8000 MiB" in cluster.settled("p", "refused")
    ask_tenant(control, 1000)
    told("holds 1000 of 9000")
    cluster.ask("p", gpumem=2000)
    cluster.settled("p", "done")
    ask_tenant(control, 2001)
    told("refused 2001 of 2000")


@shows(
    "Z5",
    fault="a pod is to be resized on a node whose scheduler is not our extender",
    happens="the pod is told once, by its state and an Event, that a resize needs our extender",
)
def test_node_without_our_extender_says_so_once(rig: Rig) -> None:
    cluster = Cluster(rig)
    a = cluster.run("a", 10_000)
    cluster.ask("a", gpumem=20_000)
    assert "hami-node's extender" in cluster.settled("a", "refused")
    eventually(
        lambda: rig.events("ResizeRefused"), LIMIT_S
    )  # one that waits, no end would wait for
    rig.restart()
    rig.wait_registered()
    assert "hami-node's extender" in cluster.settled("a", "refused")
    assert len(rig.events("ResizeRefused")) == 1
    cluster.ask("a", gpumem=30_000)
    grants = {"main": f"{uuid(0)},NVIDIA,30000,20:;"}
    forged = Approval(id="forged", uid=rig.pod("a").uid, vendor="NVIDIA", grants=grants)
    notes = {names.POD_RESIZE_APPROVED: encode_approval(forged)}
    rig.api.annotate("pods", "a", notes, "default")
    assert "hami-node's extender" in cluster.settled("a", "refused")
    eventually(lambda: len(rig.events("ResizeRefused")) == 2, LIMIT_S)
    assert a.limit_mib() == 10_000


def test_pods_without_a_request_cost_no_request(cluster: Cluster) -> None:
    cluster.run("a", 10_000)
    cluster.rig.api.forget_requests()
    cluster.rig.api.annotate("pods", "a", {"any": "thing"}, "default")
    cluster.rig.wait_seen("a")
    writes = [item for item in cluster.rig.api.requests() if item.resource == "pods"]
    assert [item for item in writes if item.verb in ("patch", "update")] == []


@shows(
    "Z9",
    fault="daemon and extender are killed while a resize is under way, and others take over",
    happens="it ends as approved; what it frees is free for others only then",
)
@pytest.mark.parametrize("new", [20_000, 4000])
def test_resize_ends_after_kills_on_both_sides(node: Rig, new: int) -> None:
    cluster = Cluster(node)
    with ended(cluster):
        cluster.processes.append(launch(node))
        first = cluster.extender("one")
        cluster.marked()
        a = cluster.run("a", 10_000)
        whole = a.path.read_bytes()
        a.path.write_bytes(b"")  # no program of the container has begun: it has to wait
        cluster.ask("a", gpumem=new)
        cluster.settled("a", "waiting")
        cluster.extender("two")
        for process in (cluster.processes[0], first):
            process.kill()
            process.wait(LIMIT_S)
        del cluster.ports["one"]
        larger = max(new, 10_000)
        assert cluster.reserved("a") == f"{uuid(0)},NVIDIA,{larger},20:;"
        eventually(lambda: cluster.filter("c", MEMORY_MIB - larger) == NODE, LIMIT_S)
        assert cluster.filter("c", MEMORY_MIB - larger + 1) == ""
        a.path.write_bytes(whole)
        cluster.processes.append(launch(node))
        cluster.settled("a", "done")
        assert a.limit_mib() == new
        assert cluster.reserved("a") == f"{uuid(0)},NVIDIA,{new},20:;"
        eventually(lambda: cluster.filter("c", MEMORY_MIB - new) == NODE, LIMIT_S)
