"""Our extender on the nodes that HAMi's plugins registered in MIG mode: the same reservations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hami_node.config.settings import Generation
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.mig_recordings import pods, registers
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk

PODS = {
    "p5000": (Box(name="c0", memory_mib=5000),),
    "p9000": (Box(name="c0", memory_mib=9000),),
    "p2x9000": (Box(name="c0", cards=2, memory_mib=9000),),
    "p2c": (Box(name="c0", memory_mib=4000), Box(name="c1", memory_mib=4000)),
}
"""The first pods of the recording, which lived together."""


def reserved_by_hami(file: str) -> dict[str, dict[str, str]]:
    """The first reservation of each pod."""
    found: dict[str, dict[str, str]] = {}
    for change in pods(file):
        if change.is_reserved:
            found.setdefault(change.name, dict(change.notes))
    return found


def decided(desk: Desk, name: str, *boxes: Box) -> dict[str, str]:
    desk.add_pod(name, *boxes)
    desk.sync()
    assert desk.ask(name, "n")["NodeNames"] == ["n"]
    desk.sync()
    assert desk.bind(name, "n") == ""
    desk.sync()
    return dict(desk.notes_of(name))


def rows(notes: dict[str, str]) -> Any:
    found = json.loads(notes[nvidia_names.POD_MIG_ALLOCATIONS])
    return [{**row, "placement": {"start": 0, **row["placement"]}} for row in found]


@pytest.fixture
def desk() -> Desk:
    desk = Desk(values={"compat": Generation.V2_10})
    desk.add_node("n")
    register = next(registers("v2.10.0"))
    desk.kube.merge_patch_node("n", {nvidia_names.NODE_REGISTER: register})
    desk.sync()
    return desk


def test_extender_reserves_what_hami_2_10_reserved_on_its_own_node(desk: Desk) -> None:
    theirs = reserved_by_hami("v2.10.0")
    for name, boxes in PODS.items():
        ours = decided(desk, name, *boxes)
        assert rows(ours) == rows(theirs[name]), name
        key = nvidia_names.POD_ALLOCATED
        assert ours[key].rstrip(";") == theirs[name][key].rstrip(";"), name
