"""An hour of pods that come and go, with faults and kubelet restarts. Run by `make soak`.

Memory is what the budget of docs/performance.md names: the growth after the first minutes. Who
holds what is compared every minute between kubelet's list, the ledger, the pods' annotations and
`hami-node inspect`; what their programs use, with the metrics. HAMI_SOAK_MINUTES and
HAMI_SOAK_SEED change the length and the course.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.bench.daemon_rig import CARDS, RESOURCE, SLOTS, DaemonRig, running_daemon
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS
from tests.soak.node import CALM_S, BusyNode

MINUTES: Final = float(os.environ.get("HAMI_SOAK_MINUTES", "60"))
SEED: Final = int(os.environ.get("HAMI_SOAK_SEED", "1"))
WARM_UP_MINUTES: Final = min(10.0, MINUTES / 4)
PAUSE_S: Final = 0.2
GROWTH_MIB: Final = 2.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(int(MINUTES * 60 * 2 + 300))]


def inspected(rig: DaemonRig) -> dict[str, tuple[str, int]]:
    """Card and MiB by pod, as a person sees them."""
    program = Path(sys.executable).with_name("hami-node")
    kubeconfig = str(rig.root / "kubeconfig")
    command = [str(program), "inspect", "-o", "json", "--kubeconfig", kubeconfig]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert shown.stdout, shown.stderr
    view = json.loads(shown.stdout)
    return {item["pod"]: (item["uuid"], item["memory_mib"]) for item in view["holders"]}


def drift(node: BusyNode) -> list[str]:
    """What kubelet, the ledger, the annotations and the inspection do not agree on."""
    wanted = {name: (UUIDS[card], mib) for name, (card, mib) in node.running.items()}
    listed = node.holders()
    entries = {
        name: (entry.grants[0].uuid, entry.grants[0].memory_mib, entry.device_ids)
        for name, entry in node.entries().items()
    }
    texts = {name: tuple(text.split(",")[:3:2]) for name, text in node.annotated().items()}
    found = []
    ids = {name: tuple(sorted(given)) for name, given in listed.items()}
    recorded = {name: given for name, (_, _, given) in entries.items()}
    if ids != recorded:
        found.append(f"device IDs: {sorted(ids.items() ^ recorded.items())}")
    for who, held in (
        ("ledger", {name: (uuid, mib) for name, (uuid, mib, _) in entries.items()}),
        ("annotations", {name: (uuid, int(mib)) for name, (uuid, mib) in texts.items()}),
        ("inspect", inspected(node.rig)),
    ):
        if held != wanted:
            found.append(f"{who}: {sorted(held.items() ^ wanted.items())}")
    if node.measured() != node.used:
        found.append(f"usage: {sorted(node.measured().items() ^ node.used.items())}")
    return found


def agree(node: BusyNode) -> None:
    """Wait until all say the same."""
    give_up_s = time.monotonic() + CALM_S
    while found := drift(node):
        assert time.monotonic() < give_up_s, "\n".join(found)
        time.sleep(0.5)


def test_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    with running_daemon() as rig:
        eventually(lambda: rig.kubelet.allocatable(RESOURCE) == CARDS * SLOTS, CALM_S)
        eventually(lambda: "event=node_reported" in rig.log, CALM_S)
        node = BusyNode(rig, random.Random(SEED))
        began_s, rss = time.monotonic(), []
        with capsys.disabled():
            print(f"\n  {MINUTES:.0f} minutes, seed {SEED}, {CARDS} cards x {SLOTS}")
            while (minute := (time.monotonic() - began_s) / 60) < MINUTES:
                until_s = time.monotonic() + min(60.0, MINUTES * 60 / 10)
                while time.monotonic() < until_s:
                    node.step()
                    time.sleep(PAUSE_S)
                node.calm()
                agree(node)
                assert rig.process.poll() is None
                rss.append((minute, rig.rss_mib()))
                tally = node.tally
                print(
                    f"  minute {minute:5.1f}: {rss[-1][1]:.1f} MiB, {len(node.running)} pods run, "
                    f"{tally.started} started, {tally.ended} ended, {tally.repeated} repeated, "
                    f"{tally.refused} refused, {sum(tally.faults.values())} faults, "
                    f"{len(node.left_over())} folders left",
                    flush=True,
                )
            warm = [size for minute, size in rss if minute >= WARM_UP_MINUTES]
            edge = max(1, len(warm) // 5)
            growth = statistics.median(warm[-edge:]) - statistics.median(warm[:edge])
            print(f"  faults: {dict(node.tally.faults)}")
            print(f"  growth after {WARM_UP_MINUTES:.0f} minutes: {growth:+.1f} MiB (budget 2)")
        assert "Traceback" not in rig.log
        assert growth < GROWTH_MIB
