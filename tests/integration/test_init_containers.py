"""What init containers hold once they have ended: kubelet may run them again, and asks nobody."""

from __future__ import annotations

import pytest

from hami_node.model import ContainerKind
from hami_node.node.report.rounds import RERUN_EVENT as EVENT
from hami_node.simulate.kubelet import Admission
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.handshake import encode_read_by, encode_requesting
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.pods import NODE, Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

FIRST, NEXT = encode_requesting(1_000_000.0), encode_requesting(2_000_000.0)
"""Questions of two schedulers."""
COUNTS = encode_read_by(FIRST, counts_inits=True)


def note(rig: Rig, **texts: str | None) -> None:
    """Annotate the node, until the daemon has seen it."""
    keys = {"mark": names.NODE_READ_BY, "asked": nvidia_names.NODE_HANDSHAKE}
    rig.api.annotate("nodes", NODE, {keys[key]: text for key, text in texts.items()})
    rig.wait_node_seen()


def prepare(rig: Rig) -> None:
    """Pod `a`, whose init container had all of the card but 1,000 MiB, and has ended."""
    boxes = [
        Box(name="prep", memory_mib=MEMORY_MIB - 1000, kind=ContainerKind.INIT),
        Box(memory_mib=1000),
    ]
    held = {box.name: [Part(uuid=uuid(1), memory_mib=box.memory_mib or 0)] for box in boxes}
    rig.place("a", boxes, held)
    assert rig.admit("a").is_admitted
    init_is(rig, {"terminated": {"exitCode": 0}})


def init_is(rig: Rig, state: Json) -> None:
    """As kubelet reports it."""
    status = {"name": "prep", "state": state, "containerID": "containerd://1"}
    rig.api.edit(
        "pods", "a", lambda body: body["status"].update(initContainerStatuses=[status]), "default"
    )
    rig.wait_seen("a")


def place(rig: Rig, name: str, memory_mib: int) -> None:
    """As a scheduler that counts no init container that has ended."""
    held = {"main": [Part(uuid=uuid(1), memory_mib=memory_mib)]}
    rig.place(name, [Box(memory_mib=memory_mib)], held)


def ask(rig: Rig, name: str, memory_mib: int) -> Admission:
    place(rig, name, memory_mib)
    return rig.admit(name)


@shows(
    "N19",
    fault="a reservation for what an init container had is forged, under our extender",
    happens="it is refused with the amounts: kubelet may run the init container again, and that "
    "is kept for it as long as its pod lives, also after the daemon was restarted",
)
@pytest.mark.parametrize("is_restarted", [True, False])
def test_share_of_an_init_container_that_ended_is_given_to_nobody(
    rig: Rig, is_restarted: bool
) -> None:
    prepare(rig)
    note(rig, mark=COUNTS, asked=FIRST)
    if is_restarted:
        rig.restart()
    answer = ask(rig, "b", 2000)
    assert "free 1000 MiB, asked 2000 MiB" in answer.refusal
    assert ask(rig, "c", 1000).is_admitted
    eventually(
        lambda: rig.metric("card_memory_granted_bytes", uuid=uuid(1)) == MEMORY_MIB << 20, LIMIT_S
    )


@shows(
    "N19",
    fault="the scheduler is HAMi's or an older extender of ours, which give it to others, or one "
    "of them takes the place of our extender on a running node",
    happens="the daemon counts as the scheduler that asked last: no pod is refused that it placed",
)
@pytest.mark.parametrize("mark", [None, names.READ_BY_EXTENDER, COUNTS])
def test_scheduler_that_counts_less_has_no_pod_refused(rig: Rig, mark: str | None) -> None:
    prepare(rig)
    note(rig, mark=mark, asked=FIRST)
    place(rig, "b", MEMORY_MIB - 3000)
    note(rig, asked=NEXT)
    answer = rig.admit("b")
    assert answer.is_admitted, answer.refusal


def test_mark_of_an_extender_that_was_replaced_is_taken_back_for_good(rig: Rig) -> None:
    prepare(rig)
    note(rig, mark=COUNTS, asked=FIRST)
    note(rig, asked=NEXT)
    eventually(lambda: rig.notes[names.NODE_READ_BY] == names.READ_BY_EXTENDER, LIMIT_S)
    note(rig, asked="Reported 2026-01-01 00:00:00.000000 +0000 UTC")
    assert ask(rig, "b", MEMORY_MIB - 3000).is_admitted
    note(rig, mark=COUNTS, asked=FIRST)
    assert "MiB" in ask(rig, "c", 1000).refusal, "b and what is kept for a fill the card"


@shows(
    "N19",
    fault="kubelet runs an init container again where the scheduler gave its share to others",
    happens="an Event of the pod says so with the amounts, once, and a metric until it is over",
)
def test_init_container_that_runs_again_on_a_card_with_too_much_granted_is_told(rig: Rig) -> None:
    prepare(rig)
    assert ask(rig, "b", MEMORY_MIB - 3000).is_admitted
    assert rig.metric("init_reruns") == 0
    init_is(rig, {"running": {}})
    eventually(lambda: rig.metric("init_reruns") == 1, LIMIT_S)
    eventually(lambda: rig.events(EVENT), LIMIT_S)
    (said,) = rig.events(EVENT)
    assert f"{uuid(1)} has {2 * MEMORY_MIB - 4000} of {MEMORY_MIB} MiB" in said
    init_is(rig, {"terminated": {"exitCode": 0}})
    eventually(lambda: rig.metric("init_reruns") == 0, LIMIT_S)
    assert rig.events(EVENT) == [said]
