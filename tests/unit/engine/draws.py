"""Random fleets and requests that meet often: few sizes, few kinds, most cards healthy."""

from __future__ import annotations

import random
from typing import Any

from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.model import Ask, ContainerKind, Device, PodWishes, Uuid, UuidWish, Vendor
from tests.unit.engine.cards import A100_PROFILES, A100_TEMPLATES, ask, device


class Draw:
    """A seeded source of nodes and pods; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def number(self, most: int) -> int:
        return self.random.randint(0, most)

    def devices(self, node: int) -> list[Device]:
        kind = self.one("gpu", "gpu", "gpu", "mixed", "neuron")
        return [
            self._device(Uuid(f"{node}-{index}"), index, kind) for index in range(self.number(4))
        ]

    def _device(self, uuid: Uuid, index: int, kind: str) -> Device:
        if kind == "mixed":
            kind = self.one("gpu", "mig", "old-mig", "neuron")
        values: dict[str, Any] = {
            "uuid": uuid,
            "model": self.one("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "Tesla T4"),
            "numa": self.one(0, 0, 1, None),
            "slots": self.one(1, 2, 10, 10),
            "memory_mib": self.one(8192, 16384, 16384),
            "cores": self.one(0, 100, 100, 100, 200),
            "healthy": self.number(9) > 0,
        }
        if kind == "mig":
            values |= {"mode": "mig", "mig_profiles": A100_PROFILES, "memory_mib": 40960}
            values |= {"slots": 7}
        if kind == "old-mig":
            values |= {"mode": "mig", "mig_templates": A100_TEMPLATES, "memory_mib": 40960}
            values |= {"slots": 7}
        if kind == "neuron":
            values |= {"vendor": Vendor.AWS_NEURON, "mode": "", "cores": 3, "memory_mib": 0}
            values |= {"instance_type": "inf2.24xlarge", "slots": 2}
        return device(index, **values)

    def _gpu(self) -> Ask:
        return ask(
            self.one(1, 1, 1, 2, 3),
            self.one(None, 1, 2000, 4096, 8192, 8193, 16384, 20000),
            self.one(0, 0, 1, 30, 50, 100),
            memory_percent=self.one(None, 25, 50, 100),
        )

    def _asks(self) -> tuple[Ask, ...]:
        cores = Ask(vendor=Vendor.AWS_NEURON, count=self.one(1, 1, 2), cores=self.one(1, 2))
        asks: tuple[Ask, ...] = self.one(
            (), *([(self._gpu(),)] * 6), (cores,), (self._gpu(), cores)
        )
        return asks

    def _uuids(self) -> frozenset[str]:
        return frozenset(f"{self.number(5)}-{self.number(2)}" for _ in range(3))

    def wishes(self) -> PodWishes:
        return PodWishes(
            use_types=self.one((), (), (), (), ("a100",)),
            nouse_types=self.one((), (), (), (), ("t4",)),
            modes=self.one(None, None, None, frozenset({"hami-core"})),
            nvidia=UuidWish(
                use=self.one(None, None, None, None, self._uuids()),
                nouse=self.one(frozenset(), frozenset(), frozenset(), self._uuids()),
            ),
            is_numa_bound=self.number(4) == 0,
            gpu_policy=self.one(None, "binpack", "mutex", "topology-aware", "numa,spread"),
            node_policy=self.one(None, "spread"),
        )

    def request(self) -> PodRequest:
        kinds = (ContainerKind.APP,) * 4 + tuple(ContainerKind)
        return PodRequest(
            namespace=self.one("team", "free", "free"),
            containers=tuple(
                ContainerAsks(kind=self.one(*kinds), asks=self._asks())
                for _ in range(self.one(1, 1, 1, 2, 3))
            ),
            wishes=self.wishes(),
        )
