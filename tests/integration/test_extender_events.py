"""Events of the running extender while one namespace keeps it busy."""

from __future__ import annotations

from collections import Counter

import pytest

from hami_node.extender.parts import EVENT_LIMITS
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import ExtenderRig, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(120)
TOO_MUCH = Box(memory_mib=10_000_000)


@shows(
    "E11",
    fault="300 pods of one namespace fit nowhere, before a pod of another namespace comes",
    happens="the pod of the other namespace has its Event among the first, and is placed at once",
)
def test_pod_of_a_quiet_namespace_has_its_event_while_another_floods() -> None:
    rig = ExtenderRig()
    rig.write_node("n0", has_identity=True)
    rig.start()
    try:
        for number in range(300):
            pod = rig.api.create("pods", pod_manifest(f"loud-{number}", (TOO_MUCH,), {}))
            assert not rig.filter(pod, ["n0"])["NodeNames"]
        body = pod_manifest("quiet", (Box(memory_mib=100),), {})
        body["metadata"]["namespace"] = "team-b"
        quiet = rig.api.create("pods", body)
        assert rig.filter(quiet, ["n0"])["NodeNames"] == ["n0"]

        def reasons() -> Counter[str]:
            events = rig.api.list("events")
            return Counter(event["involvedObject"]["namespace"] for event in events)

        eventually(lambda: reasons()["team-b"] == 1)
        assert reasons()["default"] <= EVENT_LIMITS.routine_per_minute
    finally:
        rig.close()
