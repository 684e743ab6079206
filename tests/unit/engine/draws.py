"""Random fleets and requests that meet often: few sizes, few kinds, most cards healthy."""

from __future__ import annotations

import random
from typing import Any

from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.model import (
    Ask,
    CardWishes,
    ContainerKind,
    Device,
    PodWishes,
    Uuid,
    UuidWish,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import NeuronDetail
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
)
from tests.unit.engine.cards import A100_PROFILES, A100_TEMPLATES, ask, device


class Draw:
    """A seeded source of nodes and pods; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def number(self, most: int) -> int:
        return self.random.randint(0, most)

    def devices(self, node: int) -> list[Device]:
        kind = self.pick("gpu", "gpu", "gpu", "mixed", "neuron")
        return [
            self._device(Uuid(f"{node}-{index}"), index, kind) for index in range(self.number(4))
        ]

    def _device(self, uuid: Uuid, index: int, kind: str) -> Device:
        if kind == "mixed":
            kind = self.pick("gpu", "mig", "old-mig", "neuron")
        values: dict[str, Any] = {
            "uuid": uuid,
            "model": self.pick("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "Tesla T4"),
            "numa": self.pick(0, 0, 1, None),
            "slots": self.pick(1, 2, 10, 10),
            "memory_mib": self.pick(8192, 16384, 16384),
            "cores": self.pick(0, 100, 100, 100, 200),
            "healthy": self.number(9) > 0,
        }
        if kind == "mig":
            values |= {
                "mode": "mig",
                "detail": MigLayout(profiles=A100_PROFILES),
                "memory_mib": 40960,
            }
            values |= {"slots": 7}
        if kind == "old-mig":
            values |= {
                "mode": "mig",
                "detail": MigLayout(templates=A100_TEMPLATES),
                "memory_mib": 40960,
            }
            values |= {"slots": 7}
        if kind == "neuron":
            values |= {"vendor": NEURON, "mode": "", "cores": 3, "memory_mib": 0}
            values |= {"detail": NeuronDetail(instance_type="inf2.24xlarge"), "slots": 2}
        return device(index, **values)

    def _gpu(self) -> Ask:
        return ask(
            self.pick(1, 1, 1, 2, 3),
            self.pick(None, 1, 2000, 4096, 8192, 8193, 16384, 20000),
            self.pick(0, 0, 1, 30, 50, 100),
            memory_percent=self.pick(None, 25, 50, 100),
        )

    def _asks(self) -> tuple[Ask, ...]:
        cores = Ask(vendor=NEURON, count=self.pick(1, 1, 2), cores=self.pick(1, 2))
        asks: tuple[Ask, ...] = self.pick(
            (), *([(self._gpu(),)] * 6), (cores,), (self._gpu(), cores)
        )
        return asks

    def _uuids(self) -> frozenset[str]:
        return frozenset(f"{self.number(5)}-{self.number(2)}" for _ in range(3))

    def wishes(self) -> PodWishes:
        cards = CardWishes(
            use_types=self.pick((), (), (), (), ("a100",)),
            nouse_types=self.pick((), (), (), (), ("t4",)),
            modes=self.pick(None, None, None, frozenset({"hami-core"})),
            uuids=UuidWish(
                use=self.pick(None, None, None, None, self._uuids()),
                nouse=self.pick(frozenset(), frozenset(), frozenset(), self._uuids()),
            ),
            is_numa_bound=self.number(4) == 0,
        )
        return PodWishes(
            cards=((NVIDIA, cards),),
            gpu_policy=self.pick(None, "binpack", "mutex", "topology-aware", "numa,spread"),
            node_policy=self.pick(None, "spread"),
        )

    def request(self) -> PodRequest:
        kinds = (ContainerKind.APP,) * 4 + tuple(ContainerKind)
        return PodRequest(
            namespace=self.pick("team", "free", "free"),
            containers=tuple(
                ContainerAsks(kind=self.pick(*kinds), asks=self._asks())
                for _ in range(self.pick(1, 1, 1, 2, 3))
            ),
            wishes=self.wishes(),
        )
