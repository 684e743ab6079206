"""What filter grants, bind accepts: over random fleets, in both generations."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import Rules
from hami_node.extender.state.counted_pod import is_overfull
from tests.unit.engine.draws import Draw


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_what_fits_is_never_overfull(compat: Compat) -> None:
    placed = 0
    for seed in range(40):
        draw, fleet = Draw(seed), Fleet(Rules(compat=compat))
        for number in range(3):
            if devices := draw.devices(number):
                fleet.set_node(f"n{number}", devices)
        for number in range(15):
            request = draw.request()
            answer = None if request.is_empty else fleet.place(request)
            if not isinstance(answer, Placed):
                continue
            placed += 1
            key = f"p{number}"
            fleet.add_pod(key, request.namespace, answer.node, answer.grants)
            usage = fleet.nodes[answer.node].usage
            held = [usage.cards.get(charge.uuid) for charge in usage.charges(key)]
            assert not any(is_overfull(card) for card in held), (seed, number)
    assert placed > 100
