"""The steps of the demo: each makes something happen, checks it, and says what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from hami_node.model import Container, Device
from hami_node.simulate import demo_pods as pods
from hami_node.simulate.demo_pods import Want
from hami_node.simulate.demo_stage import (
    CARDS,
    NEURON_CORES,
    NEURON_DEVICES,
    NEURON_NODE,
    NEURON_TYPE,
    SPLIT,
    SimulatedNode,
    Stage,
    StepFailed,
)
from hami_node.simulate.demo_tour import Rows, Seen, Step, Tour, check
from hami_node.simulate.kubelet import Admission
from hami_node.wire import names
from hami_node.wire.handshake import HandshakeKind, decode_handshake
from hami_node.wire.neuron_codec import decode_neuron_register, encode_neuron_ids

IDS: Final = SPLIT * len(CARDS)
SHARED_CARD: Final = 0
FORGED_CARD: Final = 1
BROKEN_CARD: Final = 3
FAULT: Final = "XID 79"
SHOWN_UUID: Final = 12

TENANTS: Final[dict[str, tuple[Want, ...]]] = {
    "train": (Want(name="main", memory_mib=16000, cores=40),),
    "serve": (
        Want(name="model", memory_mib=8000, cores=20),
        Want(name="canary", memory_mib=2000, cores=5),
    ),
    "notebook": (Want(name="jupyter", memory_mib=4000, cores=10),),
}
"""The pods that share a card, with their containers."""
GREEDY: Final = Want(name="main", memory_mib=20000, cores=10)
FORGED: Final = Want(name="main", memory_mib=1000, cores=10, granted_mib=30000)
SCATTERED: Final = (0, 5, 10, 15)
"""Neuron devices that are no neighbours."""
ASKED_MIB: Final = sum(want.memory_mib for wants in TENANTS.values() for want in wants)
CONTAINERS: Final = sum(len(wants) for wants in TENANTS.values())


# -- the node is reported --------------------------------------------------------------------------
def find_cards(tour: Tour) -> Seen:
    """Start both daemons; the one on the GPU node finds its cards."""
    stage = tour.stage
    stage.start_daemon(stage.gpu)
    daemon = stage.gpu.daemon
    found = stage.until(stage.gpu, "cards are found", lambda: daemon.logged("cards_found"))
    check(f" cards={len(CARDS)} " in f"{found} ", f"wanted {len(CARDS)} cards, it logged: {found}")
    models = Counter(model for model, _ in CARDS)
    kinds = ", ".join(f"{count} x {model}" for model, count in models.items())
    return Seen(lines=(f"process {daemon.process.pid} found {len(CARDS)} cards: {kinds}",))


def register(tour: Tour) -> Seen:
    """The daemon registers with kubelet, which then lists every slot."""
    gpu = tour.stage.gpu
    tour.stage.until(gpu, f"kubelet lists {IDS} healthy device IDs", lambda: _all_healthy(gpu))
    tour.stage.tell_allocatable(gpu)
    took_ms = (gpu.kubelet.registrations[0][0] - gpu.daemon.started_s) * 1e3
    example = min(gpu.kubelet.devices(names.RESOURCE_GPU))
    tour.stage.start_daemon(tour.stage.neuron)  # beside the next steps; looked at later
    return Seen(
        lines=(
            f"{names.RESOURCE_GPU}: {IDS} device IDs, {SPLIT} for each card, such as {example}",
            f"registered {took_ms:.0f} ms after the process was started",
        )
    )


def _all_healthy(node: SimulatedNode) -> bool:
    return node.kubelet.allocatable(names.RESOURCE_GPU) == IDS


def publish(tour: Tour) -> Seen:
    """The register annotation says what kubelet was told, and the handshake is fresh."""
    stage = tour.stage
    tour.cards = stage.until(stage.gpu, "the node object names the cards", tour.registered)
    offered = [(card.model, card.memory_mib) for card in tour.cards]
    check(offered == list(CARDS), f"the annotation names other cards: {offered}")
    ids = set(stage.gpu.kubelet.devices(names.RESOURCE_GPU))
    published = {f"{card.uuid}-{slot}" for card in tour.cards for slot in range(card.slots)}
    check(ids == published, "kubelet and the annotation were told different cards")
    annotations = stage.read_node(stage.gpu).annotations
    handshake = decode_handshake(annotations.get(names.NODE_HANDSHAKE, ""))
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    check(names.NODE_SIMULATED in annotations, f"{names.NODE_SIMULATED} is missing")
    return Seen(
        lines=(f"{names.NODE_REGISTER} decoded; {names.NODE_HANDSHAKE}: {handshake.kind}",),
        rows=Rows(
            columns=("card#", "model", "uuid", "slots#", "memory MiB#", "cores %#", "health"),
            rows=tuple(_card_row(card) for card in tour.cards),
        ),
    )


def _card_row(card: Device) -> tuple[str, ...]:
    health = "healthy" if card.healthy else "UNHEALTHY"
    numbers = (str(card.slots), str(card.memory_mib), str(card.cores))
    uuid = f"{card.uuid[:SHOWN_UUID]}..."
    return (str(card.index), card.model, uuid, *numbers, health)


# -- pods ------------------------------------------------------------------------------------------
def share(tour: Tour) -> Seen:
    """Three pods are bound at once; kubelet admits them in another order; each gets its own."""
    stage, card = tour.stage, tour.cards[SHARED_CARD]
    for name, wants in TENANTS.items():
        pods.schedule(stage, name, wants, card)
    rows: list[tuple[str, ...]] = []
    folders: set[str | None] = set()
    for name in reversed(TENANTS):
        admission = pods.admit(stage, name)
        check(admission.is_admitted, f"pod {name} was refused: {pods.sentence(admission)}")
        for want in TENANTS[name]:
            rows.append(_limits_row(name, want, admission, card))
            folders.add(_cache_folder(stage, name, want.name, admission))
        phase = pods.read(stage, name).annotations.get(names.POD_BIND_PHASE)
        check(phase == names.PHASE_SUCCESS, f"pod {name} is left in phase {phase}")
        tour.served[name] = admission
    check(len(folders) == CONTAINERS and None not in folders, "containers share a cache folder")
    free_mib = card.memory_mib - ASKED_MIB
    return Seen(
        lines=(
            "reserved at once, admitted in another order, no node lock: kubelet's pod-resources "
            "list tells who asks",
            f"card {card.index}: {ASKED_MIB} of {card.memory_mib} MiB granted, {free_mib} free",
        ),
        rows=Rows(
            columns=(
                "pod / container",
                "asked",
                f"{names.ENV_MEMORY_LIMIT}_0#",
                f"{names.ENV_CORE_LIMIT}#",
                "card#",
            ),
            rows=tuple(sorted(rows)),
        ),
    )


def _limits_row(pod: str, want: Want, admission: Admission, card: Device) -> tuple[str, ...]:
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


def refuse_greedy(tour: Tour) -> Seen:
    """A reservation beyond the card's free memory is refused, wherever it came from."""
    card = tour.cards[SHARED_CARD]
    pods.schedule(tour.stage, "greedy", (GREEDY,), card)
    free_mib = card.memory_mib - ASKED_MIB
    words = (f"free {free_mib} MiB", f"asked {GREEDY.memory_mib} MiB", str(card.uuid))
    said = _refusal(tour, "greedy", words)
    return Seen(
        lines=(
            f"a scheduler reserved {GREEDY.memory_mib} MiB where {free_mib} are free; "
            "kubectl describe pod greedy says:",
        ),
        quote=said,
    )


def refuse_forged(tour: Tour) -> Seen:
    """An annotation written by hand gives nothing beyond the container's own limits."""
    pods.schedule(tour.stage, "forged", (FORGED,), tour.cards[FORGED_CARD])
    words = (f"allowed {FORGED.memory_mib} MiB", f"asked {FORGED.granted_mib} MiB")
    said = _refusal(tour, "forged", words)
    return Seen(
        lines=(
            f"its limit is {FORGED.memory_mib} MiB, its annotation claims {FORGED.granted_mib} on "
            f"the empty card {FORGED_CARD}:",
        ),
        quote=said,
    )


def _refusal(tour: Tour, name: str, words: Sequence[str]) -> str:
    """Admit a pod that must be refused: status, Event and annotation have to say why."""
    stage = tour.stage
    admission = pods.admit(stage, name)
    check(not admission.is_admitted, f"pod {name} was admitted")
    said = pods.sentence(admission)
    missing = [word for word in words if word not in said]
    check(not missing, f"the refusal does not say {', '.join(missing)}: {said}")
    phase = pods.read(stage, name).annotations.get(names.POD_BIND_PHASE)
    check(phase == names.PHASE_FAILED, f"pod {name} is left in phase {phase}")
    event = stage.until(
        stage.gpu,
        f"an Event tells pod {name} why",
        lambda: pods.event_of(stage, name, "AllocationRefused"),
    )
    check(said in event, f"the Event says something else: {event}")
    return said


# -- trouble ---------------------------------------------------------------------------------------
def restart_kubelet(tour: Tour) -> Seen:
    """A new kubelet finds the plugin again at once; who was served keeps the same answer."""
    stage, kubelet = tour.stage, tour.stage.gpu.kubelet
    kubelet.stop()
    before = len(kubelet.registrations)
    began_s = stage.clock.monotonic()
    kubelet.start()
    stage.until(stage.gpu, f"{IDS} IDs after the restart", lambda: _all_healthy(stage.gpu))
    check(len(kubelet.registrations) == before + 1, "it registered more than once")
    took_ms = (kubelet.registrations[-1][0] - began_s) * 1e3
    check(len(tour.served) == len(TENANTS), "no pod runs that could keep its answer")
    for name, admission in tour.served.items():
        for container, ids in admission.device_ids.items():
            again = kubelet.call_again(names.RESOURCE_GPU, ids)
            is_same = again == admission.responses[container]
            check(is_same, f"{name}/{container} was asked for again and got another answer")
    return Seen(
        lines=(
            f"registered {took_ms:.0f} ms after the new kubelet.sock, all {IDS} IDs there",
            f"asked again, all {CONTAINERS} running containers get the same answer",
        )
    )


def break_card(tour: Tour) -> Seen:
    """A card fails and recovers: kubelet and annotation follow, the other cards stay."""
    lines = []
    for is_broken, word in ((True, "failed"), (False, "recovered")):
        began_s = tour.stage.clock.monotonic()
        tour.stage.break_card(BROKEN_CARD if is_broken else None, FAULT)
        at_kubelet, at_node = _await_health(tour, is_broken, began_s)
        cause = f" ({FAULT})" if is_broken else ""
        healthy = IDS - SPLIT * is_broken
        lines.append(
            f"card {BROKEN_CARD} {word}{cause}: kubelet offers {healthy} IDs after {at_kubelet}, "
            f"the node object says so after {at_node}"
        )
        tour.stage.tell_allocatable(tour.stage.gpu)
    return Seen(lines=tuple(lines))


def _await_health(tour: Tour, is_broken: bool, began_s: float) -> tuple[str, str]:
    """Wait for both readers of the card's health; the time each took."""
    gpu = tour.stage.gpu
    broken = tour.cards[BROKEN_CARD].uuid
    unhealthy = [broken] if is_broken else []

    def at_kubelet() -> bool:
        health = gpu.kubelet.devices(names.RESOURCE_GPU)
        ids = {name for name, word in health.items() if word != "Healthy"}
        return ids == {f"{uuid}-{slot}" for uuid in unhealthy for slot in range(SPLIT)}

    def at_node() -> bool:
        return [card.uuid for card in tour.registered() or () if not card.healthy] == unhealthy

    word = "is unhealthy" if is_broken else "is healthy again"
    tour.stage.until(gpu, f"card {BROKEN_CARD} {word} at kubelet", at_kubelet)
    first = tour.since(began_s)
    tour.stage.until(gpu, f"card {BROKEN_CARD} {word} on the node object", at_node)
    return first, tour.since(began_s)


# -- Neuron ----------------------------------------------------------------------------------------
def report_neuron(tour: Tour) -> Seen:
    """A Neuron node is reported; kubelet's side stays with AWS's own plugin."""
    stage = tour.stage
    annotations = stage.until(stage.neuron, "the node object names them", lambda: _told(tour))
    devices = decode_neuron_register(annotations[names.NODE_NEURON_REGISTER])
    cores = sum(device.cores.bit_count() for device in devices)
    counts = (len(devices), cores)
    check(counts == (NEURON_DEVICES, NEURON_CORES), f"it reported {counts} devices and cores")
    topology: dict[str, Any] = msgspec.json.decode(annotations[names.NODE_NEURON_TOPOLOGY])
    check(topology["instanceType"] == NEURON_TYPE, f"it reported {topology['instanceType']}")
    check(len(topology.get("adj", ())) == NEURON_DEVICES, "links are missing")
    handshake = decode_handshake(
        annotations[names.NODE_NEURON_HANDSHAKE], names.NODE_NEURON_HANDSHAKE
    )
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    check(not stage.neuron.kubelet.registrations, "it registered with kubelet, which is AWS's part")
    near = ", ".join(str(index) for index in sorted(topology["adj"][0]))
    return Seen(
        lines=(
            f"{NEURON_TYPE}: {NEURON_DEVICES} devices, {NEURON_CORES} cores, "
            f"{topology['topology']}; device 0 is linked to {near}",
            "nothing registered with kubelet: AWS's plugin serves the devices",
        )
    )


def _told(tour: Tour) -> dict[str, str] | None:
    annotations = dict(tour.stage.read_node(tour.stage.neuron).annotations)
    keys = (names.NODE_NEURON_REGISTER, names.NODE_NEURON_TOPOLOGY, names.NODE_NEURON_HANDSHAKE)
    return annotations if all(key in annotations for key in keys) else None


def check_neuron(tour: Tour) -> Seen:
    """Device ids that no Neuron job could use are told to the pod's owner."""
    stage = tour.stage
    job = Container(name="main", limits={names.RESOURCE_NEURON: str(len(SCATTERED))})
    written = {
        names.NEURON_IDS: encode_neuron_ids(SCATTERED),
        names.NEURON_PREDICATE_NODE: NEURON_NODE,
    }
    pods.create(stage, "scattered", NEURON_NODE, (job,), written)
    event = stage.until(
        stage.neuron,
        "an Event tells pod scattered what is wrong",
        lambda: pods.event_of(stage, "scattered", "NeuronGrantInvalid"),
    )
    ids = written[names.NEURON_IDS]
    return Seen(lines=(f"pod scattered was given devices {ids}; its Event says:",), quote=event)


# -- metrics ---------------------------------------------------------------------------------------
def audit(tour: Tour) -> Seen:
    """The daemon's own metrics tell the same story."""
    stage = tour.stage
    card = tour.cards[SHARED_CARD].uuid
    wanted = {
        "hami_node_simulated": 1.0,
        "hami_node_card_memory_granted_bytes": float(ASKED_MIB << 20),
        "hami_node_card_slots_used": float(CONTAINERS),
    }
    found: dict[str, float] = {}

    def agrees() -> bool:
        found.update(stage.gpu.daemon.metrics(card))
        return all(found.get(name) == value for name, value in wanted.items())

    try:
        stage.until(stage.gpu, "/metrics agrees", agrees)
    except StepFailed as e:
        seen = {name: found.get(name) for name in wanted}
        raise StepFailed(f"{e}: it says {seen}, granted is {wanted}") from e
    port = stage.gpu.daemon.metrics_port()
    return Seen(
        lines=(
            f"http://127.0.0.1:{port}/metrics: {CONTAINERS} slices and {ASKED_MIB} MiB granted on "
            f"card {SHARED_CARD}, cards marked as simulated",
        )
    )


STEPS: Final = (
    Step(title="The daemon finds the node's cards", act=find_cards, is_needed=True),
    Step(title="It registers with kubelet", act=register, is_needed=True),
    Step(title="It reports to the scheduler", act=publish, is_needed=True),
    Step(title="Three pods share one card, each with its own limits", act=share),
    Step(title="An over-commit is refused", act=refuse_greedy),
    Step(title="A forged reservation is refused", act=refuse_forged),
    Step(title="kubelet restarts", act=restart_kubelet),
    Step(title="A card fails and recovers", act=break_card),
    Step(title="A Neuron node is reported", act=report_neuron, node=NEURON_NODE),
    Step(title="Impossible Neuron devices are told", act=check_neuron, node=NEURON_NODE),
    Step(title="The daemon's metrics agree", act=audit),
)
