"""One node's cards and a pod, as the specification's examples have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_node.engine.compat import V2_8, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage
from hami_node.model import NO_SCORES, Ask, ContainerKind, PairScores, Pod, PodWishes, Uuid
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.request import request_of, wishes_of
from hami_node.wire.objects import decode_pod

VENDORS = (nvidia_protocol(), neuron_protocol())


def pod_of(*limits: Mapping[str, object], annotations: Mapping[str, str] | None = None) -> Pod:
    """A pod with one container for each of these limits."""
    containers = [
        {
            "name": f"c{place}",
            "resources": {"limits": {name: str(amount) for name, amount in each.items()}},
        }
        for place, each in enumerate(limits)
    ]
    return decode_pod(
        {
            "metadata": {
                "name": "p",
                "namespace": "team",
                "uid": "u",
                "annotations": dict(annotations or {}),
            },
            "spec": {"containers": containers},
        }
    )


def asks_in(pod: Pod) -> list[Ask]:
    """The asks of a pod, container after container."""
    return [ask for container in request_of(pod, VENDORS).containers for ask in container.asks]


def place(
    cards: Sequence[DeviceUsage],
    *asks: Ask,
    annotations: Mapping[str, str] | None = None,
    compat: Compat = V2_8,
    policy: str = "spread",
    quota: Quota | None = None,
    pair_scores: PairScores = NO_SCORES,
) -> str:
    """UUIDs of each container's cards, `a+b c`, or the reasons."""
    wishes = PodWishes() if annotations is None else wishes_of(annotations, VENDORS)
    request = PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=ContainerKind.APP, asks=(wanted,)) for wanted in asks),
        wishes=wishes,
    )
    ready = plan(request, Rules(compat=compat, gpu_policy=policy), quota)
    assert isinstance(ready, Plan)
    node = NodeOffer(cards={usage.device.uuid: usage for usage in cards}, pair_scores=pair_scores)
    answer = place_on(node, ready)
    if isinstance(answer, Rejection):
        return answer.text()
    return " ".join("+".join(grant.uuid for grant in held) for held in answer.containers)


def links(pairs: Mapping[tuple[int, int], int]) -> PairScores:
    """Scores between `GPU-<a>` and `GPU-<b>`, in both directions."""
    scores: dict[Uuid, dict[Uuid, int]] = {}
    for (a, b), score in pairs.items():
        for first, other in ((a, b), (b, a)):
            scores.setdefault(Uuid(f"GPU-{first}"), {})[Uuid(f"GPU-{other}")] = score
    return scores
