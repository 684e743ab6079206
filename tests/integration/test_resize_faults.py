"""Approvals of a resize that are forged, replaced or cut short: the extender's part is played."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.model import ContainerKind
from hami_node.record.file import RecordFile
from hami_node.record.ledger import Ledger
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.regions.limit_writer import NvidiaLimitWriter
from hami_node.wire import names
from hami_node.wire.handshake import encode_read_by
from hami_node.wire.resize import Approval, decision_id, encode_approval
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.ledgers import CODEC, grants_text
from tests.fakes.limited import LimitedContainer
from tests.fakes.pods import NODE, Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import Rig, inside
from tests.integration.test_resize import LIMIT_S, Cluster
from tests.reliability import shows

T = TypeVar("T")
ROOM_MIB: Final = 3000
"""What is left of the card beside the pods `a` and `b`."""


def part(memory_mib: int, cores: int = 20, index: int = 0) -> str:
    return f"{uuid(index)},NVIDIA,{memory_mib},{cores}:"


class Approved(Cluster):
    """A node that an extender of ours reads, played by the test; `a` and `b` run on card 0."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        rig.api.annotate("nodes", NODE, {names.NODE_READ_BY: "hami-node"})
        rig.wait_node_seen()
        self.a, self.b = self.run("a", 4000), self.run("b", MEMORY_MIB - 4000 - ROOM_MIB)

    def run_two(
        self, name: str, memory_mib: int, kinds: Sequence[ContainerKind] = (ContainerKind.APP,) * 2
    ) -> list[LimitedContainer]:
        """A pod whose containers x and y hold as much of card 0 each."""
        boxes = [
            Box(name=each, memory_mib=memory_mib, cores=10, kind=kind)
            for each, kind in zip("xy", kinds, strict=True)
        ]
        given = Part(uuid=uuid(0), memory_mib=memory_mib, cores=10)
        idle = Box(name="idle", cards=0)
        self.rig.place(name, [*boxes, idle], {"x": [given], "y": [given]})
        answer = self.rig.admit(name)
        assert answer.is_admitted, answer.refusal
        found = [LimitedContainer(self.rig.hook, f"uid-{name}", each) for each in "xy"]
        for each, box in zip("xy", found, strict=True):
            box.start(inside(answer, each), (uuid(0),))
        return found

    def approve(self, name: str, new: str, *, reserved: str | None = None, **fields: Any) -> None:
        """Approve these grants of the container `main` as the extender does."""
        pod = self.rig.pod(name)
        request = json.dumps({"main": {"to": new, "at": pod.resource_version}})
        given: dict[str, Any] = {
            "id": decision_id(request, pod.resource_version),
            "uid": pod.uid,
            "vendor": "NVIDIA",
            "grants": {"main": f"{new};"},
        }
        texts = {
            names.POD_RESIZE: request,
            names.POD_RESIZE_APPROVED: encode_approval(Approval(**(given | fields))),
            nvidia_names.POD_ALLOCATED: reserved or larger(self.reserved(name), new),
        }
        self.annotate(name, texts)

    def annotate(self, name: str, texts: Mapping[str, str | None]) -> None:
        self.rig.api.annotate("pods", name, texts, "default")

    def recorded(self, name: str, container: str = "main") -> str:
        assert self.rig.daemon is not None
        assert self.rig.daemon.cluster is not None
        entry = self.rig.daemon.ledger.find(f"uid-{name}", container, "NVIDIA")
        assert entry is not None
        return grants_text(entry)

    def keeps(self, name: str, new: str) -> None:
        """Check that the pod holds just this: by the record and by its reservation."""
        assert self.recorded(name) == self.reserved(name) == f"{new};"

    def unstarted(self, name: str, new: str) -> bytes:
        """An approval that waits for the container's file; the file as it was."""
        box = LimitedContainer(self.rig.hook, f"uid-{name}")
        whole = box.path.read_bytes()
        box.path.write_bytes(b"")
        self.approve(name, new)
        self.settled(name, "waiting")
        return whole


def larger(reserved: str, new: str) -> str:
    """The reservation that counts while both may be in force."""
    old, target = (text.strip(":;").split(",") for text in (reserved, new))
    memory, cores = (max(int(old[at]), int(target[at])) for at in (2, 3))
    return f"{part(memory, cores)};"


@pytest.fixture
def cluster(rig: Rig) -> Approved:
    return Approved(rig)


# -- what is refused -------------------------------------------------------------------------------
@shows(
    "Z4",
    fault="a tenant forges an approval for more than the card has, where no policy protects it",
    happens="the daemon checks the card's live use, refuses, and restores the reservation",
)
def test_forged_approval_never_over_commits(cluster: Approved) -> None:
    cluster.approve("a", part(4000 + ROOM_MIB + 1))
    why = cluster.settled("a", "refused")
    assert f"too little free memory: {4000 + ROOM_MIB} MiB are left" in why
    assert cluster.a.limit_mib() == 4000
    cluster.keeps("a", part(4000))


def test_approval_that_does_not_fit_the_container_changes_nothing(cluster: Approved) -> None:
    new, reserved = part(5000), f"{part(4000)};"
    cluster.approve("a", new, uid="uid-b")
    for fields, why in (
        ({"vendor": "AMD"}, "cards of AMD can't be resized"),
        ({"grants": {"other": f"{new};"}}, "no record of what container other"),
        ({"grants": {"main": "x"}}, "not the grants of one container"),
        ({"grants": {"main": ";"}}, "not the grants of one container"),
        ({"grants": {"main": f"{part(5000, index=1)};"}}, "names other cards"),
        ({"grants": {"main": f"{new}{new};"}}, "names other cards"),
        ({"grants": {"main": f"{part(0)};"}}, "would lift a limit"),
        ({"grants": {"main": f"{part(5000, 0)};"}}, "would lift a limit"),
        ({"grants": {"main": f"{part(5000, 101)};"}}, "would lift a limit"),
        ({"reserved": reserved}, "the pod's reservation holds less"),
    ):
        assert cluster.state("a").get("state") in (None, "refused")
        cluster.approve("a", new, **fields)
        assert why in cluster.settled("a", "refused")
        assert cluster.a.limit_mib() == 4000
        assert cluster.recorded("a") == reserved
    eventually(lambda: len(set(cluster.rig.events("ResizeRefused"))) == 7, LIMIT_S)


def test_container_that_nothing_limits_is_refused(node: Rig) -> None:
    node.take_limiter()
    node.start(limiter="optional")
    cluster = Approved(node)
    cluster.approve("a", part(5000))
    assert "was started without the limiter" in cluster.settled("a", "refused")
    node.lay_limiter()
    free = Box(memory_mib=500, cores=5, env={nvidia_names.ENV_DISABLE_CONTROL: "true"})
    node.place("c", [free], {"main": [Part(uuid=uuid(0), memory_mib=500, cores=5)]})
    assert node.admit("c").is_admitted
    cluster.approve("c", part(600, 5))
    assert "runs without limits" in cluster.settled("c", "refused")


def test_refusal_is_final_although_its_note_was_lost(cluster: Approved) -> None:
    cluster.a.allocate(2500)
    cluster.approve("a", part(1000))
    assert "uses 2500 MiB" in cluster.settled("a", "refused")
    cluster.rig.stop()
    (cluster.rig.record / "grants.record").unlink()
    cluster.a.free()
    cluster.rig.start()
    cluster.approve("b", part(900))
    cluster.settled("b", "done")
    assert cluster.a.limit_mib() == 4000
    cluster.keeps("a", part(4000))


# -- decisions that change under way ---------------------------------------------------------------
def test_approval_that_is_replaced_gives_way_to_the_next(cluster: Approved) -> None:
    whole = cluster.unstarted("a", part(7000))
    cluster.approve("a", part(5000))
    cluster.settled("a", "waiting")
    cluster.a.path.write_bytes(whole)
    cluster.settled("a", "done")
    assert cluster.a.limit_mib() == 5000
    cluster.keeps("a", part(5000))


@pytest.mark.parametrize("used_mib", [0, 6000])
def test_approval_that_is_removed_is_taken_back_but_for_what_is_used(
    cluster: Approved, used_mib: int
) -> None:
    whole = cluster.unstarted("a", part(7000))
    cluster.annotate("a", {names.POD_RESIZE_APPROVED: None})
    cluster.rig.wait_seen("a")
    cluster.a.path.write_bytes(whole)
    cluster.a.tamper(7000)  # as if it had been written when the daemon was killed
    cluster.a.allocate(used_mib)
    kept = 7000 if used_mib else 4000
    eventually(lambda: cluster.a.limit_mib() == kept, LIMIT_S)
    eventually(lambda: cluster.recorded("a") == f"{part(kept)};", LIMIT_S)


@shows(
    "Z12",
    fault="a tenant forges an approval that fits nothing while a resize is under way",
    happens="the resize is taken back as if its approval were gone; the forged one is refused once",
)
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"grants": {"main": f"{part(5000, index=1)};"}}, id="another card"),
        pytest.param({"grants": {"main": f"{part(0)};"}}, id="no limit"),
        pytest.param({"grants": {"main": f"{part(5000)};", "x": f"{part(1)};"}}, id="no container"),
        pytest.param({"vendor": "Nobody"}, id="another vendor"),
    ],
)
def test_forged_approval_keeps_no_resize_open(cluster: Approved, forged: dict[str, Any]) -> None:
    whole = cluster.unstarted("a", part(7000))
    forged_refusal = cluster.state("a") | {"state": "refused"}
    cluster.annotate("a", {names.POD_RESIZE_STATE: json.dumps(forged_refusal)})
    cluster.approve("a", part(5000), **forged)
    cluster.settled("a", "refused")
    cluster.a.path.write_bytes(whole)
    eventually(lambda: cluster.recorded("a") == f"{part(4000)};", LIMIT_S)
    assert cluster.a.limit_mib() == 4000
    assert len(cluster.rig.events("ResizeRefused")) == 1


def test_container_that_hides_its_cards_keeps_its_limit(cluster: Approved) -> None:
    cluster.approve("a", part(2000))
    cluster.settled("a", "done")
    for uuids in ((), (uuid(7),), (uuid(7), uuid(6))):
        cluster.a.path.unlink()
        cluster.a.start({f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "9000m"}, uuids)
        eventually(lambda: cluster.a.limit_mib() == 2000, LIMIT_S)


# -- failures --------------------------------------------------------------------------------------
@shows(
    "Z8",
    fault="the API server, the disk or the usage file refuses a write of a resize",
    happens="it is tried again by the next pass, and ends the same way",
)
@pytest.mark.parametrize("what", [503, "reset-after", "disk", "usage file"], ids=str)
def test_write_that_is_refused_is_made_later(cluster: Approved, what: int | str) -> None:
    rig, whole = cluster.rig, cluster.a.path.read_bytes()
    if what == "disk":
        rig.record.rename(rig.root / "aside")
        rig.record.write_text("no folder")
    elif what == "usage file":
        cluster.a.path.write_bytes(whole[:100])
    else:
        rig.api.fail_next("patch", "pods", what, 2)
    cluster.approve("a", part(7000))
    if what == "disk":
        eventually(lambda: rig.metric("record_write_failures_total"), LIMIT_S)
        assert cluster.a.limit_mib() == 4000
        rig.record.unlink()  # the record is written as a whole, into a new folder
    elif what == "usage file":
        cluster.settled("a", "waiting")
        cluster.a.path.write_bytes(whole)
    cluster.settled("a", "done")
    assert cluster.a.limit_mib() == 7000
    cluster.keeps("a", part(7000))


def on_disk(rig: Rig) -> Ledger:
    """The record as the next daemon will read it."""
    ledger = Ledger(RecordFile(rig.record, "grants"), CODEC)
    ledger.load()
    return ledger


class Killed(BaseException):
    """The end of the thread that resizes, and so of the process."""


class Fuse:
    """Kills before or after the n-th write of the thread that resizes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        kinds = ((Ledger, "put_all"), (NvidiaLimitWriter, "write"), (KubeClient, "json_patch_pod"))
        for kind, name in kinds:
            monkeypatch.setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, work: Callable[..., T]) -> Callable[..., T]:
        def fused(*args: Any, **named: Any) -> T:
            if threading.current_thread().name != "resizes":
                return work(*args, **named)
            self._burn()
            done = work(*args, **named)
            self._burn()
            return done

        return fused

    def _burn(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


SCENARIOS = {
    "up": (0, part(7000, 60), "done", part(7000, 60)),
    "down": (500, part(1000, 10), "done", part(1000, 10)),
    "down below use": (2500, part(1000, 10), "refused", part(4000)),
    "memory up, cores down": (3500, part(6000, 5), "done", part(6000, 5)),
    "no room": (0, part(7001), "refused", part(4000)),
}


@shows(
    "Z7",
    fault="the daemon is killed before or after any write of a resize, once or twice",
    happens="the next one ends it the same way; no limit in force was ever above the ledger's",
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kill_at_any_step_changes_nothing_in_the_end(
    node: Rig, monkeypatch: pytest.MonkeyPatch, scenario: str
) -> None:
    used, new, state, held = SCENARIOS[scenario]
    fuse = Fuse(monkeypatch)
    node.start()
    cluster = Approved(node)
    cluster.a.allocate(used)
    fuse.left = kills = 0
    cluster.approve("a", new)
    while True:  # each daemon comes one write further than the one before
        daemon = node.daemon
        assert daemon is not None
        eventually(lambda: daemon.threads.died or cluster.state("a").get("state") == state, LIMIT_S)  # noqa: B023 - used at once
        if not daemon.threads.died:
            break
        node.stop()
        entry = on_disk(node).find("uid-a", "main", "NVIDIA")
        assert entry is not None
        counted = entry.grants[0].memory_mib
        assert cluster.a.limit_mib() <= counted, "more in force than counted"
        kills += 1
        fuse.left = kills
        node._start()
    fuse.left = None
    assert kills >= 2
    cluster.settled("a", state)
    cluster.keeps("a", held)
    _, _, mib, cores = held.removesuffix(":").split(",")
    assert (cluster.a.limit_mib(), cluster.a.cores()) == (int(mib), int(cores))


# -- several cards and containers ------------------------------------------------------------------
def test_cards_of_one_container_are_one(rig: Rig) -> None:
    cluster = Approved(rig)
    given = [Part(uuid=uuid(index), memory_mib=4000, cores=20) for index in (1, 2)]
    rig.place("c", [Box(cards=2, memory_mib=4000, cores=20)], {"main": given})
    box = LimitedContainer(rig.hook, "uid-c")
    box.start(inside(rig.admit("c")), (uuid(1), uuid(2)))
    box.allocate(3000, place=1)
    for mib, outcome in ((1000, "refused"), (7000, "done")):
        new, most = (part(m, 20, 1) + part(m, 20, 2) for m in (mib, max(mib, 4000)))
        cluster.approve("c", new, reserved=f"{most};")
        cluster.settled("c", outcome)
        limit = mib if outcome == "done" else 4000
        assert [box.limit_mib(place) for place in (0, 1)] == [limit, limit]


def approve_two(cluster: Approved, x: int, y: int) -> None:
    reserved = "".join(f"{part(max(mib, 1000), 10)};" for mib in (x, y)) + ";"
    grants = {"x": f"{part(x, 10)};", "y": f"{part(y, 10)};"}
    cluster.approve("t", "", reserved=reserved, grants=grants)


def test_request_for_two_containers_is_carried_out_as_a_whole_or_not_at_all(
    cluster: Approved,
) -> None:
    x, y = cluster.run_two("t", 1000)
    y.allocate(600)
    approve_two(cluster, 1500, 400)
    assert "container y uses 600 MiB" in cluster.settled("t", "refused")
    assert [x.limit_mib(), y.limit_mib()] == [1000, 1000]
    assert cluster.reserved("t") == f"{part(1000, 10)};" * 2 + ";"
    y.free()
    approve_two(cluster, 1500, 400)
    cluster.settled("t", "done")
    assert [x.limit_mib(), y.limit_mib()] == [1500, 400]
    assert cluster.reserved("t") == f"{part(1500, 10)};{part(400, 10)};;"


def test_container_that_the_next_approval_leaves_out_goes_back(cluster: Approved) -> None:
    x, y = cluster.run_two("t", 1000)
    whole = x.path.read_bytes()
    x.path.write_bytes(b"")
    approve_two(cluster, 1500, 400)
    cluster.settled("t", "waiting")
    reserved = f"{part(1500, 10)};{part(1000, 10)};;"
    cluster.approve("t", "", reserved=reserved, grants={"y": f"{part(800, 10)};"})
    x.path.write_bytes(whole)
    cluster.settled("t", "done")
    eventually(lambda: cluster.recorded("t", "x") == f"{part(1000, 10)};", LIMIT_S)
    assert [x.limit_mib(), y.limit_mib()] == [1000, 800]


@pytest.mark.parametrize(
    ("kinds", "grown", "state"),
    [
        ((ContainerKind.SIDECAR, ContainerKind.INIT), "x", "refused"),
        ((ContainerKind.INIT, ContainerKind.SIDECAR), "y", "done"),
    ],
    ids=["beside the init container", "after it"],
)
def test_sidecar_grows_beside_what_its_init_containers_may_take_again(
    cluster: Approved, kinds: tuple[ContainerKind, ...], grown: str, state: str
) -> None:
    mark = {names.NODE_READ_BY: encode_read_by("?", counts_inits=True)}
    cluster.rig.api.annotate("nodes", NODE, mark | {nvidia_names.NODE_HANDSHAKE: "?"})
    cluster.rig.wait_node_seen()
    cluster.run_two("t", ROOM_MIB // 2 - 100, kinds)
    slots = dict.fromkeys("xy", part(ROOM_MIB // 2 - 100, 10)) | {grown: part(1700, 10)}
    reserved = "".join(f"{slot};" for slot in slots.values()) + ";"
    cluster.approve("t", "", reserved=reserved, grants={grown: f"{slots[grown]};"})
    cluster.settled("t", state)
