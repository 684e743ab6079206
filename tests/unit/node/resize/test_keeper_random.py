"""Approvals, kills, lost files and forgeries in any order: never too much, and it always ends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.seeds import seeds
from tests.unit.node.resize.desk import KilledError, NodeDesk, answer, part

PODS = ("a", "b", "c")


def step(desk: NodeDesk, dice: random.Random) -> None:
    """Something that others do."""
    name = dice.choice(PODS)
    box = desk.containers[name]
    has_file = box.path.exists() and box.path.stat().st_size > 0
    action = dice.choice(("approve", "approve", "use", "free", "file", "strip", "forge", "kubelet"))
    if action == "approve":
        desk.approve(name, part(dice.choice((500, 1500, 3000, 5000)), dice.choice((5, 20, 40))))
    elif action == "use" and has_file:
        box.allocate(dice.randrange(100, 3000))
    elif action == "free" and has_file:
        box.free()
    elif action == "file":
        if has_file:
            box.path.write_bytes(b"")  # a restart without its file: the variables count again
        else:
            entry = desk.ledger.find(f"uid-{name}", "main", "NVIDIA")
            assert entry is not None
            held = int(desk.recorded(name).split(",")[2])
            box.start(dict(answer(min(held, 2000)).envs), (uuid(0),))
    elif action == "strip":
        desk.annotate(name, {names.POD_RESIZE_APPROVED: None})
    elif action == "forge":
        mib = dice.choice((1, 6000, 9000, 20_000))
        desk.approve(name, part(mib), reserved=f"{part(max(mib, 4000))};")


@pytest.mark.parametrize("seed", seeds(1, 12))
def test_nothing_is_ever_over_committed_and_everything_settles(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    desk = NodeDesk(tmp_path)
    desk.run("c", 2000)
    for _ in range(60):
        step(desk, dice)
        desk.check()
        desk.fuse.left = dice.choice((None, 0, 1, 2, 3, 4, 5, 6, 7))
        try:
            desk.keeper.look()
        except KilledError:
            desk.restart()
        desk.fuse.left = None
        desk.check()
    for name in PODS:
        box = desk.containers[name]
        if not box.path.exists() or not box.path.stat().st_size:
            box.start(dict(answer(500).envs), (uuid(0),))
    for _ in range(3):
        desk.keeper.look()
        desk.check()
    steps = len(desk.fuse.steps)
    desk.keeper.look()
    assert len(desk.fuse.steps) == steps, "it has settled"
    notes = [entry.resize for entry in desk.ledger.entries()]
    assert not any(note and note.is_open for note in notes)
    for name in PODS:
        held = int(desk.recorded(name).split(",")[2])
        resized = [entry for entry in desk.ledger.entries() if entry.pod == name and entry.resize]
        if resized:
            assert desk.containers[name].limit_mib() == held
