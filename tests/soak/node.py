"""A busy node around the daemon's own process: pods that come and go, and faults that pass."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hami_node.record.file import RecordFile
from hami_node.record.ledger import NAME, Entry, Ledger
from hami_node.simulate.kubelet import _RefusedError
from hami_node.vendors.nvidia.regions.region_layouts import LAYOUTS
from hami_node.wire.objects import decode_pod
from tests.bench.daemon_rig import CARDS, RESOURCE, SLOTS, DaemonRig
from tests.fakes.ledgers import CODEC
from tests.fakes.made_region import MadeRegion
from tests.fakes.waiting import eventually
from tests.faults.process import page, port_of
from tests.nvml_stub.control import UUIDS

CARD_MIB: Final = 8000
"""What the pods of a card hold at most; less than any card of the stand-in has."""
_LAYOUT: Final = next(layout for layout in LAYOUTS if layout.name == "v1.2")
CALM_S: Final = 60.0
"""How long everything may take to come right after the last fault."""


@dataclass
class Tally:
    """What happened, for the report."""

    started: int = 0
    ended: int = 0
    repeated: int = 0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass
class BusyNode:
    """Plays users, kubelet's pods and misfortune; `step` does one thing, `calm` ends all faults."""

    rig: DaemonRig
    dice: random.Random
    tally: Tally = field(default_factory=Tally)
    running: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Card and MiB by pod."""
    used: dict[str, int] = field(default_factory=dict)
    """MiB that a pod's program holds, by pod; not of those that wrote nonsense."""
    number: int = 0
    sick: set[int] = field(default_factory=set)

    def step(self) -> None:
        """One thing: mostly a pod that comes or goes."""
        doings: list[tuple[int, Callable[[], None]]] = [
            (40, self.start_pod),
            (30, self.end_pod),
            (8, self.call_again),
            (4, self.trouble_api),
            (2, self.break_card),
            (2, self.mend_cards),
            (1, self.restart_kubelet),
        ]
        weights, bodies = zip(*doings, strict=True)
        self.dice.choices(bodies, weights)[0]()

    # -- pods --------------------------------------------------------------------------------------
    def start_pod(self) -> None:
        """A pod on a card with room, reserved as a scheduler does; refusals are counted."""
        card, mib = self.dice.randrange(CARDS), self.dice.randrange(100, 1500)
        held = [size for at, size in self.running.values() if at == card]
        if len(held) >= SLOTS or sum(held) + mib > CARD_MIB:
            return
        self.number += 1
        name = f"soak-{self.number}"
        self.rig.create_pod(name, UUIDS[card], mib)
        refusal = self.rig.admit(name)
        if refusal:
            self.tally.refused += 1
            self.rig.api.edit("pods", name, _phase("Failed"), "default")
            self.rig.api.delete("pods", name, "default")
            return
        self.rig.api.edit("pods", name, _phase("Running"), "default")
        self.lay_region(name, mib // 2)
        self.running[name] = card, mib
        self.tally.started += 1

    def lay_region(self, name: str, mib: int) -> None:
        """The pod's program has allocated so much; one in ten writes nonsense into its file."""
        made = bytes(MadeRegion(_LAYOUT, 2).put(0, 100, mib).put(1, 101, 0).raw)
        folder = f"uid-{name}_c"
        content = self.dice.randbytes(len(made)) if self.dice.random() < 0.1 else made
        file = self.rig.root / "hook" / "vgpu" / "containers" / folder / f"{folder}.cache"
        file.write_bytes(content)
        if content is made:
            self.used[name] = mib

    def end_pod(self) -> None:
        """Some pod ends and is deleted, in the order in which a real kubelet does that."""
        if not self.running:
            return
        name = self.dice.choice(sorted(self.running))
        del self.running[name]
        self.used.pop(name, None)
        self.rig.api.edit("pods", name, _phase("Succeeded"), "default")
        self.rig.kubelet.remove("default", name)
        self.rig.api.delete("pods", name, "default")
        self.tally.ended += 1

    def call_again(self) -> None:
        """kubelet asks again for a container that it was answered for; refusals are counted."""
        held = self.holders()
        if not held:
            return
        ids = held[self.dice.choice(sorted(held))]
        try:
            self.rig.kubelet.call_again(RESOURCE, ids)
            self.tally.repeated += 1
        except _RefusedError:
            self.tally.refused += 1

    # -- misfortune --------------------------------------------------------------------------------
    def trouble_api(self) -> None:
        """The API server fails, is overloaded, hangs up, hangs, or ends its watches."""
        what = self.dice.choice(["500", "429", "reset", "reset-after", "hang", "watches", "410"])
        self.tally.faults[f"API {what}"] += 1
        api = self.rig.api
        if what == "watches":
            api.drop_watches()
        elif what == "410":
            api.expire_watches()
        else:
            outcome = int(what) if what.isdigit() else what
            api.fail_next("*", "*", outcome, times=self.dice.randrange(1, 4))

    def break_card(self) -> None:
        """One more card fails a query."""
        self.sick.add(self.dice.randrange(CARDS))
        self._show()
        self.tally.faults["card"] += 1

    def mend_cards(self) -> None:
        """All cards answer again."""
        self.sick.clear()
        self._show()

    def restart_kubelet(self) -> None:
        """kubelet restarts with its checkpoint."""
        self.rig.kubelet.restart()
        self.tally.faults["kubelet restart"] += 1
        eventually(lambda: self.rig.kubelet.allocatable(RESOURCE) > 0, CALM_S)

    def _show(self) -> None:
        fails = [f"fail nvmlDeviceGetMemoryInfo {card} 999" for card in sorted(self.sick)]
        self.rig.stub.show(*fails, cards=CARDS)

    # -- what must agree ---------------------------------------------------------------------------
    def calm(self) -> None:
        """End all faults and wait until every slot is healthy."""
        self.mend_cards()
        self.rig.api.faults.clear()
        eventually(lambda: self.rig.kubelet.allocatable(RESOURCE) == CARDS * SLOTS, CALM_S)

    def holders(self) -> dict[str, tuple[str, ...]]:
        """Device IDs by pod, as kubelet lists them."""
        return {
            pod.name: tuple(ids)
            for pod in self.rig.kubelet.List(None, None).pod_resources  # type: ignore[arg-type]  # neither is read
            for container in pod.containers
            if (ids := [name for item in container.devices for name in item.device_ids])
        }

    def entries(self) -> dict[str, Entry]:
        """The ledger's entries by pod, read from its file."""
        ledger = Ledger(RecordFile(self.rig.root / "record", NAME), CODEC)
        found = ledger.load()
        assert not found.problem, found
        return {entry.pod: entry for entry in ledger.entries()}

    def measured(self) -> dict[str, int]:
        """MiB in use by pod, as the metrics have it."""
        _, text = page(port_of(self.rig))
        found = re.findall(r"^hami_node_container_memory_used_bytes\{(.*)\} (\S+)$", text, re.M)
        name = re.compile(r'pod="([^"]+)"')
        return {
            match[1]: int(float(value)) >> 20
            for labels, value in found
            if (match := name.search(labels))
        }

    def left_over(self) -> list[str]:
        """Folders of containers that are no longer there."""
        folders = (self.rig.root / "hook" / "vgpu" / "containers").iterdir()
        named = {f"uid-{name}_c" for name in self.running}
        return sorted(path.name for path in folders if path.name not in named)

    def annotated(self) -> dict[str, str]:
        """What the pods' own annotations say that they hold."""
        pods = map(decode_pod, self.rig.api.list("pods"))
        return {pod.name: pod.annotations["hami.io/vgpu-devices-allocated"] for pod in pods}


def _phase(phase: str) -> Callable[[dict[str, object]], None]:
    return lambda body: body.update(status={"phase": phase})
