"""What people see of instances that others have made, with the whole daemon."""

from __future__ import annotations

import pytest

from hami_node.node.report.part_errors import EVENT
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.mig.mark import decode_mig
from tests.fakes.waiting import eventually
from tests.integration.instance_rig import NO_RIGHTS, SMALL, InstanceRig, seen
from tests.integration.rig import GPU, LIMIT_S
from tests.nvml_stub.control import UUIDS, card, sequence


@pytest.fixture
def rig(instances_of_others: InstanceRig) -> InstanceRig:
    """Card 0 in MIG mode with two equal instances; the daemon is not started yet."""
    for start in (5, 6):
        instances_of_others.make("1g.5gb", start)
    return instances_of_others


def states(rig: InstanceRig) -> dict[str, PartState]:
    """The instances in the node's annotation."""
    text = rig.notes.get(nvidia_names.NODE_MIG, "")
    return {part.uuid: part.state for part in decode_mig(text).parts} if text else {}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_instances_are_shown_with_their_containers_use(rig: InstanceRig, strategy: str) -> None:
    rig.serve(strategy, usage_interval_s="0.2")
    answer = rig.ask("p", GPU if strategy == "single" else SMALL)
    assert answer.is_admitted, answer.refusal
    held = seen(answer)
    (other,) = set(rig.driver.mig.uuids(UUIDS[0])) - {held}
    wanted = {held: PartState.LIVE, other: PartState.OFFERED}
    eventually(lambda: states(rig) == wanted, LIMIT_S)
    rig.driver.mig.run(held, 77, used_mib=3000)
    whose = {"pod": "p", "container": "main", "part": held}
    used = "container_memory_used_bytes"
    eventually(lambda: rig.metric(used, **whose) == 3000 << 20, LIMIT_S)
    assert rig.metric("container_memory_limit_bytes", **whose) == 4864 << 20
    assert rig.metric(used, part=other) is None
    assert rig.metric("card_parts", uuid=UUIDS[0], state="offered") == 1
    assert rig.driver.mig.changes() == ()


def test_error_of_an_instance_is_said_to_the_pod_that_has_it(rig: InstanceRig) -> None:
    rig.serve()
    held = seen(rig.ask("p"))
    number = next(it.gi for it in rig.driver.mig.instances(UUIDS[0]) if it.uuid == held)
    eventually(lambda: states(rig).get(held) is PartState.LIVE, LIMIT_S)
    cards = (card(i, mig="disabled" if i else "enabled") for i in range(3))
    rig.driver.write(*cards, NO_RIGHTS, f"xid {next(sequence)} 0 94 {number} 0")
    eventually(lambda: rig.events(EVENT) != [], LIMIT_S)
    (message,) = rig.events(EVENT)
    assert f"container main, 1g.5gb {held} of card 0: XID 94" in message
    assert len(rig.healthy(SMALL)) == 2
