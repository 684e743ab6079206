"""The lead changes in the middle of a burst: how long nobody decides, and which calls are lost."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.bench import extender_cluster
from tests.bench.engine_load import node_name
from tests.bench.fleet import figures, machine
from tests.bench.fleet.client import FleetClient, Json, for_each
from tests.bench.fleet.paper import PODS, add_nodes, pod_body
from tests.bench.fleet.plane import (
    HOME,
    LISTED_S,
    NAMESPACE,
    ControlPlane,
    ExtenderProcess,
    running_plane,
)
from tests.bench.fleet.processes import wait_for
from tests.fakes.extender_client import Called, ExtenderClient

GOALS: Final = "goals: killed under 5 s, planned under 1 s and no call lost"
_SLICE: Final = "hami-node-leader"
_SLICES: Final = f"/apis/discovery.k8s.io/v1/namespaces/{HOME}/endpointslices"
_RESERVED: Final = (
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/hami-node-reservations"
)
_LOOK_S: Final = 0.02
_CALLERS: Final = 2
_STEADY_S: Final = 3.0
_GIVEN_UP_S: Final = 60.0


def add_placed(client: FleetClient, nodes: int, pods: int) -> None:
    """Running pods that hold a card each; only here may an administrator write reservations."""
    client.delete(_RESERVED)
    time.sleep(2.0)  # until the API server's own watch has seen that

    def bodies() -> Iterator[Json]:
        for pod in extender_cluster.placed_pods(nodes, pods):
            pod["metadata"]["namespace"] = NAMESPACE
            for key in ("uid", "ownerReferences"):
                pod["metadata"].pop(key)
            pod["spec"].pop("volumes"), pod["spec"]["containers"][0].pop("volumeMounts")
            yield pod

    for_each(lambda body: client.create(PODS, body), bodies())


class Place:
    """Where the Service leads: the address in the EndpointSlice, as kube-proxy learns it."""

    def __init__(self, client: FleetClient) -> None:
        self._client = client
        self.ip, self._stop = "", threading.Event()
        empty = {"metadata": {"name": _SLICE}, "addressType": "IPv4", "endpoints": [], "ports": []}
        client.create(_SLICES, empty)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            found = self._client.read(f"{_SLICES}/{_SLICE}").get("endpoints") or ()
            self.ip = "".join(ip for item in found for ip in item["addresses"])


class Replicas:
    """The extender's processes, by the address that each would have as a pod."""

    def __init__(self, plane: ControlPlane, place: Place) -> None:
        self._plane, self.place = plane, place
        self._last = 0
        self.running: dict[str, ExtenderProcess] = {}

    def add(self) -> None:
        """Another one, with a pod on paper; waits until it is ready."""
        self._last += 1
        name, ip = f"extender-{self._last}", f"192.0.2.{self._last}"
        spec = {"nodeName": node_name(self._last), "containers": [{"name": "x", "image": "x"}]}
        body = {"metadata": {"name": name}, "spec": spec}
        self._plane.client.create(f"/api/v1/namespaces/{HOME}/pods", body)
        more = (f"--endpoint-slice={_SLICE}", f"--pod-ip={ip}")
        self.running[ip] = made = self._plane.start_extender(name, *more)
        wait_for("the extender is ready", lambda: made.page("/readyz"), LISTED_S, made.running)
        wait_for("a replica leads", lambda: self.place.ip in self.running, LISTED_S, made.running)

    def where(self) -> str:
        """As the Service's address leads to it now."""
        found = self.running.get(self.place.ip)
        if found is None:
            raise ConnectionRefusedError("nobody stands in the EndpointSlice")
        return f"127.0.0.1:{found.port}"

    def end_leader(self, number: signal.Signals) -> ExtenderProcess:
        """Send the signal to the replica that leads; its address stays known."""
        leader = self.running[self.place.ip]
        os.kill(leader.running.pid, number)
        return leader

    def forget(self, ended: ExtenderProcess) -> None:
        """It has ended."""
        ended.running.process.wait(_GIVEN_UP_S)
        self.running = {ip: one for ip, one in self.running.items() if one is not ended}


@dataclass(frozen=True, slots=True)
class Seen:
    """A call, and when its answer came, monotonic seconds."""

    path: str
    called: Called
    ended_s: float


class Callers:
    """As kube-scheduler calls: create, filter, bind, pod after pod, several at once."""

    def __init__(self, plane: ControlPlane, replicas: Replicas, nodes: int) -> None:
        self._client, self._replicas = plane.client, replicas
        self._nodes = [node_name(number) for number in range(nodes)]
        self._context = plane.caller_context()
        self.calls: list[Seen] = []
        self._stop, self._run_name = threading.Event(), f"{time.time_ns() % 10**9}"
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(_CALLERS)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_GIVEN_UP_S)

    def _run(self, number: int) -> None:
        caller, serial = ExtenderClient(self._replicas.where, context=self._context), 0
        while not self._stop.is_set():
            serial += 1
            body = pod_body(
                f"burst-{self._run_name}-{number}-{serial}", has_cards=True, memory_mib=100, cores=0
            )
            self._schedule(caller, self._client.create(PODS, body))
        caller.close()

    def _schedule(self, caller: ExtenderClient, pod: Json) -> None:
        found = self._call(caller, "/filter", {"Pod": pod, "NodeNames": self._nodes})
        if found.is_lost or not found.answer["NodeNames"]:
            time.sleep(0.02)  # kube-scheduler waits a second and more before it tries the pod again
            return
        meta = pod["metadata"]
        asked = {"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"]}
        self._call(caller, "/bind", {**asked, "Node": found.answer["NodeNames"][0]})

    def _call(self, caller: ExtenderClient, path: str, body: Json) -> Called:
        called = caller.call(path, body)
        self.calls.append(Seen(path, called, time.monotonic()))
        return called


def change(callers: Callers, replicas: Replicas, number: signal.Signals) -> dict[str, object]:
    """One change of the lead, in the middle of the calls; a row of the table."""
    time.sleep(_STEADY_S)
    before = len(callers.calls)
    began_s = time.monotonic()
    ended, leader_ip = replicas.end_leader(number), replicas.place.ip
    limit_s = began_s + _GIVEN_UP_S
    while replicas.place.ip == leader_ip and time.monotonic() < limit_s:
        time.sleep(0.005)
    moved_s = time.monotonic()
    while not any(_is_decision(seen, moved_s) for seen in callers.calls[before:]):
        if time.monotonic() > limit_s:
            raise RuntimeError("nobody decides any more")
        time.sleep(0.005)
    time.sleep(_STEADY_S)
    replicas.forget(ended)
    seen = [one for one in callers.calls[before:] if one.ended_s > began_s]
    decided = sorted(one.ended_s for one in seen if _is_decision(one, began_s))
    pauses = [after - last for last, after in zip([began_s, *decided], decided, strict=False)]
    return {
        "signal": number.name,
        "longest pause s": round(max(pauses), 2),
        "slice moved after s": round(moved_s - began_s, 2),
        "calls": len(seen),
        "lost": sum(one.called.is_lost for one in seen),
        "refused binds": sum(_is_refused_bind(one) for one in seen),
        "sent on": sum(bool(one.called.hops) for one in seen),
        "longest call s": round(max(one.called.seconds for one in seen), 2),
    }


def _is_decision(seen: Seen, after_s: float) -> bool:
    is_answered = seen.path == "/filter" and not seen.called.is_lost and seen.ended_s > after_s
    return is_answered and bool(seen.called.answer["NodeNames"])


def _is_refused_bind(seen: Seen) -> bool:
    return seen.path == "/bind" and not seen.called.is_lost and bool(seen.called.answer["Error"])


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Kill and end the leader in turn."""
    rows: list[dict[str, object]] = []
    with running_plane() as plane:
        add_nodes(plane.client, 0, args.nodes)
        add_placed(plane.client, args.nodes, args.pods)
        print(f"{args.nodes} nodes and {args.pods} pods are there", flush=True)
        place = Place(plane.client)
        replicas = Replicas(plane, place)
        for _ in range(args.replicas):
            replicas.add()
        for number in (signal.SIGKILL, signal.SIGTERM) * args.rounds:
            callers = Callers(plane, replicas, args.nodes)
            try:
                rows.append(change(callers, replicas, number))
            finally:
                callers.stop()
            print(rows[-1], flush=True)
            replicas.add()
        place.close()
        if args.logs:
            for path in sorted((plane.folder / "log").glob("extender-*.log")):
                print(f"--- {path.name}\n{path.read_text()}")
    return rows


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fleet failover", description=__doc__
    )
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", action="store_true", help="print the replicas' logs at the end")
    args = parser.parse_args(argv)
    print(machine.printed(machine.described()), flush=True)
    rows = measure(args)
    print(f"\n{figures.table(rows)}")
    print(f"{GOALS}; load average at the end: {machine.described()['load average']}")
    return 0
