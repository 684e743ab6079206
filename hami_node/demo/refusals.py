"""Steps of the demo in which a pod bypasses the extender, and the daemon refuses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.demo import pods
from hami_node.demo.cards import granted_mib
from hami_node.demo.pods import Tenant, Want
from hami_node.demo.stage import GPU_NODE
from hami_node.demo.tour import Seen, Tour
from hami_node.simulate.kube_scheduler import PodDenied
from hami_node.vendors.demo import StepFailed, check
from hami_node.wire import names

GREEDY: Final = Want(name="main", memory_mib=20000, cores=10)
FORGED: Final = Want(name="main", memory_mib=1000, cores=10, granted_mib=30000)


def refuse_greedy(tour: Tour) -> Seen:
    """A reservation beyond the card's free memory is refused, wherever it came from."""
    card = tour.shared_card
    free_mib = card.memory_mib - granted_mib(tour.stage, card.uuid)
    pods.forge(tour.stage, "greedy", GREEDY, card)
    words = (f"free {free_mib} MiB", f"asked {GREEDY.memory_mib} MiB", str(card.uuid))
    message = _refusal(tour, "greedy", words)
    return Seen(
        lines=(
            f"a reservation of {GREEDY.memory_mib} MiB was written, bypassing webhook and "
            f"extender, where {free_mib} are free;",
            "kubectl describe pod greedy shows:",
        ),
        quote=message,
    )


def refuse_forged(tour: Tour) -> Seen:
    """An annotation written by hand gives no more than the container's own limits."""
    stage = tour.stage
    card = min(tour.cards, key=lambda card: granted_mib(stage, card.uuid) / card.memory_mib)
    denied = _denied(tour)
    pods.forge(stage, "forged", FORGED, card)
    words = (f"allowed {FORGED.memory_mib} MiB", f"asked {FORGED.granted_mib} MiB")
    message = _refusal(tour, "forged", words)
    return Seen(
        lines=(
            f'the webhook denies pods with a reservation: "{denied.partition(":")[0]}"',
            f"written nevertheless, bypassing webhook and extender: its limit is "
            f"{FORGED.memory_mib} MiB, its annotation claims {FORGED.granted_mib} on card "
            f"{card.index}:",
        ),
        quote=message,
    )


def _denied(tour: Tour) -> str:
    """The webhook's message for a new pod with a grant."""
    tenant = Tenant(name="forged", wants=(FORGED,), wishes={names.POD_NODE: GPU_NODE})
    try:
        pods.create_tenant(tour.stage, tenant)
    except PodDenied as e:
        check(names.POD_NODE in str(e), f"the webhook does not name the annotation: {e}")
        return str(e)
    raise StepFailed("the webhook admitted a pod with a reservation")


def _refusal(tour: Tour, name: str, words: Sequence[str]) -> str:
    """Admit a pod that must be refused: status, Event and annotation have to show it."""
    stage = tour.stage
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
    return message
