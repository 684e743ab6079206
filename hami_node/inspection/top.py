"""Granted against used, by card and by pod; and what a view has of some nodes or pods. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hami_node.inspection.usage import Usage, Use
from hami_node.inspection.views import CardView, ClusterView, HolderView

_UNKNOWN = Use()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopCard:
    """A card: what it has, what is granted of it, and what everybody on its node uses.

    Memory in MiB; cores in percent, or their number. Used is None where nobody says it.
    """

    node: str
    index: int
    uuid: str
    model: str
    is_healthy: bool
    why: str
    slots: int
    slots_granted: int
    memory_mib: int
    memory_granted_mib: int
    memory_used_mib: int | None
    cores: int
    cores_granted: int
    cores_used_percent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopPod:
    """A pod on a node: what its containers were granted and use of all cards, as `TopCard`."""

    namespace: str
    pod: str
    node: str
    cards: int
    memory_granted_mib: int
    memory_used_mib: int | None
    cores_granted: int
    cores_used_percent: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """Cards and pods, those that use most first; `note` says why no use is known."""

    cards: tuple[TopCard, ...]
    pods: tuple[TopPod, ...]
    note: str = ""


def top_of(view: ClusterView, usage: Usage) -> TopView:
    """Put grants and use together."""
    by_pod: dict[tuple[str, str], list[HolderView]] = {}
    for holder in view.holders:
        by_pod.setdefault((holder.namespace, holder.pod), []).append(holder)
    cards = (_card(card, usage) for card in view.cards)
    pods = (_pod(held, usage) for held in by_pod.values())
    return TopView(
        cards=tuple(sorted(cards, key=_most_of_card)),
        pods=tuple(sorted(pods, key=_most_of_pod)),
        note=usage.note,
    )


def _card(card: CardView, usage: Usage) -> TopCard:
    use = usage.cards.get((card.node, card.uuid), _UNKNOWN)
    return TopCard(
        node=card.node,
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        is_healthy=card.is_healthy,
        why=card.why,
        slots=card.slots,
        slots_granted=card.slots_used,
        memory_mib=card.memory_mib,
        memory_granted_mib=card.memory_used_mib,
        memory_used_mib=use.memory_mib,
        cores=card.cores,
        cores_granted=card.cores_used,
        cores_used_percent=use.core_percent,
    )


def _pod(held: list[HolderView], usage: Usage) -> TopPod:
    first = held[0]
    use = usage.pods.get((first.namespace, first.pod), _UNKNOWN)
    return TopPod(
        namespace=first.namespace,
        pod=first.pod,
        node=first.node,
        cards=len({holder.uuid for holder in held if not holder.shares}),
        memory_granted_mib=sum(holder.memory_mib for holder in held),
        memory_used_mib=use.memory_mib,
        cores_granted=sum(holder.cores for holder in held),
        cores_used_percent=use.core_percent,
    )


def _most_of_card(card: TopCard) -> tuple[int, int, str, int]:
    return (-(card.memory_used_mib or 0), -card.memory_granted_mib, card.node, card.index)


def _most_of_pod(pod: TopPod) -> tuple[int, int, str, str]:
    return (-(pod.memory_used_mib or 0), -pod.memory_granted_mib, pod.namespace, pod.pod)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSums:
    """The cards of a node together; `sick` has the reasons, each with its card."""

    cards: int = 0
    slots: int = 0
    slots_used: int = 0
    memory_mib: int = 0
    memory_used_mib: int = 0
    cores: int = 0
    cores_used: int = 0
    sick: tuple[str, ...] = ()

    def plus(self, card: CardView) -> NodeSums:
        """The same with another card."""
        sick = "" if card.is_healthy else f"card {card.index} is unhealthy"
        why = ": ".join(filter(None, (sick or f"card {card.index}", card.why)))
        return NodeSums(
            cards=self.cards + 1,
            slots=self.slots + card.slots,
            slots_used=self.slots_used + card.slots_used,
            memory_mib=self.memory_mib + card.memory_mib,
            memory_used_mib=self.memory_used_mib + card.memory_used_mib,
            cores=self.cores + card.cores,
            cores_used=self.cores_used + card.cores_used,
            sick=(*self.sick, why) if sick or card.why else self.sick,
        )


def sums_of(cards: Iterable[CardView]) -> dict[str, NodeSums]:
    """By node."""
    found: dict[str, NodeSums] = {}
    for card in cards:
        found[card.node] = found.get(card.node, NodeSums()).plus(card)
    return found


def of_nodes(view: ClusterView, is_wanted: Callable[[str], bool]) -> ClusterView:
    """What a view has of some nodes."""
    return replace(
        view,
        nodes=tuple(node for node in view.nodes if is_wanted(node.name)),
        cards=tuple(card for card in view.cards if is_wanted(card.node)),
        holders=tuple(holder for holder in view.holders if is_wanted(holder.node)),
        problems=tuple(
            problem
            for problem in view.problems
            if not problem.where.startswith("node ")
            or is_wanted(problem.where.removeprefix("node ").partition(",")[0])
        ),
    )


def of_pods(view: ClusterView, is_wanted: Callable[[str, str], bool]) -> ClusterView:
    """What a view has of some pods, asked for by namespace and name."""
    return replace(
        view,
        holders=tuple(item for item in view.holders if is_wanted(item.namespace, item.pod)),
        waiting=tuple(item for item in view.waiting if is_wanted(item.namespace, item.pod)),
        problems=tuple(
            problem
            for problem in view.problems
            if not problem.where.startswith("pod ")
            or is_wanted(*problem.where.removeprefix("pod ").split("/", 1))
        ),
    )
