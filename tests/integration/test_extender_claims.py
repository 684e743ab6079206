"""Annotations that somebody else wrote, against the extender's real endpoints and watches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.simulate.store import Json
from tests.fakes.pods import Box
from tests.integration.extender_rig import MEMORY_MIB, ExtenderRig, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(120)
MOST = MEMORY_MIB * 3 // 4
"""Of a card: one pod may have that, not two."""


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    """n0 with one card that can be used."""
    rig = ExtenderRig()
    rig.write_node("n0", has_identity=True, sick=range(1, 8))
    rig.start()
    rig.settle()
    yield rig
    rig.close()


def created(rig: ExtenderRig, name: str) -> Json:
    return rig.api.create("pods", pod_manifest(name, (Box(memory_mib=MOST),), {}))


def stripped(body: Json) -> None:
    body["metadata"]["annotations"] = {}


@shows(
    "E1",
    fault="a running pod's annotations are removed, and the watch has to list again (410)",
    happens="the next pod is refused: the card still counts as taken",
)
def test_running_pod_without_annotations_still_counts_after_a_new_list(rig: ExtenderRig) -> None:
    first, second = created(rig, "first"), created(rig, "second")
    assert rig.filter(first, ["n0"])["NodeNames"] == ["n0"]
    assert rig.bind(first, "n0") == ""
    rig.serve("first")
    rig.edit("first", stripped)
    rig.settle()
    assert "CardInsufficientMemory" in rig.filter(second, ["n0"])["FailedNodes"]["n0"]
    rig.api.expire_watches()
    rig.settle()
    assert "CardInsufficientMemory" in rig.filter(second, ["n0"])["FailedNodes"]["n0"]
    rig.delete("first")
    rig.settle()
    assert rig.filter(second, ["n0"])["NodeNames"] == ["n0"]
