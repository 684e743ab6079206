"""Steps of the demo in which pods are created unscheduled and go through the extender."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hami_node.config.settings import Settings
from hami_node.demo import pods
from hami_node.demo.cards import granted_mib
from hami_node.demo.pods import Tenant, Want
from hami_node.demo.stage import EXTENDER, GPU_NODE, Stage
from hami_node.demo.tour import Rows, Seen, Tour
from hami_node.engine.ranking import BINPACK, SPREAD
from hami_node.model import Device, Pod
from hami_node.simulate.kube_scheduler import CallFailed, Waiting
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.demo import SharedCards, StepFailed, check
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names

FIRST: Final = Tenant(
    name="train",
    wants=(Want(name="main", memory_mib=16000, cores=40, is_counted=False),),
)
"""It also wishes for a model, with its vendor's annotation."""
JOINING: Final = (
    Tenant(
        name="serve",
        wants=(
            Want(name="model", memory_mib=8000, cores=20),
            Want(name="canary", memory_mib=2000, cores=5),
        ),
        wishes={names.POD_GPU_POLICY: BINPACK},
    ),
    Tenant(
        name="notebook",
        wants=(Want(name="jupyter", memory_mib=4000, cores=10),),
        wishes={names.POD_GPU_POLICY: BINPACK},
    ),
)
"""Pods that join the first pod on its card."""
APART: Final = tuple(
    Tenant(
        name=f"apart-{number}",
        wants=(Want(name="main", memory_mib=4000, cores=10),),
        wishes={names.POD_GPU_POLICY: SPREAD},
    )
    for number in (1, 2, 3)
)
PATIENT: Final = Tenant(name="patient", wants=(Want(name="main", memory_mib=45000, cores=10),))
"""Fits only on one of the larger cards, and only if no other pod uses it."""
FILTERING_FAILED: Final = "FilteringFailed"


def reach_extender(tour: Tour) -> Seen:
    """The extender reports that it is ready: nodes, pods and quotas are listed."""
    stage = tour.stage

    def ready() -> bool:
        if stage.program(EXTENDER).port_of("extender_served") is None:
            return False
        try:
            return stage.extender.fetch("GET", "/readyz")[0] == 200
        except CallFailed:
            return False

    stage.until(EXTENDER, "the extender's /readyz answers 200", ready)
    process = stage.program(EXTENDER).process.pid
    return Seen(
        lines=(f"process {process} serves /webhook, /filter and /bind on {stage.extender.url}",)
    )


# -- a pod from creation to its limits -------------------------------------------------------------
def walk(tour: Tour) -> Seen:
    """A pod with nothing but limits: webhook, filter, bind, kubelet, limits in the container."""
    stage, name = tour.stage, FIRST.name
    cards = stage.cast.shared
    wish, word = cards.wish
    created = pods.create_tenant(stage, replace(FIRST, wishes={wish: word}))
    added = _added_by_webhook(created, FIRST, cards.protocol)
    node = pods.place(stage, name)
    reserved = pods.read(stage, name)
    card = card_of(tour, reserved)
    check(node == reserved.node_name == GPU_NODE, f"pod {name} is on node {reserved.node_name}")
    is_wished = word in card.model
    check(is_wished, f"it wished for {word} and got card {card.index}, {card.model}")
    phase = reserved.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_ALLOCATING, f"bound, its phase is {phase}")
    is_locked = names.NODE_LOCK in stage.read_node(stage.gpu).annotations
    check(not is_locked, "the node was locked, which its daemon does not need")
    tour.home = card
    inside = admit(tour, FIRST)[0]
    limits = zip(cards.limits_env(0, 0), inside[2:], strict=False)
    envs = ", ".join(f"{key}={value}" for key, value in limits)
    wanted = FIRST.wants[0].limits(cards.protocol)
    requested = ", ".join(f"{key}: {value}" for key, value in wanted.items())
    return Seen(
        lines=(f"pod {name} requests {requested}; no scheduler, no node, no number of cards",),
        rows=Rows(
            columns=("step", "result"),
            rows=(
                ("webhook", f"adds {added}"),
                ("filter", f"chooses card {card.index} of {node}, {card.model}, as wished"),
                ("bind", f"binds the pod to {node}, which needs no lock; phase {phase}"),
                ("daemon", f"answers Allocate: {envs}; phase {names.PHASE_SUCCESS}"),
            ),
        ),
    )


def _added_by_webhook(created: Pod, tenant: Tenant, cards: VendorProtocol) -> str:
    """What the webhook added to the pod, in words. Raises StepFailed for anything unexpected."""
    scheduler = Settings().scheduler_name
    check(created.scheduler_name == scheduler, f"its scheduler is {created.scheduler_name!r}")
    resource = cards.counted[0]
    count = created.containers[0].limits.get(resource)
    check(count == "1", f"its limit {resource} is {count}")
    wanted = tenant.wants[0].limits(cards)
    given = {key: created.containers[0].limits.get(key) for key in wanted}
    check(given == wanted, f"its own limits were changed to {given}")
    return f"schedulerName {scheduler} and {resource}: {count}"


# -- policies --------------------------------------------------------------------------------------
def share(tour: Tour) -> Seen:
    """Two pods join the first on its card; kubelet admits them in another order."""
    stage, card = tour.stage, tour.shared_card
    for tenant in JOINING:
        pods.create_tenant(stage, tenant)
        pods.place(stage, tenant.name)
    rows = [row for tenant in reversed(JOINING) for row in admit(tour, tenant)]
    cards, first = stage.cast.shared, tour.served[FIRST.name]
    rows += [limits_row(cards, FIRST.name, want, first, card) for want in FIRST.wants]
    check(all(row[-1] == str(card.index) for row in rows), f"not all are on card {card.index}")
    files = {
        _cache_file(stage, tenant.name, want.name, tour.served[tenant.name])
        for tenant in (FIRST, *JOINING)
        for want in tenant.wants
    }
    check(len(files) == len(rows) and None not in files, "containers share a cache file")
    held_mib = granted_mib(stage, card.uuid)
    return Seen(
        lines=(
            "scheduled one after the other, admitted in another order, no node lock: kubelet's "
            "pod-resources list identifies the pod",
            f"card {card.index}: {held_mib} of {card.memory_mib} MiB granted, "
            f"{card.memory_mib - held_mib} free",
        ),
        rows=Rows(columns=limit_columns(cards), rows=tuple(sorted(rows))),
    )


def spread(tour: Tour) -> Seen:
    """The effect of an annotation: binpack fills a card, spread takes empty cards."""
    stage, home = tour.stage, tour.shared_card
    for tenant in APART:
        pods.create_tenant(stage, tenant)
        pods.place(stage, tenant.name)
    for tenant in APART:
        admit(tour, tenant)
    found = {
        tenant.name: card_of(tour, pods.read(stage, tenant.name)) for tenant in (*JOINING, *APART)
    }
    together = {found[tenant.name].index for tenant in JOINING}
    check(together == {home.index}, f"with {BINPACK} they are on cards {sorted(together)}")
    apart = sorted(found[tenant.name].index for tenant in APART)
    empty = sorted(card.index for card in tour.cards if card.uuid != home.uuid)
    check(apart == empty, f"with {SPREAD} they are on cards {apart}, empty were {empty}")
    return Seen(
        lines=(f"the annotation is {names.POD_GPU_POLICY}",),
        rows=Rows(
            columns=("pod", "annotation", "card#"),
            rows=tuple(
                (tenant.name, tenant.wishes[names.POD_GPU_POLICY], str(found[tenant.name].index))
                for tenant in (*JOINING, *APART)
            ),
        ),
    )


# -- no room ---------------------------------------------------------------------------------------
def wait_for_room(tour: Tour) -> Seen:
    """A pod that fits nowhere stays Pending with a reason; it runs once another pod is deleted."""
    stage, name = tour.stage, PATIENT.name
    wanted_mib = PATIENT.wants[0].memory_mib
    pods.create_tenant(stage, PATIENT)
    outcome = pods.try_once(stage, name)
    check(isinstance(outcome, Waiting), f"pod {name} was given a node where nothing is free")
    message = stage.until(
        EXTENDER,
        f"an Event gives the reason for pod {name}",
        lambda: pods.event_of(stage, name, FILTERING_FAILED),
    )
    free_mib = max(card.memory_mib - granted_mib(stage, card.uuid) for card in tour.cards)
    nearest = f"nearest: {free_mib} MiB free on "
    is_explained = nearest in message and f"{wanted_mib} MiB requested" in message
    check(is_explained, f"the Event's message is: {message}")
    waiting = pods.read(stage, name)
    grants = stage.cast.shared.protocol.keys.grants.allocated
    has_nothing = not waiting.node_name and grants not in waiting.annotations
    check(has_nothing, f"pod {name} waits, but has a reservation")
    leaver = _holder_of_large_card(tour, wanted_mib)
    began_s = stage.clock.monotonic()
    pods.delete(stage, leaver)
    tour.served.pop(leaver, None)
    pods.place(stage, name)
    took = tour.since(began_s)
    row = admit(tour, PATIENT)[0]
    return Seen(
        lines=(
            f"pod {name} requests {wanted_mib} MiB and is Pending; kubectl describe pod {name} "
            "shows:",
        ),
        quote=message,
        then=f"pod {leaver} is deleted: {name} is bound {took} later and runs on card {row[-1]} "
        f"with {row[2]}",
    )


def _holder_of_large_card(tour: Tour, memory_mib: int) -> str:
    for tenant in APART:
        if card_of(tour, pods.read(tour.stage, tenant.name)).memory_mib >= memory_mib:
            return tenant.name
    raise StepFailed(f"no pod holds a card of {memory_mib} MiB")


# -- what a container gets -------------------------------------------------------------------------
def limit_columns(cards: SharedCards) -> tuple[str, ...]:
    """The columns of `limits_row`."""
    return ("pod / container", "requested", *(f"{key}#" for key in cards.limits_env(0, 0)), "card#")


def card_of(tour: Tour, pod: Pod) -> Device:
    """The card that is reserved for the pod. Raises StepFailed unless it is exactly one."""
    held = tour.stage.cast.shared.protocol.held_by(pod)
    uuids = {grant.uuid for slot in held.slots for grant in slot}
    check(len(uuids) == 1, f"pod {pod.name} has a reservation on {len(uuids)} cards")
    return tour.card(uuids.pop())


def admit(tour: Tour, tenant: Tenant) -> list[tuple[str, ...]]:
    """Let kubelet admit a bound pod; returns a row for each container. Raises StepFailed."""
    stage, name = tour.stage, tenant.name
    admission = pods.admit(stage, name)
    check(admission.is_admitted, f"pod {name} was refused: {pods.sentence(admission)}")
    pod = pods.read(stage, name)
    phase = pod.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_SUCCESS, f"pod {name} is left in phase {phase}")
    cards, card = stage.cast.shared, card_of(tour, pod)
    rows = [limits_row(cards, name, want, admission, card) for want in tenant.wants]
    tour.served[name] = admission
    return rows


def limits_row(
    cards: SharedCards, pod: str, want: Want, admission: Admission, card: Device
) -> tuple[str, ...]:
    """The container's environment as a row. Raises StepFailed if it is not the container's own."""
    envs = dict(admission.responses[want.name].envs)
    own = cards.limits_env(want.memory_mib, want.cores)
    given = {key: envs.get(key) for key in own}
    wanted = f"{want.memory_mib} MiB, {want.cores} %"
    got = ", ".join(map(str, given.values()))
    check(given == own, f"{pod}/{want.name} requested {wanted} and got {got}")
    visible = envs.get(cards.visible_env)
    check(visible == card.uuid, f"{pod}/{want.name} sees {visible}, not card {card.index}")
    ids = admission.device_ids[want.name]
    is_on_card = all(name.startswith(card.uuid) for name in ids)
    check(is_on_card, f"kubelet counts {pod}/{want.name} on another card: {ids}")
    return (f"{pod} / {want.name}", wanted, *map(str, given.values()), str(card.index))


def _cache_file(stage: Stage, pod: str, container: str, admission: Admission) -> str | None:
    """The file on the node that this container writes its use to; None if it has none."""
    name = f"{pods.read(stage, pod).uid}_{container}.cache"
    inside = str(stage.gpu.folder / "hook" / "vgpu" / name)
    return pods.mount_at(admission.responses[container], inside)
