"""Steps of the demo in which pods come in unscheduled and go through the extender."""

from __future__ import annotations

from typing import Final

from hami_node.engine.ranking import BINPACK, SPREAD
from hami_node.model import Device, Pod
from hami_node.settings import Settings
from hami_node.simulate import demo_pods as pods
from hami_node.simulate.demo_cards import granted_mib
from hami_node.simulate.demo_pods import Tenant, Want
from hami_node.simulate.demo_stage import EXTENDER, GPU_NODE, Stage, StepFailed
from hami_node.simulate.demo_tour import Rows, Seen, Tour, check
from hami_node.simulate.kube_scheduler import CallFailed, Waiting
from hami_node.simulate.kubelet import Admission
from hami_node.wire import names
from hami_node.wire.pod_codec import decode_grants

FIRST: Final = Tenant(
    name="train",
    wants=(Want(name="main", memory_mib=16000, cores=40, is_counted=False),),
    wishes={names.USE_GPU_TYPE: "A100"},
)
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
"""Pods that join the first one on its card."""
APART: Final = tuple(
    Tenant(
        name=f"apart-{number}",
        wants=(Want(name="main", memory_mib=4000, cores=10),),
        wishes={names.POD_GPU_POLICY: SPREAD},
    )
    for number in (1, 2, 3)
)
PATIENT: Final = Tenant(name="patient", wants=(Want(name="main", memory_mib=45000, cores=10),))
"""Fits onto an L40S that nobody else uses, and onto nothing else."""
FILTERING_FAILED: Final = "FilteringFailed"


def reach_extender(tour: Tour) -> Seen:
    """The extender says that it is ready: nodes, pods and quotas are listed."""
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


# -- one pod, all the way --------------------------------------------------------------------------
def walk(tour: Tour) -> Seen:
    """A pod with nothing but limits: webhook, filter, bind, kubelet, limits inside."""
    stage, name = tour.stage, FIRST.name
    created = pods.create(stage, FIRST.body())
    added = _added_by_webhook(created, FIRST)
    node = pods.place(stage, name)
    reserved = pods.read(stage, name)
    card = card_of(tour, reserved)
    check(node == reserved.node_name == GPU_NODE, f"pod {name} is on node {reserved.node_name}")
    check("A100" in card.model, f"it asked for an A100 and got card {card.index}, a {card.model}")
    phase = reserved.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_ALLOCATING, f"bound, its phase is {phase}")
    is_locked = names.NODE_LOCK in stage.read_node(stage.gpu).annotations
    check(not is_locked, "the node was locked, which its daemon does not need")
    tour.home = card
    inside = admit(tour, FIRST)[0]
    envs = f"{names.ENV_MEMORY_LIMIT}_0={inside[2]}, {names.ENV_CORE_LIMIT}={inside[3]}"
    asked = ", ".join(f"{key}: {value}" for key, value in FIRST.wants[0].limits().items())
    return Seen(
        lines=(f"pod {name} asks {asked}; it names no scheduler, no node, no count of cards",),
        rows=Rows(
            columns=("who", "does what"),
            rows=(
                ("webhook", f"writes in {added}"),
                ("filter", f"chooses card {card.index} of {node}, {card.model}, as wished"),
                ("bind", f"binds the pod to {node}, which needs no lock; phase {phase}"),
                ("daemon", f"answers Allocate: {envs}; phase {names.PHASE_SUCCESS}"),
            ),
        ),
    )


def _added_by_webhook(created: Pod, tenant: Tenant) -> str:
    """What the webhook wrote into the pod, in words. Raises StepFailed when it is not that."""
    scheduler = Settings().scheduler_name
    check(created.scheduler_name == scheduler, f"its scheduler is {created.scheduler_name!r}")
    count = created.containers[0].limits.get(names.RESOURCE_GPU)
    check(count == "1", f"its limit {names.RESOURCE_GPU} is {count}")
    asked = tenant.wants[0].limits()
    given = {key: created.containers[0].limits.get(key) for key in asked}
    check(given == asked, f"its own limits were changed to {given}")
    return f"schedulerName {scheduler} and {names.RESOURCE_GPU}: {count}"


# -- policies --------------------------------------------------------------------------------------
def share(tour: Tour) -> Seen:
    """Two pods join the first on its card; kubelet admits them in another order."""
    stage, card = tour.stage, tour.shared_card
    for tenant in JOINING:
        pods.create(stage, tenant.body())
        pods.place(stage, tenant.name)
    rows = [row for tenant in reversed(JOINING) for row in admit(tour, tenant)]
    rows += [limits_row(FIRST.name, want, tour.served[FIRST.name], card) for want in FIRST.wants]
    check(all(row[-1] == str(card.index) for row in rows), f"not all are on card {card.index}")
    folders = {
        _cache_folder(stage, tenant.name, want.name, tour.served[tenant.name])
        for tenant in (FIRST, *JOINING)
        for want in tenant.wants
    }
    check(len(folders) == len(rows) and None not in folders, "containers share a cache folder")
    held_mib = granted_mib(stage, card.uuid)
    return Seen(
        lines=(
            "scheduled one after the other, admitted in another order, no node lock: kubelet's "
            "pod-resources list tells who asks",
            f"card {card.index}: {held_mib} of {card.memory_mib} MiB granted, "
            f"{card.memory_mib - held_mib} free",
        ),
        rows=Rows(columns=LIMIT_COLUMNS, rows=tuple(sorted(rows))),
    )


def spread(tour: Tour) -> Seen:
    """What one annotation changes: binpack fills a card, spread takes empty ones."""
    stage, home = tour.stage, tour.shared_card
    for tenant in APART:
        pods.create(stage, tenant.body())
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
    """A pod that fits nowhere stays Pending and says why; it runs once another pod is gone."""
    stage, name = tour.stage, PATIENT.name
    asked_mib = PATIENT.wants[0].memory_mib
    pods.create(stage, PATIENT.body())
    outcome = pods.try_once(stage, name)
    check(isinstance(outcome, Waiting), f"pod {name} was given a node where nothing is free")
    said = stage.until(
        EXTENDER,
        f"an Event tells pod {name} why",
        lambda: pods.event_of(stage, name, FILTERING_FAILED),
    )
    free_mib = max(card.memory_mib - granted_mib(stage, card.uuid) for card in tour.cards)
    nearest = f"nearest: {free_mib} MiB free on "
    check(nearest in said and f"{asked_mib} MiB asked" in said, f"the Event says: {said}")
    waiting = pods.read(stage, name)
    has_nothing = not waiting.node_name and names.POD_ALLOCATED not in waiting.annotations
    check(has_nothing, f"pod {name} waits, and holds a reservation all the same")
    leaver = _holder_of_a_card_as_large(tour, asked_mib)
    began_s = stage.clock.monotonic()
    pods.delete(stage, leaver)
    tour.served.pop(leaver, None)
    pods.place(stage, name)
    took = tour.since(began_s)
    row = admit(tour, PATIENT)[0]
    return Seen(
        lines=(
            f"pod {name} asks {asked_mib} MiB and is Pending; kubectl describe pod {name} says:",
        ),
        quote=said,
        then=f"pod {leaver} is deleted: {name} is bound {took} later and runs on card {row[-1]} "
        f"with {row[2]}",
    )


def _holder_of_a_card_as_large(tour: Tour, memory_mib: int) -> str:
    for tenant in APART:
        if card_of(tour, pods.read(tour.stage, tenant.name)).memory_mib >= memory_mib:
            return tenant.name
    raise StepFailed(f"nobody holds a card of {memory_mib} MiB")


# -- what a container got --------------------------------------------------------------------------
LIMIT_COLUMNS: Final = (
    "pod / container",
    "asked",
    f"{names.ENV_MEMORY_LIMIT}_0#",
    f"{names.ENV_CORE_LIMIT}#",
    "card#",
)


def card_of(tour: Tour, pod: Pod) -> Device:
    """The one card that is reserved for the pod. Raises StepFailed when there is not one."""
    text = pod.annotations.get(names.POD_ALLOCATED, "")
    uuids = {grant.uuid for held in decode_grants(text) for grant in held} if text else set()
    check(len(uuids) == 1, f"pod {pod.name} has a reservation on {len(uuids)} cards")
    return tour.card(uuids.pop())


def admit(tour: Tour, tenant: Tenant) -> list[tuple[str, ...]]:
    """Let kubelet admit a placed pod: a row for each container. Raises StepFailed."""
    stage, name = tour.stage, tenant.name
    admission = pods.admit(stage, name)
    check(admission.is_admitted, f"pod {name} was refused: {pods.sentence(admission)}")
    pod = pods.read(stage, name)
    phase = pod.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_SUCCESS, f"pod {name} is left in phase {phase}")
    rows = [limits_row(name, want, admission, card_of(tour, pod)) for want in tenant.wants]
    tour.served[name] = admission
    return rows


def limits_row(pod: str, want: Want, admission: Admission, card: Device) -> tuple[str, ...]:
    """What the container got in its environment. Raises StepFailed if it is not its own."""
    envs = dict(admission.responses[want.name].envs)
    memory, cores = envs.get(f"{names.ENV_MEMORY_LIMIT}_0"), envs.get(names.ENV_CORE_LIMIT)
    asked = f"{want.memory_mib} MiB, {want.cores} %"
    is_own = (memory, cores) == (f"{want.memory_mib}m", str(want.cores))
    check(is_own, f"{pod}/{want.name} asked for {asked} and got {memory}, {cores}")
    visible = envs.get(names.ENV_VISIBLE_DEVICES)
    check(visible == card.uuid, f"{pod}/{want.name} sees {visible}, not card {card.index}")
    ids = admission.device_ids[want.name]
    is_on_card = all(name.startswith(card.uuid) for name in ids)
    check(is_on_card, f"kubelet counts {pod}/{want.name} on another card: {ids}")
    return (f"{pod} / {want.name}", asked, str(memory), str(cores), str(card.index))


def _cache_folder(stage: Stage, pod: str, container: str, admission: Admission) -> str | None:
    inside = str(stage.gpu.folder / "hook" / "vgpu")
    folder = pods.mount_at(admission.responses[container], inside)
    owner = f"{pods.read(stage, pod).uid}_{container}"
    return folder if folder is not None and folder.endswith(owner) else None
