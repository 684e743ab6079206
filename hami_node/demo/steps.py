"""The steps of the demo: each makes something happen, checks it, and describes the result."""

from __future__ import annotations

from collections import Counter
from typing import Final

from hami_node.demo.cards import granted_mib, holders_of
from hami_node.demo.cast import Cast
from hami_node.demo.foreign import steps_on
from hami_node.demo.refusals import refuse_forged, refuse_greedy
from hami_node.demo.scheduling import reach_extender, share, spread, wait_for_room, walk
from hami_node.demo.stage import EXTENDER, GPU_NODE, SPLIT, Stage
from hami_node.demo.tour import Rows, Seen, Step, Tour
from hami_node.model import Device
from hami_node.vendors.demo import StepFailed, check
from hami_node.wire import names
from hami_node.wire.handshake import HandshakeKind, decode_handshake

BROKEN_CARD: Final = 3
FAULT: Final = "XID 79"
SHOWN_UUID: Final = 12


def ids_of(stage: Stage) -> int:
    """How many device IDs the shared cards have in kubelet."""
    return SPLIT * len(stage.cast.shared.cards)


# -- the node is reported --------------------------------------------------------------------------
def find_cards(tour: Tour) -> Seen:
    """Start the daemon of the node with shared cards; it finds the cards."""
    stage, cards = tour.stage, tour.stage.cast.shared.cards
    stage.start_daemon(stage.gpu)
    daemon = stage.daemon
    found = stage.until(GPU_NODE, "cards are found", lambda: daemon.logged("cards_found"))
    check(f" cards={len(cards)} " in f"{found} ", f"not {len(cards)} cards, it logged: {found}")
    models = Counter(model for model, _ in cards)
    kinds = ", ".join(f"{count} x {model}" for model, count in models.items())
    return Seen(lines=(f"process {daemon.process.pid} found {len(cards)} cards: {kinds}",))


def register(tour: Tour) -> Seen:
    """The daemon registers with kubelet, which then lists every slot."""
    stage, gpu, ids = tour.stage, tour.stage.gpu, ids_of(tour.stage)
    stage.until(GPU_NODE, f"kubelet lists {ids} healthy device IDs", lambda: _all_healthy(stage))
    stage.report_allocatable(gpu)
    took_ms = (gpu.kubelet.registrations[0][0] - stage.daemon.started_s) * 1e3
    example = min(gpu.kubelet.devices(stage.resource))
    stage.start_extender()  # during the next step
    for part in stage.cast.foreign:
        stage.start_daemon(stage.nodes[part.node])  # likewise; checked later
    return Seen(
        lines=(
            f"{stage.resource}: {ids} device IDs, {SPLIT} for each card, such as {example}",
            f"registered {took_ms:.0f} ms after the process started",
        )
    )


def _all_healthy(stage: Stage) -> bool:
    return stage.gpu.kubelet.allocatable(stage.resource) == ids_of(stage)


def publish(tour: Tour) -> Seen:
    """The register annotation agrees with kubelet's devices, and the handshake is fresh."""
    stage = tour.stage
    tour.cards = stage.until(GPU_NODE, "the node object names the cards", tour.registered)
    offered = [(card.model, card.memory_mib) for card in tour.cards]
    check(offered == list(stage.cast.shared.cards), f"the annotation names other cards: {offered}")
    ids = set(stage.gpu.kubelet.devices(stage.resource))
    published = {f"{card.uuid}-{slot}" for card in tour.cards for slot in range(card.slots)}
    check(ids == published, "kubelet and the annotation name different cards")
    annotations = stage.read_node(stage.gpu).annotations
    keys = stage.cast.shared.protocol.keys
    handshake = decode_handshake(annotations.get(keys.handshake, ""), keys.handshake)
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    check(names.NODE_SIMULATED in annotations, f"{names.NODE_SIMULATED} is missing")
    return Seen(
        lines=(f"{keys.register} decoded; {keys.handshake}: {handshake.kind}",),
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


# -- failures --------------------------------------------------------------------------------------
def restart_kubelet(tour: Tour) -> Seen:
    """A restarted kubelet gets the plugin back at once; served containers keep their response."""
    stage, kubelet = tour.stage, tour.stage.gpu.kubelet
    kubelet.stop()
    before, ids_wanted = len(kubelet.registrations), ids_of(stage)
    began_s = stage.clock.monotonic()
    kubelet.start()
    stage.until(GPU_NODE, f"{ids_wanted} IDs after the restart", lambda: _all_healthy(stage))
    check(len(kubelet.registrations) == before + 1, "it registered more than once")
    took_ms = (kubelet.registrations[-1][0] - began_s) * 1e3
    check(tour.served, "no pod runs that could keep its response")
    containers = 0
    for name, admission in tour.served.items():
        for container, ids in admission.device_ids.items():
            again = kubelet.call_again(stage.resource, ids)
            is_same = again == admission.responses[container]
            check(is_same, f"a repeated Allocate for {name}/{container} got another response")
            containers += 1
    return Seen(
        lines=(
            f"registered {took_ms:.0f} ms after the new kubelet.sock, with all {ids_wanted} IDs",
            f"a repeated Allocate gets the same response for all {containers} running containers",
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
        healthy = ids_of(tour.stage) - SPLIT * is_broken
        lines.append(
            f"card {BROKEN_CARD} {word}{cause}: kubelet offers {healthy} IDs after {at_kubelet}, "
            f"the node object follows after {at_node}"
        )
        tour.stage.report_allocatable(tour.stage.gpu)
    return Seen(lines=tuple(lines))


def _await_health(tour: Tour, is_broken: bool, began_s: float) -> tuple[str, str]:
    """Wait until kubelet and the node object show the card's health; the time for each."""
    gpu = tour.stage.gpu
    broken = tour.cards[BROKEN_CARD].uuid
    unhealthy = [broken] if is_broken else []

    def at_kubelet() -> bool:
        health = gpu.kubelet.devices(tour.stage.resource)
        ids = {name for name, word in health.items() if word != "Healthy"}
        return ids == {f"{uuid}-{slot}" for uuid in unhealthy for slot in range(SPLIT)}

    def at_node() -> bool:
        return [card.uuid for card in tour.registered() or () if not card.healthy] == unhealthy

    word = "is unhealthy" if is_broken else "is healthy again"
    tour.stage.until(GPU_NODE, f"card {BROKEN_CARD} {word} at kubelet", at_kubelet)
    first = tour.since(began_s)
    tour.stage.until(GPU_NODE, f"card {BROKEN_CARD} {word} on the node object", at_node)
    return first, tour.since(began_s)


# -- metrics ---------------------------------------------------------------------------------------
def audit(tour: Tour) -> Seen:
    """The daemon's own metrics agree."""
    stage, card = tour.stage, tour.shared_card
    slices = len(holders_of(stage).get(card.uuid, ()))
    check(slices, f"no container was served a slice of card {card.index}")
    held_mib = granted_mib(stage, card.uuid)
    wanted = {
        "hami_node_simulated": 1.0,
        "hami_node_card_memory_granted_bytes": float(held_mib << 20),
        "hami_node_card_slots_used": float(slices),
    }
    found: dict[str, float] = {}

    def agrees() -> bool:
        found.update(stage.daemon.metrics(card.uuid))
        return all(found.get(name) == value for name, value in wanted.items())

    try:
        stage.until(GPU_NODE, "/metrics agrees", agrees)
    except StepFailed as e:
        seen = {name: found.get(name) for name in wanted}
        raise StepFailed(f"{e}: the metrics are {seen}, granted is {wanted}") from e
    port = stage.daemon.metrics_port()
    return Seen(
        lines=(
            f"http://127.0.0.1:{port}/metrics: {slices} slices and {held_mib} MiB granted on "
            f"card {card.index}, cards marked as simulated",
        )
    )


_BOTH: Final = (EXTENDER, GPU_NODE)

_SHARED: Final = (
    Step(title="The daemon finds the node's cards", act=find_cards, is_needed=True),
    Step(title="It registers with kubelet", act=register, is_needed=True),
    Step(title="It reports to the scheduler", act=publish, is_needed=True),
    Step(title="The extender is ready", act=reach_extender, programs=(EXTENDER,), is_needed=True),
    Step(title="A pod with nothing but limits gets its slice", act=walk, programs=_BOTH),
    Step(title="Three pods share one card, each with its own limits", act=share, programs=_BOTH),
    Step(title="binpack fills a card, spread takes empty cards", act=spread, programs=_BOTH),
    Step(
        title="A pod without room waits, with a reason, and runs", act=wait_for_room, programs=_BOTH
    ),
    Step(title="An over-commit is refused", act=refuse_greedy),
    Step(title="A forged reservation is refused", act=refuse_forged),
    Step(title="kubelet restarts", act=restart_kubelet),
    Step(title="A card fails and recovers", act=break_card),
)


def steps_of(cast: Cast) -> tuple[Step, ...]:
    """All steps: for the shared cards, for every other vendor, and for the metrics."""
    foreign = (step for part in cast.foreign for step in steps_on(part))
    return (*_SHARED, *foreign, Step(title="The daemon's metrics agree", act=audit))
