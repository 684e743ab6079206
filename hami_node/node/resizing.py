"""Builds what resizes running containers on this node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hami_node.config.settings import Settings
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.resize.enforcer import ResizeVendor
from hami_node.node.resize.keeper import ResizeKeeper, ResizeParts
from hami_node.node.resize.pod_notes import PodNotes
from hami_node.node.resize.words import ResizedWords
from hami_node.record.ledger import Ledger
from hami_node.vendors.spec import protocol_of


def resize_vendors(parts: NodeParts, settings: Settings) -> dict[str, ResizeVendor]:
    """The vendors whose running containers can be resized here, by their words."""
    found = {}
    for owner in parts.vendor_cards:
        protocol, writer = protocol_of(owner.vendor, settings), owner.limit_writer
        if writer is not None and protocol.resize_words is not None:
            found[protocol.cards.word] = ResizeVendor(protocol=protocol, writer=writer)
    return found


def build_words(parts: NodeParts, ledger: Ledger, is_loaded: Callable[[], bool]) -> ResizedWords:
    """What this node says of resized containers, or nothing where none can be resized."""
    is_able = bool(resize_vendors(parts, parts.settings()))
    return ResizedWords(ledger.entries, is_loaded, is_able=is_able)


def build_keeper(
    parts: NodeParts,
    cluster: ClusterParts,
    *,
    is_loaded: Callable[[], bool],
    on_settled: Callable[[], None],
) -> ResizeKeeper:
    """The keeper of this node; the arguments are those of `ResizeParts`."""
    metrics = cluster.metrics
    return ResizeKeeper(
        ResizeParts(
            live=cluster.live,
            ledger=cluster.ledger,
            watched=cluster.view,
            notes=PodNotes(
                kube=cluster.kube,
                live=cluster.live,
                notify=cluster.notify,
                on_result=metrics.count_resize,
            ),
            vendors=resize_vendors(parts, parts.settings()),
            devices=parts.cards,
            one_at_a_time=cluster.one_at_a_time,
            clock=parts.clock,
            is_loaded=is_loaded,
            on_kept=partial(metrics.count_resize, "kept"),
            on_settled=on_settled,
        )
    )
