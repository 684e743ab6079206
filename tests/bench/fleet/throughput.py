"""Pods a second and latency: plain pods and pods with a card in turn, one kube-scheduler."""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.bench.fleet import figures, machine
from tests.bench.fleet.paper import (
    PodWatch,
    add_nodes,
    create_paced,
    create_pods,
    delete_pods,
    pod_body,
)
from tests.bench.fleet.plane import EXTENDER, ControlPlane, ExtenderProcess, running_plane
from tests.bench.fleet.processes import Running
from tests.e2e.audit import Audit

_QUIET_S: Final = 2.0
"""After a burst: Events and watch echoes are through by then, and belong to the burst."""
_BOUND_S: Final = 300.0
GOALS: Final = "goals: ours/plain at least 0.5, extender CPU under 5 ms a pod, flat over nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """One burst and one paced run of one kind of pods."""

    nodes: int
    kind: str
    pods_per_s: float
    latency_ms: tuple[float, ...]
    cpu_ms: Mapping[str, float]
    """A pod, by process."""
    requests: Mapping[str, float] = field(default_factory=dict)
    """Of the extender, a pod, by kind."""
    rss_mib: float = 0.0


class Bench:
    """The processes that are measured, and the pods that they get."""

    def __init__(self, plane: ControlPlane, extender: ExtenderProcess, scheduler: Running) -> None:
        self._plane, self._extender = plane, extender
        self._measured = (extender.running, scheduler, plane.api)
        self._serial = 0

    def burst(self, nodes: int, pods: int, paced: tuple[float, float], *, has_cards: bool) -> Burst:
        """All pods at once, then so many a second for so many seconds; all are removed again."""
        kind = "cards" if has_cards else "plain"
        with PodWatch(self._plane.client) as watch:
            audit, before = Audit(self._plane.audit_log), self._cpu_s()
            created_s = create_pods(self._plane.client, self._bodies(kind, pods))
            watch.wait_bound(created_s, _BOUND_S)
            time.sleep(_QUIET_S)
            used = self._cpu_s()
            kinds = figures.kinds_of(audit.requests(EXTENDER.name))
            self._remove(watch, created_s)
            latency_ms = self._paced(watch, kind, *paced)
        return Burst(
            nodes=nodes,
            kind=kind,
            pods_per_s=figures.per_second(watch.moments(created_s)),
            latency_ms=tuple(latency_ms),
            cpu_ms={name: (used[name] - before[name]) / pods * 1000 for name in used},
            requests={name: count / pods for name, count in sorted(kinds.items())},
            rss_mib=self._extender.running.use().rss_mib,
        )

    def _paced(self, watch: PodWatch, kind: str, per_s: float, for_s: float) -> list[float]:
        bodies = self._bodies(f"{kind}-paced", round(per_s * for_s))
        created_s = create_paced(self._plane.client, bodies, per_s)
        watch.wait_bound(created_s, _BOUND_S)
        moments = watch.moments(created_s)
        self._remove(watch, created_s)
        return figures.latencies_ms(moments)

    def _remove(self, watch: PodWatch, names: Mapping[str, float]) -> None:
        delete_pods(self._plane.client, names)
        watch.wait_gone(names, _BOUND_S)
        time.sleep(_QUIET_S / 2)

    def _bodies(self, kind: str, count: int) -> list[dict[str, object]]:
        self._serial += 1
        has_cards = kind.startswith("cards")
        return [
            pod_body(f"{kind}-{self._serial}-{number:05d}", has_cards=has_cards)
            for number in range(count)
        ]

    def _cpu_s(self) -> dict[str, float]:
        return {item.name: item.use().cpu_s for item in self._measured}


def summed(bursts: Sequence[Burst]) -> dict[str, object]:
    """One line of the table: the rounds of one kind on so many nodes."""
    latency = [value for burst in bursts for value in burst.latency_ms]
    cpu: Counter[str] = Counter()
    for burst in bursts:
        cpu.update(burst.cpu_ms)
    requests = statistics.mean(sum(burst.requests.values()) for burst in bursts)
    return {
        "nodes": bursts[0].nodes,
        "pods": bursts[0].kind,
        "pods/s": statistics.mean(burst.pods_per_s for burst in bursts),
        "p50 ms": figures.percentile(latency, 0.5),
        "p99 ms": figures.percentile(latency, 0.99),
        "extender req/pod": requests,
        "extender ms/pod": cpu["extender"] / len(bursts),
        "scheduler ms/pod": cpu["kube-scheduler"] / len(bursts),
        "apiserver ms/pod": cpu["kube-apiserver"] / len(bursts),
        "extender RSS MiB": max(burst.rss_mib for burst in bursts),
    }


def rows(bursts: Sequence[Burst]) -> list[dict[str, object]]:
    """The table: plain pods, ours, and their ratio, for each number of nodes."""
    table: list[dict[str, object]] = []
    for nodes in dict.fromkeys(burst.nodes for burst in bursts):
        by_kind = {
            kind: summed([b for b in bursts if (b.nodes, b.kind) == (nodes, kind)])
            for kind in ("plain", "cards")
        }
        speeds = [float(str(by_kind[kind]["pods/s"])) for kind in ("cards", "plain")]
        ratio = speeds[0] / speeds[1] if speeds[1] else float("nan")
        table += [
            {**row, "ours/plain": "" if row is by_kind["plain"] else ratio}
            for row in by_kind.values()
        ]
    return table


def requests_line(bursts: Sequence[Burst]) -> str:
    """Which requests a pod with a card costs, of the last round."""
    last = [burst for burst in bursts if burst.kind == "cards"][-1]
    return ", ".join(f"{name} {figures.shown(much)}" for name, much in last.requests.items())


def measure(args: argparse.Namespace) -> list[Burst]:
    """All rounds, on ever more nodes."""
    bursts: list[Burst] = []
    with running_plane() as plane:
        there = 0
        extender: ExtenderProcess | None = None
        scheduler: Running | None = None
        for nodes in sorted(args.nodes):
            add_nodes(plane.client, there, nodes)
            there = nodes
            for old in (scheduler, extender.running if extender else None):
                if old is not None:
                    plane.end(old)
            extender = plane.start_extender()
            plane.wait_extender(extender)
            scheduler = plane.start_scheduler(extender.url)
            bench = Bench(plane, extender, scheduler)
            bench.burst(nodes, min(50, args.pods), (10, 1), has_cards=True)  # warms all up
            for number in range(args.rounds):
                for has_cards in (False, True):
                    burst = bench.burst(
                        nodes, args.pods, (args.pace, args.paced_s), has_cards=has_cards
                    )
                    said = f"{nodes} nodes, round {number + 1}, {burst.kind}"
                    print(f"{said}: {burst.pods_per_s:.0f} pods/s", flush=True)
                    bursts.append(burst)
    return bursts


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.fleet throughput", description=__doc__
    )
    parser.add_argument("--nodes", type=_numbers, default=[1000, 5000], help="such as 1000,5000")
    parser.add_argument("--pods", type=int, default=600, help="of one burst")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--pace", type=float, default=10.0, help="pods/s where latency is measured")
    parser.add_argument("--paced-s", type=float, default=20.0, help="for how long, seconds")
    args = parser.parse_args(argv)
    print(machine.printed(machine.described()), flush=True)
    bursts = measure(args)
    table = rows(bursts)
    print(f"\n{figures.table(table)}")
    print(f"requests a pod with a card: {requests_line(bursts)}")
    print(f"{GOALS}; load average at the end: {machine.described()['load average']}")
    return 0
