"""Pods with cards against plain pods: the time until all run, and requests per pod.

usage: python -m tests.bench.burst [--count 20,50] [--rounds 3]

Needs what `make e2e` needs. Starts the cluster with the product's image as daemon, extender and
webhook, and lets real kube-schedulers and a real kubelet run N plain pods and N pods with a card
in turn.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import limiter, parts
from tests.e2e.api import Api
from tests.e2e.assets import IMAGE_TAR
from tests.e2e.audit import Audit
from tests.e2e.cards import COUNT, SPLIT, Cards
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

_QUIET_S = 3.0
"""Between two bursts: what the last one left behind is cleaned up by then."""
BUDGET = "ratio under 1.15; requests a pod: extender 2, daemon 1, Events aside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """One burst: seconds until all pods ran, requests by user agent."""

    seconds: float
    requests: Counter[str]


def run_burst(pods: Pods, audit: Audit, prefix: str, count: int, *, has_cards: bool) -> Burst:
    """Create pods at once, wait until all run, remove them."""
    box = (
        RealContainer(name="c0", cards=1, memory_mib=3000, cores=5)
        if has_cards
        else RealContainer(name="c0")
    )
    wanted = [f"{prefix}-{number:02d}" for number in range(count)]
    began = time.monotonic()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda name: pods.create(name, box, scheduler=DEFAULT), wanted))
    pods.wait_running(*wanted, limit_s=300)
    seconds = time.monotonic() - began
    requests = audit.by_agent()
    pods.delete(*wanted)
    time.sleep(_QUIET_S)
    return Burst(seconds=seconds, requests=requests)


def compare(
    cluster: Cluster, pods: Pods, count: int, rounds: int
) -> tuple[list[Burst], list[Burst]]:
    """Plain and with cards in turn, printed as they come."""
    plain: list[Burst] = []
    carded: list[Burst] = []
    for number in range(rounds):
        for has_cards, found in ((False, plain), (True, carded)):
            kind = "cards" if has_cards else "plain"
            audit = Audit(cluster.root / "log/audit.jsonl")
            burst = run_burst(pods, audit, f"{kind}{number}", count, has_cards=has_cards)
            found.append(burst)
            print(f"  round {number + 1}: {count} {kind} pods run after {burst.seconds:.2f} s")
    return plain, carded


def report(count: int, plain: list[Burst], carded: list[Burst]) -> None:
    """Medians, their ratio, and requests a pod."""
    ours = statistics.median(item.seconds for item in carded)
    others = statistics.median(item.seconds for item in plain)
    print(
        f"{count} pods, median of {len(plain)}: plain {others:.2f} s, with a card {ours:.2f} s, "
        f"ratio {ours / others:.2f}"
    )
    total: Counter[str] = Counter()
    for item in carded:
        total += item.requests
    for agent, made in total.most_common():
        print(f"  {agent}: {made / count / len(carded):.2f} requests a pod")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", default="20,50", help="sizes of bursts, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"on {platform.node()}, {platform.platform()}, Python {platform.python_version()}")
    print(f"budget: {BUDGET}")
    cluster = Cluster()
    cluster.up()
    try:
        cluster.import_image(IMAGE_TAR)
        with Api(Authority(cluster.root / "pki").ca_file, parts.ADMIN.token) as api:
            pods = _install(cluster, api)
            run_burst(pods, Audit(cluster.root / "log/audit.jsonl"), "warm", 4, has_cards=True)
            for count in map(int, args.count.split(",")):
                report(count, *compare(cluster, pods, count, args.rounds))
    finally:
        cluster.down()


def _install(cluster: Cluster, api: Api) -> Pods:
    Cards().install()
    limiter.install()
    daemon = Daemon(cluster, api)
    daemon.install()
    Extender(cluster, api).install()
    eventually(
        "every slice is offered",
        lambda: daemon.allocatable(nvidia_names.RESOURCE_GPU) == COUNT * SPLIT,
    )
    return Pods(api)


if __name__ == "__main__":
    main()
