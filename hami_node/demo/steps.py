"""The steps of the demo: each makes something happen, checks it, and describes the result."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hami_node.config.settings import Settings
from hami_node.demo import pods
from hami_node.demo.pods import Tenant, Want, granted_mib
from hami_node.demo.stage import EXTENDER, GPU_NODE, SPLIT, Stage
from hami_node.engine.ranking import BINPACK, SPREAD
from hami_node.model import Container, Device, Pod
from hami_node.simulate.kube_scheduler import CallFailed, PodDenied, Unschedulable
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.demo import ForeignDevices, SharedCards, StepFailed, check
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.handshake import HandshakeKind, decode_handshake

BROKEN_CARD: Final = 3
FAULT: Final = "XID 79"
SHOWN_UUID: Final = 12
FULL: Final = "█"
EMPTY: Final = "░"
BAR_CELLS: Final = 8

FIRST: Final = Tenant(
    name="train", wants=(Want(name="main", memory_mib=16000, cores=40, is_counted=False),)
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
GREEDY: Final = Want(name="main", memory_mib=20000, cores=10)
FORGED: Final = Want(name="main", memory_mib=1000, cores=10)
FORGED_MIB: Final = 30000


class Quote(str):
    """A message of the product's, to be shown as such."""

    __slots__ = ()


Rows = tuple[tuple[str, ...], ...]
"""A table with its head, where a column that ends in `#` holds numbers."""
Shown = str | Quote | Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the demo.

    Attributes:
        act: makes it happen, checks it and says what was seen. Raises StepFailed.
        programs: whose logs are shown when it fails.
        is_needed: the steps after it are skipped when it fails.
    """

    title: str
    act: Callable[[Stage], Iterable[Shown]]
    programs: tuple[str, ...] = (EXTENDER, GPU_NODE)
    is_needed: bool = False


# -- the programs are ready ------------------------------------------------------------------------
def find_cards(stage: Stage) -> Iterator[Shown]:
    """Start the daemon of the node with shared cards; it finds the cards."""
    cards = stage.shared.cards
    stage.start_daemon(GPU_NODE)
    daemon = stage.program(GPU_NODE)
    found = stage.until(GPU_NODE, "cards are found", lambda: daemon.logged("cards_found"))
    check(f" cards={len(cards)} " in f"{found} ", f"not {len(cards)} cards, it logged: {found}")
    models = Counter(model for model, _ in cards)
    kinds = ", ".join(f"{count} x {model}" for model, count in models.items())
    yield f"process {daemon.process.pid} found {len(cards)} cards: {kinds}"


def register(stage: Stage) -> Iterator[Shown]:
    """The daemon registers with kubelet, which then lists every slot."""
    kubelet, ids = stage.kubelet, stage.id_count
    stage.until(GPU_NODE, f"kubelet lists {ids} healthy device IDs", lambda: _all_healthy(stage))
    stage.report_allocatable()
    took_ms = (kubelet.registrations[0][0] - stage.program(GPU_NODE).started_s) * 1e3
    example = min(kubelet.devices(stage.resource))
    stage.start_extender()  # during the next step
    for part in stage.foreign:
        stage.start_daemon(part.node)  # likewise; checked later
    yield f"{stage.resource}: {ids} device IDs, {SPLIT} for each card, such as {example}"
    yield f"registered {took_ms:.0f} ms after the process started"


def _all_healthy(stage: Stage) -> bool:
    return stage.kubelet.allocatable(stage.resource) == stage.id_count


def publish(stage: Stage) -> Iterator[Shown]:
    """The register annotation agrees with kubelet's devices, and the handshake is fresh."""
    stage.cards = stage.until(GPU_NODE, "the node object names the cards", stage.registered)
    offered = [(card.model, card.memory_mib) for card in stage.cards]
    check(offered == list(stage.shared.cards), f"the annotation names other cards: {offered}")
    ids = set(stage.kubelet.devices(stage.resource))
    published = {f"{card.uuid}-{slot}" for card in stage.cards for slot in range(card.slots)}
    check(ids == published, "kubelet and the annotation name different cards")
    annotations = stage.read_node(GPU_NODE).annotations
    keys = stage.shared.protocol.keys
    handshake = decode_handshake(annotations.get(keys.handshake, ""), keys.handshake)
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    check(names.NODE_SIMULATED in annotations, f"{names.NODE_SIMULATED} is missing")
    yield f"{keys.register} decoded; {keys.handshake}: {handshake.kind}"
    head = ("card#", "model", "uuid", "slots#", "memory MiB#", "cores %#", "health")
    yield (head, *map(_card_row, stage.cards))


def _card_row(card: Device) -> tuple[str, ...]:
    numbers = (str(card.slots), str(card.memory_mib), str(card.cores))
    uuid = f"{card.uuid[:SHOWN_UUID]}..."
    return (str(card.index), card.model, uuid, *numbers, _health(card))


def reach_extender(stage: Stage) -> Iterator[Shown]:
    """The extender reports that it is ready: nodes, pods and quotas are listed."""
    program = stage.program(EXTENDER)

    def ready() -> bool:
        try:
            is_served = program.logged("extender_served") is not None
            return is_served and stage.extender.fetch("GET", "/readyz")[0] == 200
        except CallFailed:
            return False

    stage.until(EXTENDER, "the extender's /readyz answers 200", ready)
    serves = f"serves /webhook, /filter and /bind on {stage.extender.url}"
    yield f"process {program.process.pid} {serves}"


# -- pods that are created unscheduled and go through the extender ---------------------------------
def walk(stage: Stage) -> Iterator[Shown]:
    """A pod with nothing but limits: webhook, filter, bind, kubelet, limits in the container."""
    name, cards = FIRST.name, stage.shared
    wish, word = cards.wish
    created = pods.create_tenant(stage, replace(FIRST, wishes={wish: word}))
    added = _added_by_webhook(created, cards.protocol)
    node = pods.place(stage, name)
    reserved = pods.read(stage, name)
    card = card_of(stage, reserved)
    check(node == reserved.node_name == GPU_NODE, f"pod {name} is on node {reserved.node_name}")
    is_wished = word in card.model
    check(is_wished, f"it wished for {word} and got card {card.index}, {card.model}")
    phase = reserved.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_ALLOCATING, f"bound, its phase is {phase}")
    is_locked = names.NODE_LOCK in stage.read_node(GPU_NODE).annotations
    check(not is_locked, "the node was locked, which its daemon does not need")
    stage.home = card
    (row,) = admit(stage, FIRST)
    limits = zip(cards.limits_env(0, 0), row[2:], strict=False)
    envs = ", ".join(f"{key}={value}" for key, value in limits)
    wanted = FIRST.wants[0].limits(cards.protocol)
    requested = ", ".join(f"{key}: {value}" for key, value in wanted.items())
    yield f"pod {name} requests {requested}; no scheduler, no node, no number of cards"
    yield (
        ("step", "result"),
        ("webhook", f"adds {added}"),
        ("filter", f"chooses card {card.index} of {node}, {card.model}, as wished"),
        ("bind", f"binds the pod to {node}, which needs no lock; phase {phase}"),
        ("daemon", f"answers Allocate: {envs}; phase {names.PHASE_SUCCESS}"),
    )


def _added_by_webhook(created: Pod, cards: VendorProtocol) -> str:
    """What the webhook added to the first pod, in words. Raises StepFailed for anything else."""
    scheduler, resource = Settings().scheduler_name, cards.counted[0]
    check(created.scheduler_name == scheduler, f"its scheduler is {created.scheduler_name!r}")
    wanted = {resource: "1", **FIRST.wants[0].limits(cards)}
    given = created.containers[0].limits
    check(given == wanted, f"its limits were changed to {given}")
    return f"schedulerName {scheduler} and {resource}: 1"


def share(stage: Stage) -> Iterator[Shown]:
    """Two pods join the first on its card; kubelet admits them in another order."""
    card, cards = stage.shared_card, stage.shared
    for tenant in JOINING:
        pods.create_tenant(stage, tenant)
        pods.place(stage, tenant.name)
    rows = [row for tenant in reversed(JOINING) for row in admit(stage, tenant)]
    first = stage.served[FIRST.name]
    rows += [limits_row(cards, FIRST.name, want, first, card) for want in FIRST.wants]
    check(all(row[-1] == str(card.index) for row in rows), f"not all are on card {card.index}")
    files = {
        _cache_file(stage, tenant.name, want.name)
        for tenant in (FIRST, *JOINING)
        for want in tenant.wants
    }
    check(len(files) == len(rows) and None not in files, "containers share a cache file")
    held_mib = granted_mib(stage, card.uuid)
    limits = (f"{key}#" for key in cards.limits_env(0, 0))
    yield (
        "scheduled one after the other, admitted in another order, no node lock: kubelet's "
        "pod-resources list identifies the pod"
    )
    free_mib = card.memory_mib - held_mib
    yield f"card {card.index}: {held_mib} of {card.memory_mib} MiB granted, {free_mib} free"
    yield (("pod / container", "requested", *limits, "card#"), *sorted(rows))


def _cache_file(stage: Stage, pod: str, container: str) -> str | None:
    """The file on the node that this container writes its use to; None if it has none."""
    name = f"{pods.read(stage, pod).uid}_{container}.cache"
    inside = str(stage.folder / GPU_NODE / "hook" / "vgpu" / name)
    mounts = stage.served[pod].responses[container].mounts
    return next((str(one.host_path) for one in mounts if one.container_path == inside), None)


def spread(stage: Stage) -> Iterator[Shown]:
    """The effect of an annotation: binpack fills a card, spread takes empty cards."""
    home = stage.shared_card
    for tenant in APART:
        pods.create_tenant(stage, tenant)
        pods.place(stage, tenant.name)
    for tenant in APART:
        admit(stage, tenant)
    found = {
        tenant.name: card_of(stage, pods.read(stage, tenant.name)).index
        for tenant in (*JOINING, *APART)
    }
    together = {found[tenant.name] for tenant in JOINING}
    check(together == {home.index}, f"with {BINPACK} they are on cards {sorted(together)}")
    apart = sorted(found[tenant.name] for tenant in APART)
    empty = sorted(card.index for card in stage.cards if card.uuid != home.uuid)
    check(apart == empty, f"with {SPREAD} they are on cards {apart}, empty were {empty}")
    rows = (
        (tenant.name, tenant.wishes[names.POD_GPU_POLICY], str(found[tenant.name]))
        for tenant in (*JOINING, *APART)
    )
    yield f"the annotation is {names.POD_GPU_POLICY}"
    yield (("pod", "annotation", "card#"), *rows)


def wait_for_room(stage: Stage) -> Iterator[Shown]:
    """A pod that fits nowhere stays Pending with a reason; it runs once another pod is deleted."""
    name, wanted_mib = PATIENT.name, PATIENT.wants[0].memory_mib
    pods.create_tenant(stage, PATIENT)
    with suppress(Unschedulable):
        raise StepFailed(f"nothing is free, but pod {name} is on {pods.try_once(stage, name)}")
    message = stage.until(
        EXTENDER,
        f"an Event gives the reason for pod {name}",
        lambda: pods.event_of(stage, name, "FilteringFailed"),
    )
    free_mib = max(card.memory_mib - granted_mib(stage, card.uuid) for card in stage.cards)
    nearest = f"nearest: {free_mib} MiB free on "
    is_explained = nearest in message and f"{wanted_mib} MiB requested" in message
    check(is_explained, f"the Event's message is: {message}")
    waiting = pods.read(stage, name)
    grants = stage.shared.protocol.keys.grants.allocated
    has_nothing = not waiting.node_name and grants not in waiting.annotations
    check(has_nothing, f"pod {name} waits, but has a reservation")
    yield f"pod {name} requests {wanted_mib} MiB and is Pending; kubectl describe pod {name} shows:"
    yield Quote(message)
    leaver = next(
        tenant.name
        for tenant in APART
        if card_of(stage, pods.read(stage, tenant.name)).memory_mib >= wanted_mib
    )
    began_s = stage.clock.monotonic()
    pods.delete(stage, leaver)
    stage.served.pop(leaver, None)
    pods.place(stage, name)
    took = stage.since(began_s)
    (row,) = admit(stage, PATIENT)
    end = f"{name} is bound {took} later and runs on card {row[-1]} with {row[2]}"
    yield f"pod {leaver} is deleted: {end}"


def card_of(stage: Stage, pod: Pod) -> Device:
    """The card that is reserved for the pod. Raises StepFailed unless it is exactly one."""
    held = stage.shared.protocol.held_by(pod)
    uuids = {grant.uuid for slot in held.slots for grant in slot}
    check(len(uuids) == 1, f"pod {pod.name} has a reservation on {len(uuids)} cards")
    return stage.card(uuids.pop())


def admit(stage: Stage, tenant: Tenant) -> list[tuple[str, ...]]:
    """Let kubelet admit a bound pod; returns a row for each container. Raises StepFailed."""
    name = tenant.name
    admission = pods.admit(stage, name)
    check(admission.is_admitted, f"pod {name} was refused: {pods.sentence(admission)}")
    pod = pods.read(stage, name)
    phase = pod.annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_SUCCESS, f"pod {name} is left in phase {phase}")
    stage.served[name] = admission
    cards, card = stage.shared, card_of(stage, pod)
    return [limits_row(cards, name, want, admission, card) for want in tenant.wants]


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


# -- pods that bypass the extender, and that the daemon refuses ------------------------------------
def refuse_greedy(stage: Stage) -> Iterator[Shown]:
    """A reservation beyond the card's free memory is refused, wherever it came from."""
    card = stage.shared_card
    free_mib = card.memory_mib - granted_mib(stage, card.uuid)
    pods.forge(stage, "greedy", GREEDY, card, GREEDY.memory_mib)
    words = (f"free {free_mib} MiB", f"asked {GREEDY.memory_mib} MiB", str(card.uuid))
    written = (
        f"a reservation of {GREEDY.memory_mib} MiB was written, bypassing webhook and extender"
    )
    yield f"{written}, where {free_mib} are free;"
    yield "kubectl describe pod greedy shows:"
    yield _refusal(stage, "greedy", words)


def refuse_forged(stage: Stage) -> Iterator[Shown]:
    """An annotation written by hand gives no more than the container's own limits."""
    card = min(stage.cards, key=lambda card: granted_mib(stage, card.uuid) / card.memory_mib)
    tenant = Tenant(name="forged", wants=(FORGED,), wishes={names.POD_NODE: GPU_NODE})
    try:
        pods.create_tenant(stage, tenant)
    except PodDenied as e:
        denied = str(e)
    else:
        raise StepFailed("the webhook admitted a pod with a reservation")
    check(names.POD_NODE in denied, f"the webhook does not name the annotation: {denied}")
    pods.forge(stage, "forged", FORGED, card, FORGED_MIB)
    words = (f"allowed {FORGED.memory_mib} MiB", f"asked {FORGED_MIB} MiB")
    yield f'the webhook denies pods with a reservation: "{denied.partition(":")[0]}"'
    yield (
        "written nevertheless, bypassing webhook and extender: its limit is "
        f"{FORGED.memory_mib} MiB, its annotation claims {FORGED_MIB} on card {card.index}:"
    )
    yield _refusal(stage, "forged", words)


def _refusal(stage: Stage, name: str, words: Sequence[str]) -> Quote:
    """Admit a pod that must be refused: status, Event and annotation have to show it."""
    admission = pods.admit(stage, name)
    check(not admission.is_admitted, f"pod {name} was admitted")
    message = pods.sentence(admission)
    missing = [word for word in words if word not in message]
    check(not missing, f"the refusal does not contain {', '.join(missing)}: {message}")
    stage.until(  # written after the answer: kubelet does not wait for it
        GPU_NODE,
        f"pod {name} has the phase {names.PHASE_FAILED}",
        lambda: pods.read(stage, name).annotations.get(names.POD_BIND_PHASE) == names.PHASE_FAILED,
    )
    event = stage.until(
        GPU_NODE,
        f"an Event gives the reason for pod {name}",
        lambda: pods.event_of(stage, name, "AllocationRefused"),
    )
    check(message in event, f"the Event has another message: {event}")
    return Quote(message)


# -- failures --------------------------------------------------------------------------------------
def restart_kubelet(stage: Stage) -> Iterator[Shown]:
    """A restarted kubelet gets the plugin back at once; served containers keep their response."""
    kubelet, ids_wanted = stage.kubelet, stage.id_count
    kubelet.stop()
    before, began_s = len(kubelet.registrations), stage.clock.monotonic()
    kubelet.start()
    stage.until(GPU_NODE, f"{ids_wanted} IDs after the restart", lambda: _all_healthy(stage))
    check(len(kubelet.registrations) == before + 1, "it registered more than once")
    took_ms = (kubelet.registrations[-1][0] - began_s) * 1e3
    check(stage.served, "no pod runs that could keep its response")
    containers = 0
    for name, admission in stage.served.items():
        for container, ids in admission.device_ids.items():
            again = kubelet.call_again(stage.resource, ids)
            is_same = again == admission.responses[container]
            check(is_same, f"a repeated Allocate for {name}/{container} got another response")
            containers += 1
    yield f"registered {took_ms:.0f} ms after the new kubelet.sock, with all {ids_wanted} IDs"
    yield f"a repeated Allocate gets the same response for all {containers} running containers"


def break_card(stage: Stage) -> Iterator[Shown]:
    """A card fails and recovers: kubelet and annotation follow, the other cards stay."""
    for is_broken, word in ((True, "failed"), (False, "recovered")):
        began_s = stage.clock.monotonic()
        stage.break_card(BROKEN_CARD if is_broken else None, FAULT)
        at_kubelet, at_node = _await_health(stage, is_broken, began_s)
        cause = f" ({FAULT})" if is_broken else ""
        healthy = stage.id_count - SPLIT * is_broken
        stage.report_allocatable()
        yield (
            f"card {BROKEN_CARD} {word}{cause}: kubelet offers {healthy} IDs after {at_kubelet}, "
            f"the node object follows after {at_node}"
        )


def _await_health(stage: Stage, is_broken: bool, began_s: float) -> tuple[str, str]:
    """Wait until kubelet and the node object show the card's health; the time for each."""
    unhealthy = [stage.cards[BROKEN_CARD].uuid] if is_broken else []

    def at_kubelet() -> bool:
        health = stage.kubelet.devices(stage.resource)
        ids = {name for name, word in health.items() if word != "Healthy"}
        return ids == {f"{uuid}-{slot}" for uuid in unhealthy for slot in range(SPLIT)}

    def at_node() -> bool:
        return [card.uuid for card in stage.registered() or () if not card.healthy] == unhealthy

    word = "is unhealthy" if is_broken else "is healthy again"
    stage.until(GPU_NODE, f"card {BROKEN_CARD} {word} at kubelet", at_kubelet)
    first = stage.since(began_s)
    stage.until(GPU_NODE, f"card {BROKEN_CARD} {word} on the node object", at_node)
    return first, stage.since(began_s)


# -- nodes whose devices are served by their vendor's own plugin -----------------------------------
def report(part: ForeignDevices, stage: Stage) -> Iterator[Shown]:
    """The node is reported; the vendor's own plugin keeps serving kubelet."""

    def announced() -> dict[str, str] | None:
        found = dict(stage.read_node(part.node).annotations)
        return found if all(key in found for key in part.announced) else None

    annotations = stage.until(part.node, "the node object names them", announced)
    yield part.reported(annotations)
    registered = f"it registered with kubelet, which is the task of {part.plugin}"
    check(not stage.kubelets[part.node].registrations, registered)
    yield f"nothing registered with kubelet: {part.plugin} serves the devices"


def place(part: ForeignDevices, stage: Stage) -> Iterator[Shown]:
    """A pod is created unscheduled and gets devices."""
    job = part.job
    container = Container(name="main", limits=job.limits)
    pods.create(stage, pods.body_of(job.name, (container,), {}))
    node = pods.place(stage, job.name)
    check(node == part.node, f"it was bound to {node}")
    annotations = pods.read(stage, job.name).annotations
    given = part.placed(annotations, stage.read_node(node).annotations)
    wanted = ", ".join(f"{resource}: {amount}" for resource, amount in job.limits.items())
    yield f"pod {job.name} requests {wanted}; it is bound to {node} with {given}"


def complain(part: ForeignDevices, stage: Stage) -> Iterator[Shown]:
    """Devices that no job could use are reported to the pod's owner."""
    job = part.job.name
    wrong = part.impossible(pods.read(stage, job).annotations)
    container = Container(name="main", limits=wrong.limits)
    pods.write_bound(stage, wrong.name, part.node, container, wrong.annotations)
    event = stage.until(
        part.node,
        f"an Event names the error of pod {wrong.name}",
        lambda: pods.event_of(stage, wrong.name, part.complaint),
    )
    complaint = pods.event_of(stage, job, part.complaint)
    check(complaint is None, f"the daemon objects to the extender's choice: {complaint}")
    line = f"pod {wrong.name} was given devices {wrong.given}, bypassing webhook and extender; "
    yield f"{line}its Event (pod {job} has none):"
    yield Quote(event)


# -- what all steps led to -------------------------------------------------------------------------
def who_holds_what(stage: Stage) -> Rows:
    """Every card, and below it its holders; nothing of a node that has not reported."""
    rows = [("card", "health", "slots#", "memory#", "cores#")]
    for card in stage.registered() or ():
        held = pods.shared_grants(stage, card.uuid)
        used_mib = sum(grant.memory_mib for _, grant in held)
        cells = -(-used_mib * BAR_CELLS // card.memory_mib)
        bar = FULL * cells + EMPTY * (BAR_CELLS - cells)
        name = f"{GPU_NODE} {card.index}  {card.model.removeprefix(f'{card.vendor} ')}"
        slots, cores = f"{len(held)}/{card.slots}", sum(grant.cores for _, grant in held)
        memory = f"{bar} {used_mib:5}/{card.memory_mib} MiB"
        rows.append((name, _health(card), slots, memory, f"{cores}/{card.cores} %"))
        for owner, grant in held:
            rows.append((f"  {owner}", "", "1", f"{grant.memory_mib} MiB", f"{grant.cores} %"))
    for part in stage.foreign:  # in a single row; a slot is a core
        devices = part.protocol.registered_on(stage.read_node(part.node))
        if not devices:
            continue
        used = {
            owner: sum(grant.cores.bit_count() for grant in grants)
            for owner, grants in pods.grants_on(stage, part.protocol, part.node)
        }
        cores = sum(device.cores.bit_count() for device in devices)
        name, count = f"{part.node} 0-{len(devices) - 1}  {part.model}", sum(used.values())
        worst = min(devices, key=lambda device: device.healthy)
        rows.append((name, _health(worst), f"{count}/{cores}", "-", f"{count}/{cores}"))
        rows += [(f"  {owner}", "", str(n), "-", str(n)) for owner, n in used.items()]
    return tuple(rows)


def _health(card: Device) -> str:
    return "healthy" if card.healthy else "UNHEALTHY"


# -- metrics ---------------------------------------------------------------------------------------
def audit(stage: Stage) -> Iterator[Shown]:
    """The daemon's own metrics agree."""
    card = stage.shared_card
    slices, held_mib = len(pods.shared_grants(stage, card.uuid)), granted_mib(stage, card.uuid)
    check(slices, f"no container was served a slice of card {card.index}")
    wanted = {
        "hami_node_simulated": 1.0,
        "hami_node_card_memory_granted_bytes": float(held_mib << 20),
        "hami_node_card_slots_used": float(slices),
    }
    pages, found = stage.pages, dict[str, float]()

    def agrees() -> bool:
        try:
            text = pages.fetch("GET", "/metrics")[1]
        except CallFailed:
            return False
        for name, labels, value in re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
            if name in wanted and (labels.count("=") == 1 or f'uuid="{card.uuid}"' in labels):
                found[name] = float(value)
        return found == wanted

    try:
        stage.until(GPU_NODE, "/metrics agrees", agrees)
    except StepFailed as e:
        raise StepFailed(f"{e}: the metrics are {found}, granted is {wanted}") from e
    granted = f"{slices} slices and {held_mib} MiB granted on card {card.index}"
    yield f"{pages.url}/metrics: {granted}, cards marked as simulated"


_SHARED: Final = (
    Step(title="The daemon finds the node's cards", act=find_cards, is_needed=True),
    Step(title="It registers with kubelet", act=register, is_needed=True),
    Step(title="It reports to the scheduler", act=publish, is_needed=True),
    Step(title="The extender is ready", act=reach_extender, is_needed=True),
    Step(title="A pod with nothing but limits gets its slice", act=walk),
    Step(title="Three pods share one card, each with its own limits", act=share),
    Step(title="binpack fills a card, spread takes empty cards", act=spread),
    Step(title="A pod without room waits, with a reason, and runs", act=wait_for_room),
    Step(title="An over-commit is refused", act=refuse_greedy),
    Step(title="A forged reservation is refused", act=refuse_forged),
    Step(title="kubelet restarts", act=restart_kubelet),
    Step(title="A card fails and recovers", act=break_card),
)


def _steps_on(part: ForeignDevices) -> Iterable[Step]:
    for title, act in zip(part.titles, (report, place, complain), strict=True):
        yield Step(title=title, act=partial(act, part), programs=(EXTENDER, part.node))


def steps_of(stage: Stage) -> tuple[Step, ...]:
    """All steps: for the shared cards, for every other vendor, and for the metrics."""
    foreign = (step for part in stage.foreign for step in _steps_on(part))
    return (*_SHARED, *foreign, Step(title="The daemon's metrics agree", act=audit))
