"""What if: the answer of a fleet, for nodes that are asked about once."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import Refused, Rules, what_if
from tests.unit.engine.draws import Draw


@pytest.mark.parametrize("seed", range(20))
def test_the_answer_is_a_fleets(seed: int) -> None:
    draw = Draw(seed)
    rules = Rules(
        compat=draw.pick(V2_8, V2_10),
        node_policy=draw.pick("binpack", "spread"),
        gpu_policy=draw.pick("binpack", "spread"),
    )
    fleet = Fleet(rules)
    for node in range(6):
        fleet.set_node(f"n{node}", draw.devices(node))
    for number in range(12):
        request = draw.request()
        placed = fleet.place(request)
        offers = {name: state.offer() for name, state in fleet.nodes.items()}
        found = what_if(request, offers, rules, None)
        reasons = fleet.explain(request)
        if isinstance(placed, Refused) or isinstance(found, Refused):
            assert placed == found
            continue
        assert found.node == (placed.node if isinstance(placed, Placed) else "")
        assert found.rejections == reasons
        if isinstance(placed, Placed):
            fleet.add_pod(f"p{number}", "team", placed.node, placed.grants)
