"""Room for pods that others nominated is sought a little in each decision."""

from __future__ import annotations

import pytest

from hami_node.engine.fleet.eviction import Look, Trial
from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.place import Rules
from hami_node.engine.usage import PodGrants
from hami_node.extender.preemption.kept_rooms import MAX_SOUGHT, RETRY_S, KeptRooms
from hami_node.extender.state.pod_book import PodBook
from hami_node.model import Container, ContainerKind, Pod, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.fakes.clock import FakeClock
from tests.unit.engine.cards import device

NOMINATED = 40


def _nominated(number: int, inits: int) -> Pod:
    limits = {names.RESOURCE_GPU: "1", names.RESOURCE_GPU_MEMORY: "1000"}
    made = [Container(name=f"i{at}", kind=ContainerKind.INIT, limits=limits) for at in range(inits)]
    return Pod(
        uid=f"u{number}",
        namespace="team",
        name=f"p{number}",
        priority=10,
        nominated_node="n",
        containers=(*made, Container(name="main", limits=limits)),
    )


@pytest.mark.parametrize(
    ("inits", "most"), [(0, MAX_SOUGHT), (60, 3)], ids=["one container", "very many"]
)
def test_a_decision_seeks_as_much_room_as_its_time_allows(
    monkeypatch: pytest.MonkeyPatch, inits: int, most: int
) -> None:
    """Sixteen pods of 64 containers each took 80 ms of one decision."""
    fleet, clock, vendors = Fleet(Rules()), FakeClock(), (nvidia_protocol(),)
    fleet.set_node("n", [device(at, uuid=Uuid(f"GPU-{at}")) for at in range(8)])
    kept = KeptRooms(fleet, clock, vendors, PodBook(fleet, vendors, clock))
    for number in range(NOMINATED):
        kept.hear(_nominated(number, inits))
    looks: list[str] = []
    grants = Trial.grants

    def counted(self: Trial, node: str, look: Look) -> PodGrants | None:
        looks.append(node)
        return grants(self, node, look)

    monkeypatch.setattr(Trial, "grants", counted)
    decisions = 0
    while len(looks) < NOMINATED:
        kept.owners("other", 0)
        decisions += 1
        assert len(looks) <= decisions * most
        clock.advance(RETRY_S / 100)
    assert decisions >= NOMINATED // most - 1
    assert len(kept.against("other", 0)["n"]) == NOMINATED
