"""Builds the allocators, which take turns on the whole node, and who frees its lock."""

from __future__ import annotations

from hami_node.cluster.node_lock import NodeLock
from hami_node.engine.compat import COMPATS
from hami_node.node.allocate.allocator import AllocatorParts, PodAllocator
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.owed import OwedWrites
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.node.allocate.shares import ShareTerms
from hami_node.node.allocate.terms import AllocateRules, CardState, ReservedTerms, Terms
from hami_node.node.identity.identity import Identity, IdentitySources
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.resource import NodeResource
from hami_node.node.vendor_cards import VendorCards
from hami_node.vendors.spec import protocol_of, protocols_of


def build_locks(parts: NodeParts, cluster: ClusterParts) -> LockKeeper:
    """Who frees the locks of this node."""
    return LockKeeper(
        lock=NodeLock(cluster.kube, parts.clock),
        kube=cluster.kube,
        watched=cluster.view,
        live=cluster.live,
        vendors=cluster.served,
        node_name=parts.settings().node_name,
        clock=parts.clock,
        on_removed=cluster.metrics.count_lock_removed,
    )


def build_allocators(
    parts: NodeParts, cluster: ClusterParts, locks: LockKeeper, owed: OwedWrites
) -> tuple[PodAllocator, ...]:
    """The allocators in the order of the resources."""
    sources = IdentitySources(
        live=cluster.live,
        ledger=cluster.ledger,
        kube=cluster.kube,
        resources=cluster.kubelet,
        lock_owner=locks.owner_now,
    )
    writer = PodWriter(
        kube=cluster.kube,
        locks=locks,
        live=cluster.live,
        vendors=cluster.served,
        notify=cluster.notify,
        owed=owed,
    )
    return tuple(
        PodAllocator(_parts_of(owner, resource, parts, cluster, sources, writer))
        for owner in parts.vendor_cards
        for resource in owner.resources
    )


def _parts_of(
    owner: VendorCards,
    resource: NodeResource,
    parts: NodeParts,
    cluster: ClusterParts,
    sources: IdentitySources,
    writer: PodWriter,
) -> AllocatorParts:
    def rules() -> AllocateRules:
        now = parts.settings()
        return AllocateRules(
            vendor=protocol_of(resource.vendor, now),
            vendors=protocols_of(parts.vendors, now),
            compat=COMPATS[now.compat.value],
        )

    def note_result(result: str, seconds: float) -> None:
        resource.update_hints(cluster.ledger.entries())  # before kubelet admits the next one
        cluster.metrics.count_allocate(result, seconds)

    settings = parts.settings()
    identity = Identity(
        vendor=protocol_of(resource.vendor, settings),
        resource=resource.name,
        sources=sources,
        node_name=settings.node_name,
    )
    return AllocatorParts(
        identity=identity,
        terms=_terms_of(resource, parts, cluster, identity, writer),
        ledger=cluster.ledger,
        cards=lambda: resource.inventory.cards,
        writer=writer,
        responder=owner.responder,
        rules=rules,
        clock=parts.clock,
        resource=resource.name,
        one_at_a_time=cluster.one_at_a_time,
        is_aligned=resource.is_aligned,
        parts=lambda: owner.parts,
        notice=cluster.live.noticed,
        on_result=note_result,
    )


def _terms_of(
    resource: NodeResource,
    parts: NodeParts,
    cluster: ClusterParts,
    identity: Identity,
    writer: PodWriter,
) -> Terms:
    """By reservation, or by kubelet's device IDs where these alone are the grant."""
    vendor = protocol_of(resource.vendor, parts.settings())
    state = CardState(
        cards=lambda: resource.inventory.cards,
        usage=lambda leave_out: cluster.live.cards(parts.cards(), leave_out=leave_out),
        live=cluster.live,
        choice=resource.choice,
    )
    if vendor.is_fixed(resource.name):
        return ShareTerms(state, vendor, resource.name, writer)
    return ReservedTerms(state, identity, writer)
