"""A node on a desk: two pods on one card, the extender played, and kills at any step."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hami_node.engine.usage import collapse
from hami_node.model import ContainerKind, Node, Pod
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.recorded import answer_text, grants_of
from hami_node.node.resize.enforcer import ResizeVendor
from hami_node.node.resize.keeper import ResizeKeeper, ResizeParts
from hami_node.node.resize.pod_notes import PodNotes
from hami_node.node.resize.words import words_of
from hami_node.ports import EventNote, JsonPatch
from hami_node.record.ledger import Ledger
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.regions.limit_writer import NvidiaLimitWriter
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Mount, Slice
from hami_node.wire import names
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.resize import Approval, decision_id, encode_approval
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.extender_kube import FakeExtenderKube
from tests.fakes.ledgers import MemoryFile, an_entry
from tests.fakes.limited import LimitedContainer
from tests.fakes.pods import NODE, Box, pod_body, reservation

T = TypeVar("T")
CARD_MIB = 10_000


class KilledError(BaseException):
    """kill -9."""


class Fuse:
    """Kills before or after the n-th thing that lasts."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.steps: list[str] = []

    def around(self, what: str, work: Callable[[], T]) -> T:
        self._burn(f"before {what}")
        done = work()
        self._burn(f"after {what}")
        return done

    def _burn(self, step: str) -> None:
        self.steps.append(step)
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise KilledError(step)


class FusedFile(MemoryFile):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def save(self, payload: bytes) -> None:
        self.fuse.around("the ledger", lambda: super(FusedFile, self).save(payload))


class FusedWriter(NvidiaLimitWriter):
    """Each write is one step."""

    def __init__(self, hook_path: Path, fuse: Fuse) -> None:
        settings = NvidiaSettings(hook_path=hook_path)
        super().__init__(lambda: settings)
        self.fuse = fuse

    def write(self, granted: Slice) -> None:
        self.fuse.around("the limits", lambda: super(FusedWriter, self).write(granted))


class FusedKube(FakeExtenderKube):
    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self.fuse = fuse

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        return self.fuse.around(
            "the pod", lambda: super(FusedKube, self).json_patch_pod(namespace, name, patch)
        )


class ShownCluster:
    """`ports.Watched`, always up to date."""

    def __init__(self, kube: FakeExtenderKube) -> None:
        self._kube = kube

    def pods(self) -> tuple[Pod, ...]:
        return self._kube.list_pods()

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.pods() if pod.name == name), None)

    def node(self) -> Node | None:
        return decode_node(self._kube.store.read("nodes", "", NODE))

    def is_synced(self) -> bool:
        return True


def part(memory_mib: int, cores: int = 20, index: int = 0) -> str:
    return f"{uuid(index)},NVIDIA,{memory_mib},{cores}:"


def answer(*memory_mib: int, cores: int = 20) -> ContainerResponse:
    """As given at Allocate."""
    envs = {f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}": f"{mib}m" for i, mib in enumerate(memory_mib)}
    envs |= {nvidia_names.ENV_CORE_LIMIT: str(cores), "OTHER": "kept"}
    preload = Mount(
        container_path="/etc/ld.so.preload", host_path="/h/ld.so.preload", is_read_only=True
    )
    return ContainerResponse(envs=tuple(sorted(envs.items())), mounts=(preload,))


class NodeDesk:
    """`a` holds 4,000 MiB of the card, `b` 3,000; both run under the limiter."""

    def __init__(self, root: Path, *, cards: int = 1) -> None:
        self.hook, self.fuse, self.clock = root / "hook", Fuse(), FakeClock()
        self.protocol = nvidia_protocol(NvidiaSettings())
        self.kube = FusedKube(self.fuse)
        self.kube.store.create(
            "nodes",
            "",
            {"metadata": {"name": NODE, "annotations": {names.NODE_READ_BY: "hami-node"}}},
        )
        self.cards = [card(index, memory_mib=CARD_MIB) for index in range(cards)]
        self.file = FusedFile(self.fuse)
        self.events: list[EventNote] = []
        self.results: list[str] = []
        self.containers: dict[str, LimitedContainer] = {}
        self.ledger = Ledger(self.file)
        self.run("a", 4000)
        self.run("b", 3000)
        self.restart()

    def run(self, name: str, memory_mib: int, cores: int = 20, *, is_started: bool = True) -> None:
        """A pod that was served on all cards and runs."""
        text = "".join(part(memory_mib, cores, index) for index in range(len(self.cards))) + ";"
        box = Box(cards=len(self.cards), memory_mib=memory_mib, cores=cores)
        notes = reservation(text, to_allocate=";")
        self.kube.store.create("pods", "default", pod_body(name, [box], notes, phase="Running"))
        given = answer(*[memory_mib] * len(self.cards), cores=cores)
        self.ledger.put(
            an_entry(
                name,
                grants=text,
                answer=answer_text(given),
                device_ids=tuple(f"{item.uuid}-{name}" for item in self.cards),
            )
        )
        box_ = self.containers[name] = LimitedContainer(self.hook, f"uid-{name}")
        if is_started:
            box_.start(dict(given.envs), tuple(item.uuid for item in self.cards))

    def run_two(
        self, name: str, memory_mib: int, kinds: Sequence[ContainerKind] = (ContainerKind.APP,) * 2
    ) -> None:
        """A pod with containers x and y, which hold as much of card 0 each."""
        text = f"{part(memory_mib)};"
        pairs = list(zip("xy", kinds, strict=True))
        boxes = [Box(name=each, memory_mib=memory_mib, cores=20, kind=kind) for each, kind in pairs]
        notes = reservation(text * 2, to_allocate=";;")
        self.kube.store.create("pods", "default", pod_body(name, boxes, notes, phase="Running"))
        for each, kind in pairs:
            given = answer(memory_mib)
            fields = {"kind": kind.value, "grants": text, "answer": answer_text(given)}
            self.ledger.put(an_entry(name, each, **fields))
            box = self.containers[name + each] = LimitedContainer(self.hook, f"uid-{name}", each)
            box.start(dict(given.envs), (uuid(0),))

    def restart(self) -> None:
        """A new process over the same files."""
        self.ledger = Ledger(self.file)
        self.ledger.load()
        watched, protocol = ShownCluster(self.kube), self.protocol
        self.live = LiveUse(
            watched=watched, vendors=[protocol], ledger=self.ledger, clock=FakeClock()
        )
        notes = PodNotes(
            kube=self.kube,
            live=self.live,
            notify=self.events.append,
            on_result=self.results.append,
        )
        self.keeper = ResizeKeeper(
            ResizeParts(
                live=self.live,
                ledger=self.ledger,
                watched=watched,
                notes=notes,
                vendors={
                    "NVIDIA": ResizeVendor(
                        protocol=protocol, writer=FusedWriter(self.hook, self.fuse)
                    )
                },
                devices=lambda: tuple(self.cards),
                one_at_a_time=threading.Lock(),
                clock=self.clock,
                is_loaded=lambda: True,
                on_kept=lambda: self.results.append("kept"),
                settle_s=0.0,
            )
        )

    # -- the extender ------------------------------------------------------------------------------
    def approve(self, name: str, new: str, *, reserved: str | None = None, **fields: Any) -> str:
        """Approve these grants as the extender does; the decision's id."""
        pod = self.pod(name)
        request = json.dumps({"main": {"to": new, "at": pod.resource_version}})
        id_ = decision_id(request, pod.resource_version)
        given: dict[str, Any] = {
            "id": id_,
            "uid": pod.uid,
            "vendor": "NVIDIA",
            "grants": {"main": f"{new};"},
        }
        texts = {
            names.POD_RESIZE: request,
            names.POD_RESIZE_APPROVED: encode_approval(Approval(**(given | fields))),
            nvidia_names.POD_ALLOCATED: reserved or self._larger(pod, new),
        }
        self.annotate(name, texts)
        return id_

    def _larger(self, pod: Pod, new: str) -> str:
        pairs = zip(
            pod.annotations[nvidia_names.POD_ALLOCATED].removesuffix(";").split(":"),
            new.split(":"),
            strict=True,
        )
        return ":".join(map(_larger, pairs)) + ";"

    def annotate(self, name: str, texts: Mapping[str, str | None]) -> None:
        def change(body: dict[str, Any]) -> dict[str, Any]:
            notes = body["metadata"]["annotations"]
            for key, text in texts.items():
                notes.pop(key, None)
                if text is not None:
                    notes[key] = text
            return body

        self.kube.store.change("pods", "default", name, change)

    # -- what is there -----------------------------------------------------------------------------
    def pod(self, name: str) -> Pod:
        return decode_pod(self.kube.store.read("pods", "default", name))

    def state(self, name: str) -> dict[str, str]:
        return dict(json.loads(self.pod(name).annotations.get(names.POD_RESIZE_STATE, "{}")))

    def reserved(self, name: str) -> str:
        return self.pod(name).annotations[nvidia_names.POD_ALLOCATED]

    def recorded(self, name: str) -> str:
        entry = self.ledger.find(f"uid-{name}", "main", "NVIDIA")
        assert entry is not None
        return entry.grants

    def words(self) -> dict[str, dict[str, list[str]]]:
        return dict(json.loads(words_of(self.ledger.entries())))

    def check(self) -> None:
        """What must hold at every moment, whoever was killed when."""
        sums = dict.fromkeys((item.uuid for item in self.cards), 0)
        on_disk = Ledger(self.file)
        on_disk.load()
        live = LiveUse(
            watched=ShownCluster(self.kube),
            vendors=[nvidia_protocol(NvidiaSettings())],
            ledger=on_disk,
            clock=FakeClock(),
        )
        for grants in live.holders().values():
            for charge in collapse(grants):
                sums[charge.uuid] += charge.memory_mib
        assert all(total <= CARD_MIB for total in sums.values()), "over-committed"
        for entry in on_disk.entries():
            box = self.containers[
                entry.pod + ("" if entry.container == "main" else entry.container)
            ]
            if not box.path.exists() or box.path.stat().st_size <= box.layout.size:
                continue
            for grant in grants_of(self.protocol, entry):
                place = [item.uuid for item in self.cards].index(grant.uuid)
                assert box.limit_mib(place) <= grant.memory_mib, "more in force than counted"


def _larger(pair: tuple[str, str]) -> str:
    old, new = (text.split(",") for text in pair)
    if old == [""]:
        return ""
    memory, cores = (str(max(int(old[at]), int(new[at]))) for at in (2, 3))
    return f"{old[0]},NVIDIA,{memory},{cores}"
