"""What containers use of parts of divided cards: the driver says it of each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hami_node.model import Uuid
from hami_node.node.holdings.pod_names import NOBODY, PodName
from hami_node.ports import ContainerUse, HostUse
from hami_node.vendors.divided import DividedCards


def uses_of_parts(
    hosts: Mapping[Uuid, HostUse], divided: DividedCards, names: Mapping[str, PodName]
) -> Iterator[ContainerUse]:
    """What containers use of the parts that they have; cores are not told of a part.

    Args:
        hosts: what the driver has read, by card.
        divided: the cards whose parts these are.
        names: pods by uid.
    """
    for card in divided.cards:
        host = hosts.get(card.uuid)
        read = {(use.numbers, use.uuid): use for use in (host.parts if host else ())}
        for part in card.parts:
            use = read.get((part.numbers, part.uuid))
            namespace, pod = names.get(part.pod_uid, NOBODY)
            if use is None or use.memory_bytes is None or not pod:
                continue
            yield ContainerUse(
                namespace=namespace,
                pod=pod,
                container=part.container,
                uuid=card.uuid,
                index=card.index,
                position=part.position,
                memory_bytes=use.memory_bytes,
                context_bytes=None,
                module_bytes=None,
                data_bytes=None,
                core_percent=None,
                limit_bytes=use.limit_bytes,
                core_limit_percent=None,
                last_kernel_s=None,
                part=part.uuid,
                processes=None if use.processes is None else len(use.processes),
            )
