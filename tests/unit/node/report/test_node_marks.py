from __future__ import annotations

import pytest

from hami_node.model import Node
from hami_node.node.report.node_marks import NodeMarks
from hami_node.wire import names

NOW = 1_800_000_000.0
NODE = Node(name="n1")


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("simulated", [True, False])
def test_identity_marks_follow_the_socket_and_the_backend(
    is_readable: bool, simulated: bool
) -> None:
    said = NodeMarks(is_readable=lambda: is_readable, simulated=simulated)
    assert said.desired(NODE, NOW) == {
        names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES if is_readable else None,
        names.NODE_SIMULATED: "true" if simulated else None,
    }
    assert said.heartbeat(NODE, NOW) == {}
    assert said.shutdown(NODE) == {names.NODE_IDENTITY: None}
