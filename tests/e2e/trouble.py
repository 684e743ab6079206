"""Kills at random moments, and a kubelet that starts what was killed again at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx

from tests.e2e import parts
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE
from tests.e2e.waiting import eventually


@dataclass(slots=True)
class Trouble:
    """Kills at random moments, each in its own thread; what went wrong itself is kept."""

    seed: random.Random
    span_s: float
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def kill(self, name: str, times: int, act: Callable[[], object]) -> None:
        """Do it so many times within the span; a victim that is not there yet is waited for."""
        moments = sorted(self.seed.uniform(0, self.span_s) for _ in range(times))
        thread = threading.Thread(target=self._run, args=(name, moments, act))
        self.threads.append(thread)
        thread.start()

    def _run(self, name: str, moments: Sequence[float], act: Callable[[], object]) -> None:
        began = time.monotonic()
        for moment in moments:
            time.sleep(max(0.0, began + moment - time.monotonic()))
            for _ in range(1000):  # its victim may not be there yet, after the last kill
                try:
                    act()
                except (AssertionError, ApiError, httpx.TransportError, OSError, RuntimeError):
                    time.sleep(0.1)
                else:
                    self.done[name] += 1
                    break
            else:
                self.errors.append(f"{name} could not be killed")


@contextmanager
def impatient_kubelet(cluster: Cluster, api: Api) -> Iterator[None]:
    """A kubelet that starts our crashed containers again after 2 or 3 s; as usual afterwards."""
    fast = {"maxContainerRestartPeriod": "2s"}
    restart_kubelet(cluster, {"KubeletCrashLoopBackOffMax": True}, fast)
    over = threading.Event()
    thread = threading.Thread(target=_hurry, args=(api, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        restart_kubelet(cluster)


def _hurry(api: Api, over: threading.Event) -> None:
    """Change pods with a crashed container a little, so that kubelet looks at them.

    By itself it looks 10 to 15 s later, however short the back-off is.
    """
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    while not over.wait(1):
        with suppress(ApiError, httpx.TransportError):
            for pod in api.read(path)["items"]:
                states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
                if not all("running" in state for state in states):
                    touched = {"e2e.hami-node/touched": str(time.monotonic())}
                    name = pod["metadata"]["name"]
                    api.patch(f"{path}/{name}", {"metadata": {"annotations": touched}})


def restart_kubelet(
    cluster: Cluster, gates: Mapping[str, bool] | None = None, back_off: Json | None = None
) -> None:
    """Start kubelet again with these settings, by default the usual ones."""
    parts.write_kubelet_config(cluster.root, dict(gates or {}), crash_back_off=back_off)
    cluster.restart("kubelet")
    eventually("the node is Ready", cluster.is_node_ready)
