"""Steps of the demo in which somebody gets past the extender, and the daemon refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.simulate import demo_pods as pods
from hami_node.simulate.demo_cards import granted_mib
from hami_node.simulate.demo_pods import Tenant, Want
from hami_node.simulate.demo_stage import GPU_NODE, StepFailed
from hami_node.simulate.demo_tour import Seen, Tour, check
from hami_node.simulate.kube_scheduler import PodDenied
from hami_node.wire import names

GREEDY: Final = Want(name="main", memory_mib=20000, cores=10)
FORGED: Final = Want(name="main", memory_mib=1000, cores=10, granted_mib=30000)


def refuse_greedy(tour: Tour) -> Seen:
    """A reservation beyond the card's free memory is refused, wherever it came from."""
    card = tour.shared_card
    free_mib = card.memory_mib - granted_mib(tour.stage, card.uuid)
    pods.forge(tour.stage, "greedy", GREEDY, card)
    words = (f"free {free_mib} MiB", f"asked {GREEDY.memory_mib} MiB", str(card.uuid))
    said = _refusal(tour, "greedy", words)
    return Seen(
        lines=(
            f"somebody wrote a reservation of {GREEDY.memory_mib} MiB past webhook and extender, "
            f"where {free_mib} are free;",
            "kubectl describe pod greedy says:",
        ),
        quote=said,
    )


def refuse_forged(tour: Tour) -> Seen:
    """An annotation written by hand gives nothing beyond the container's own limits."""
    stage = tour.stage
    card = min(tour.cards, key=lambda one: granted_mib(stage, one.uuid) / one.memory_mib)
    denied = _denied(tour)
    pods.forge(stage, "forged", FORGED, card)
    words = (f"allowed {FORGED.memory_mib} MiB", f"asked {FORGED.granted_mib} MiB")
    said = _refusal(tour, "forged", words)
    return Seen(
        lines=(
            f'the webhook lets nobody bring a reservation along: "{denied.partition(":")[0]}"',
            f"written past webhook and extender all the same: its limit is {FORGED.memory_mib} "
            f"MiB, its annotation claims {FORGED.granted_mib} on card {card.index}:",
        ),
        quote=said,
    )


def _denied(tour: Tour) -> str:
    """The webhook's sentence on a pod that brings a grant along."""
    bringing = Tenant(name="forged", wants=(FORGED,), wishes={names.POD_NODE: GPU_NODE})
    try:
        pods.create(tour.stage, bringing.body())
    except PodDenied as e:
        check(names.POD_NODE in str(e), f"the webhook does not name the annotation: {e}")
        return str(e)
    raise StepFailed("the webhook let a pod in that brought a reservation along")


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
        GPU_NODE,
        f"an Event tells pod {name} why",
        lambda: pods.event_of(stage, name, "AllocationRefused"),
    )
    check(said in event, f"the Event says something else: {event}")
    return said
