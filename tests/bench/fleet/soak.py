"""Churn for an hour: the extender's memory, its state against the pods, and what is left behind."""

from __future__ import annotations

import argparse
import heapq
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.fleet import churn, figures, machine
from tests.bench.fleet.churn import Act, Fate, Step
from tests.bench.fleet.client import FleetClient, Refused
from tests.bench.fleet.paper import PODS, add_nodes, pod_body
from tests.bench.fleet.plane import ControlPlane, ExtenderProcess, running_plane

SAMPLE_S: Final = 10.0
SCRAPE_S: Final = 30.0
WARM_S: Final = 600.0
MOST_GROWTH_MIB: Final = 5.0
_SETTLE_S: Final = 90.0
"""How long state and pods may take to agree after the last change: leftovers are swept up."""
_WORKERS: Final = 6


class Churn:
    """Carries the steps out, in time, from a few threads."""

    def __init__(self, client: FleetClient, pods: Iterable[tuple[Step, ...]]) -> None:
        self._client, self._pods = client, iter(pods)
        self._due: list[Step] = []
        self.fates: list[Fate] = []
        self.errors: list[str] = []
        self.late_s = 0.0

    def run(self, on_tick: Callable[[], None]) -> None:
        """Until every pod has been created; what lives then goes on living."""
        began_s = time.monotonic()
        following = next(self._pods, None)
        with ThreadPoolExecutor(_WORKERS) as pool:
            while following is not None:
                now_s = time.monotonic() - began_s
                while following is not None and following[0].at_s <= now_s:
                    self.fates.append(following[0].fate)
                    for step in following:
                        heapq.heappush(self._due, step)
                    following = next(self._pods, None)
                while self._due and self._due[0].at_s <= now_s:
                    pool.submit(self._carry_out, heapq.heappop(self._due), began_s)
                on_tick()
                time.sleep(0.02)

    def _carry_out(self, step: Step, began_s: float) -> None:
        self.late_s = max(self.late_s, time.monotonic() - began_s - step.at_s)
        path = f"{PODS}/{step.name}"
        try:
            if step.act is Act.CREATE:
                body = pod_body(step.name, has_cards=True, memory_mib=step.memory_mib)
                self._client.create(PODS, body)
            elif step.act is Act.EDIT:
                self._client.patch(path, {"metadata": {"labels": {"edited": "yes"}}})
            elif step.act is Act.FAIL:
                self._client.patch(f"{path}/status", {"status": {"phase": "Failed"}})
            else:
                self._client.delete(path)
        except Refused as error:
            if error.status != 404:  # a busy machine may delete before it creates
                self.errors.append(str(error))
        except OSError as error:
            self.errors.append(f"{step.act} {step.name}: {error!r}")


class Samples:
    """The extender's memory every ten seconds; its pages are read as Prometheus reads them."""

    def __init__(self, extender: ExtenderProcess) -> None:
        self._extender = extender
        self._began_s = time.monotonic()
        self._next_sample_s = self._next_scrape_s = 0.0
        self.rss_mib: list[tuple[float, float]] = []

    def tick(self) -> None:
        """Take a sample if one is due."""
        now_s = time.monotonic() - self._began_s
        if now_s >= self._next_scrape_s:
            self._next_scrape_s = now_s + SCRAPE_S
            threading.Thread(target=self._extender.page, daemon=True).start()
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + SAMPLE_S
            self.rss_mib.append((now_s, self._extender.running.use().rss_mib))
            if len(self.rss_mib) % 30 == 1:
                print(f"{now_s / 60:3.0f} min: {self.rss_mib[-1][1]:.1f} MiB", flush=True)


def what_is_wrong(plane: ControlPlane, extender: ExtenderProcess) -> list[str]:
    """Where state and pods disagree, and what is left behind; [] once all has settled."""
    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        pods = list(plane.client.items(PODS))
        wrong = churn.differences(churn.shown_use(extender.page()), churn.held_use(pods))
        wrong += churn.left_behind(pods)
        if not wrong or time.monotonic() > deadline_s:
            return wrong
        time.sleep(3)


def verdict(
    rss_mib: list[tuple[float, float]], warm_s: float, wrong: list[str], errors: list[str]
) -> tuple[float, float, list[str]]:
    """(growth after warming up, MiB; slope, MiB an hour; what has failed)."""
    growth = figures.growth(rss_mib, warm_s)
    slope = figures.slope([(at_s / 3600, mib) for at_s, mib in rss_mib if at_s >= warm_s])
    failed = [f"state: {text}" for text in wrong[:10]] + [f"error: {e}" for e in errors[:5]]
    if growth >= MOST_GROWTH_MIB:
        failed.append(f"memory: {growth:.1f} MiB more, {MOST_GROWTH_MIB} are allowed")
    return growth, slope, failed


def measure(args: argparse.Namespace) -> tuple[dict[str, object], list[str]]:
    """The run; its line of the table, and what has failed."""
    with running_plane() as plane:
        add_nodes(plane.client, 0, args.nodes)
        extender = plane.start_extender()
        plane.wait_extender(extender)
        plane.start_scheduler(extender.url)
        samples = Samples(extender)
        run = Churn(plane.client, churn.churn(args.rate, args.minutes * 60, args.seed))
        before = extender.running.use()
        run.run(samples.tick)
        used = extender.running.use()
        wrong = what_is_wrong(plane, extender)
        warm_s = min(WARM_S, args.minutes * 60 / 2)
        growth, slope, failed = verdict(samples.rss_mib, warm_s, wrong, run.errors)
        print(f"pods: {churn.counted(run.fates)}; latest step {run.late_s:.1f} s late")
        return {
            "nodes": args.nodes,
            "pods/s": args.rate,
            "minutes": args.minutes,
            "RSS at start MiB": samples.rss_mib[0][1],
            "RSS at end MiB": samples.rss_mib[-1][1],
            f"growth after {warm_s / 60:.0f} min": growth,
            "slope MiB/h": slope,
            "CPU ms/pod": (used.cpu_s - before.cpu_s) / max(1, len(run.fates)) * 1000,
            "wrong": len(wrong),
        }, failed


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=20.0, help="pods a second")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args(argv)
    print(machine.printed(machine.described()), flush=True)
    row, failed = measure(args)
    print(figures.table([row]))
    print(f"goals: growth under {MOST_GROWTH_MIB} MiB, nothing wrong, nothing left behind")
    print(f"load average at the end: {machine.described()['load average']}")
    print("\n".join(["FAILED:", *failed]) if failed else "ok")
    return 1 if failed else 0
