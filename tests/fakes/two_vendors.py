"""Pods that ask for NVIDIA and ACME cards in one container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hami_node.model import ContainerKind, Device, Pod, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire.objects import decode_pod
from tests.acme import names as acme_names
from tests.acme.cards import ACME
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, pod_body, reservation

GPU: Final = nvidia_names.RESOURCE_GPU
CARD: Final = acme_names.RESOURCE_CARD
GPU_TEXT: Final = f"{uuid(0)},NVIDIA,1000,0:;"
CARD_TEXT: Final = "ACME-0,ACME,500,0:;"


def acme_card(index: int = 0) -> Device:
    """An offered ACME card: 4 slots, 16 GiB."""
    return Device(
        uuid=Uuid(f"ACME-{index}"),
        index=index,
        vendor=ACME,
        model="Rocket",
        slots=4,
        memory_mib=16384,
    )


def body_of(
    name: str,
    *,
    boxes: Sequence[Box] = (Box(memory_mib=1000),),
    gpu: str = GPU_TEXT,
    card: str = CARD_TEXT,
    waiting: tuple[str | None, str | None] = (None, None),
    **fields: Any,
) -> dict[str, Any]:
    """Each container asks for one card of either vendor where the vendor's grants are not "".

    `waiting` is what is still to be served of NVIDIA's and ACME's grants; None for all.
    """
    notes = reservation(gpu, to_allocate=waiting[0]) if gpu else reservation("")
    if card:
        notes[acme_names.POD_ALLOCATED] = card
        notes[acme_names.POD_TO_ALLOCATE] = card if waiting[1] is None else waiting[1]
    body = pod_body(name, boxes, notes, **fields)
    spec = body["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        limits = container["resources"]["limits"]
        if not gpu:
            limits.clear()
        if card:
            limits |= {CARD: "1", acme_names.RESOURCE_MEMORY: "500"}
    return body


def pod_of(name: str = "p", **fields: Any) -> Pod:
    """The decoded pod; see `body_of`."""
    return decode_pod(body_of(name, **fields))


INIT: Final = ContainerKind.INIT
