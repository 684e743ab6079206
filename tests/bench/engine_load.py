"""A seeded fleet under load: what the engine's measurements run on."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.model import Ask, ContainerKind, Device, Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA

CARDS = 8
MODELS = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA L40S", "Tesla T4")
MEMORY_MIB = {MODELS[0]: 40960, MODELS[1]: 81559, MODELS[2]: 46068, MODELS[3]: 15360}
SIZES_MIB = (1000, 2048, 3000, 4096, 6000, 8192, 10240, 14000)
CORES = (0, 0, 10, 20, 25, 30, 50)


def node_name(number: int) -> str:
    return f"node-{number:05d}"


def devices_of(number: int) -> list[Device]:
    model = MODELS[number % len(MODELS)]
    return [
        Device(
            uuid=Uuid(f"GPU-{number:05d}-{index}-0000-0000-000000000000"),
            index=index,
            vendor=NVIDIA,
            model=model,
            numa=index // 4,
            slots=10,
            memory_mib=MEMORY_MIB[model],
        )
        for index in range(CARDS)
    ]


def request_of(draw: random.Random) -> PodRequest:
    ask = Ask(
        vendor=NVIDIA,
        count=draw.choice((1, 1, 1, 1, 2, 4)),
        memory_mib=draw.choice(SIZES_MIB) + draw.randrange(64),
        cores=draw.choice(CORES),
    )
    return PodRequest(
        namespace=f"team-{draw.randrange(20)}",
        containers=(ContainerAsks(kind=ContainerKind.APP, asks=(ask,)),),
    )


def thrown_grants(nodes: int, pods: int, seed: int) -> Iterator[tuple[int, Grant]]:
    """(number of the node, grant) of so many pods, which fit on their cards beside each other."""
    draw = random.Random(seed)
    free = [
        [[item.memory_mib, item.cores, item.slots] for item in devices_of(n)] for n in range(nodes)
    ]
    placed = 0
    while placed < pods:
        number, index = draw.randrange(nodes), draw.randrange(CARDS)
        memory, cores = draw.choice(SIZES_MIB) // 2 + draw.randrange(64), draw.choice(CORES)
        room = free[number][index]
        if memory > room[0] or cores > room[1] or not room[2]:
            continue
        room[0], room[1], room[2] = room[0] - memory, room[1] - cores, room[2] - 1
        uuid = devices_uuid(number, index)
        yield number, Grant(uuid=uuid, vendor=NVIDIA, memory_mib=memory, cores=cores)
        placed += 1


def devices_uuid(number: int, index: int) -> Uuid:
    return Uuid(f"GPU-{number:05d}-{index}-0000-0000-000000000000")
