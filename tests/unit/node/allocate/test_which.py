from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from hami_node.errors import KubeError, KubeletError, NoPendingPod
from hami_node.model import ContainerKind, Pod
from hami_node.node.allocate.terms import Reserved
from hami_node.node.allocate.which import Identity
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.settler import notice_ended
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Entry, Ledger
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import uuid
from tests.fakes.clock import soon
from tests.fakes.ledgers import a_ledger, an_entry
from tests.fakes.live_kube import FakeCluster, FakeResources
from tests.fakes.pods import (
    NODE,
    Box,
    Generation,
    Part,
    layout,
    pod_body,
    reservation,
    reserved_pod,
)
from tests.reliability import shows
from tests.unit.node.holdings.uses import CARDS, VENDOR, live_use

GPU = nvidia_names.RESOURCE_GPU
INIT = ContainerKind.INIT
ONE = [Part(uuid=uuid(0), memory_mib=1000)]
TWO = [Part(uuid=uuid(0), memory_mib=1000), Part(uuid=uuid(1), memory_mib=1000)]


def held(pod: str, **containers: tuple[str, ...]) -> tuple[HeldContainer, ...]:
    return tuple(
        HeldContainer(
            namespace="default", pod=pod, container=name, device_ids={GPU: ids} if ids else {}
        )
        for name, ids in containers.items()
    )


def waiting(name: str = "p", cards: int = 1, **changes: object) -> Pod:
    pod = reserved_pod(name, [Box(cards=cards, memory_mib=1000)], {"main": TWO[:cards]})
    return replace(pod, **changes)  # type: ignore[arg-type]  # fields by name


def noted(pod: Pod, **notes: str) -> Pod:
    keys = {"phase": names.POD_BIND_PHASE, "rest": nvidia_names.POD_TO_ALLOCATE}
    return replace(pod, annotations={**pod.annotations, **{keys[k]: v for k, v in notes.items()}})


def served(pod: Pod) -> Pod:
    return noted(pod, phase=names.PHASE_SUCCESS, rest=";" * len(pod.containers))


def identity_of(
    cluster: FakeCluster,
    resources: FakeResources,
    live: LiveUse,
    ledger: Ledger,
    lock_owner: str = "",
) -> Identity:
    shared: Any = SimpleNamespace(
        live=live, ledger=ledger, kube=cluster, kubelet=resources, refused={}
    )
    resource: Any = SimpleNamespace(name=GPU)
    terms = Reserved(shared, resource, VENDOR)
    return Identity(
        shared, terms, GPU, node_name=NODE, lock_owner=lambda _: lock_owner, life=lambda: 1
    )


def identity(
    cluster: FakeCluster, resources: FakeResources, *entries: Entry, lock_owner: str = ""
) -> Identity:
    ledger = a_ledger(*entries)
    live = live_use(cluster, ledger=ledger)
    return identity_of(cluster, resources, live, ledger, lock_owner)


def find(
    pods: tuple[Pod, ...], listed: tuple[HeldContainer, ...], ids: tuple[str, ...] = ("x-1",)
) -> str:
    return identity(FakeCluster(*pods), FakeResources(*listed)).find(ids, soon()).name


NONE: tuple[str, ...] = ()


OTHERS = {
    "failed": waiting("q", phase="Failed"),
    "succeeded": waiting("q", phase="Succeeded"),
    "refused": noted(waiting("q"), phase=names.PHASE_FAILED),
    "on-another-node": waiting("q", node_name="n2"),
    "asks-for-none": decode_pod(pod_body("q", [Box(cards=0)])),
    "asks-for-two": waiting("q", 2),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_find_pod_that_is_listed_beside_another_is_meant(other: Pod) -> None:
    listed = held("q", main=NONE) + held("p", main=NONE)
    assert find((waiting(), other), listed) == "default/p/main"


@pytest.mark.parametrize(
    ("pods", "listed"),
    [
        ((waiting(),), held("p", main=NONE)),
        ((waiting(), served(waiting("q"))), held("q", main=("y-1",)) + held("p", main=NONE)),
        ((waiting(),), held("gone", main=NONE) + held("p", main=NONE)),
        ((waiting(), waiting("q")), held("p", main=NONE)),
    ],
    ids=["alone", "other-holds-ids", "other-unknown-to-the-api", "other-not-listed"],
)
def test_find_one_pod_waits_in_the_list_it_is_meant(
    pods: tuple[Pod, ...], listed: tuple[HeldContainer, ...]
) -> None:
    assert find(pods, listed) == "default/p/main"


@pytest.mark.parametrize(
    ("pods", "listed", "words"),
    [
        ((), (), "no pod on node n1 waits for 1 nvidia.com/gpu"),
        ((waiting(),), (), "no pod on node n1 waits"),
        (
            (waiting("a"), waiting("b")),
            held("a", main=NONE) + held("b", main=NONE),
            "2 containers could be meant (default/a/main, default/b/main)",
        ),
        (
            (waiting("a", 2),),
            held("a", main=NONE),
            "the only container that waits, default/a/main, asks for 2",
        ),
    ],
    ids=["nobody", "not-listed", "two", "other-count"],
)
def test_find_in_doubt_refuses_and_names_the_candidates(
    pods: tuple[Pod, ...], listed: tuple[HeldContainer, ...], words: str
) -> None:
    with pytest.raises(NoPendingPod) as caught:
        find(pods, listed)
    assert words in str(caught.value)


# -- containers in order ---------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Turn:
    """How far a pod of two init and two app containers is, and whose turn it is."""

    generation: Generation
    rest: tuple[str, ...]
    recorded: tuple[str, ...] = ()
    first: bool = False
    wanted: str
    lender: str


BOXES = [
    Box(name="i", memory_mib=1, kind=INIT),
    Box(name="s", memory_mib=2, kind=ContainerKind.SIDECAR),
    Box(name="a", memory_mib=3),
    Box(name="b", memory_mib=4),
]
SLOT = {box.name: [Part(uuid=uuid(0), memory_mib=box.memory_mib or 0)] for box in BOXES}
NEW = Generation.V2_10
OLD = Generation.V2_7


@pytest.mark.parametrize(
    "turn",
    [
        Turn(generation=NEW, rest=("i", "s", "a", "b"), wanted="i", lender="i"),
        Turn(generation=NEW, rest=("s", "a", "b"), wanted="s", lender="s"),
        Turn(generation=NEW, rest=("a", "b"), first=True, wanted="a", lender="a"),
        Turn(generation=OLD, rest=("a", "b"), wanted="i", lender="a"),
        Turn(
            generation=OLD, rest=("a", "b"), recorded=("i", "s"), first=True, wanted="a", lender="a"
        ),
    ],
    ids=["new-init", "new-sidecar", "new-app", "old-init", "old-app"],
)
def test_find_containers_of_a_pod_come_in_kubelets_order(turn: Turn) -> None:
    pod = reserved_pod("p", BOXES, SLOT, turn.generation)
    slots = BOXES if turn.generation is NEW else BOXES[2:]
    rest = "".join(
        ("".join(map(str, SLOT[box.name])) if box.name in turn.rest else "") + ";" for box in slots
    )
    listed = held("p", s=("x-0",) if turn.first else NONE, a=NONE, b=NONE)
    entries = [an_entry(container=name, device_ids=("x-1",)) for name in turn.recorded]
    found = identity(FakeCluster(noted(pod, rest=rest)), FakeResources(*listed), *entries).find(
        ("x-1",), soon()
    )
    assert (found.container.name, found.lender, found.problem) == (turn.wanted, turn.lender, "")
    assert found.is_borrowing == (turn.wanted != turn.lender)


# -- repeats ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_find_ids_that_a_served_container_holds_are_a_repeat(phase: str) -> None:
    pod = replace(served(waiting()), phase=phase)
    found = identity(FakeCluster(pod), FakeResources(*held("p", main=("x-1",)))).find(
        ("x-1",), soon()
    )
    assert (found.name, found.is_repeat, found.problem) == ("default/p/main", True, "")
    assert [str(grant.uuid) for grant in found.grants] == [uuid(0)]


@pytest.mark.parametrize(
    ("pod", "ids"),
    [
        (served(waiting()), ("y-1",)),
        (served(waiting()), ("x-1", "y-1")),
        (replace(served(waiting()), phase="Succeeded"), ("x-1",)),
        (replace(served(waiting()), annotations={}), ("x-1",)),
    ],
    ids=["other-id", "more-ids", "pod-over", "annotations-gone"],
)
def test_find_ids_that_nobody_holds_so_are_refused(pod: Pod, ids: tuple[str, ...]) -> None:
    found = identity(FakeCluster(pod), FakeResources(*held("p", main=("x-1",))))
    with pytest.raises(NoPendingPod):
        found.find(ids, soon())


def test_find_init_container_again_after_its_pod_runs_is_a_repeat() -> None:
    """As kubelets do that restart under a running pod."""
    boxes = [Box(name="i", memory_mib=1000, kind=INIT), Box(name="main", memory_mib=1000)]
    pod = served(reserved_pod("p", boxes, {"i": ONE, "main": ONE}))
    resources = FakeResources(*held("p", main=("x-1",)))
    found = identity(
        FakeCluster(pod), resources, an_entry(container="i", kind="init", device_ids=("x-1",))
    )
    again = found.find(("x-1",), soon())
    assert (again.container.name, again.is_repeat) == ("i", True)


# -- without kubelet's list ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pods", "owner", "count"),
    [
        ((waiting("a"),), "", 1),
        ((waiting("a"), waiting("b")), "default/b", 1),
        ((waiting("a", annotations={}), waiting("b")), "default/b", 1),
        ((waiting("a"),), "default/other", 1),
        ((waiting("a"),), "default/a", 2),
        ((), "", 1),
        ((served(waiting("a")),), "default/a", 1),
    ],
    ids=[
        "no-lock",
        "two",
        "other-without-reservation",
        "owner-waits-not",
        "other-count",
        "nobody",
        "served",
    ],
)
def test_find_list_unreadable_and_doubt_refuses(
    pods: tuple[Pod, ...], owner: str, count: int
) -> None:
    resources = FakeResources(error=KubeletError("gone"))
    found = identity(FakeCluster(*pods), resources, lock_owner=owner)
    with pytest.raises(NoPendingPod, match="can't be read"):
        found.find(tuple(f"x-{n}" for n in range(count)), soon())


def test_find_init_after_a_sidecar_that_runs_is_not_taken_for_the_app() -> None:
    boxes = [
        Box(name="s", memory_mib=100, kind=ContainerKind.SIDECAR),
        Box(name="i", memory_mib=200, kind=INIT),
        Box(name="a", memory_mib=300),
    ]
    slots = {box.name: [Part(uuid=uuid(0), memory_mib=box.memory_mib or 0)] for box in boxes}
    pod = reserved_pod("p", boxes, slots, Generation.V2_10)
    rest = ";" + "".join(map(str, slots["i"])) + ";" + "".join(map(str, slots["a"])) + ";"
    pod = noted(pod, rest=rest)
    listed = held("p", s=("x-0",), a=NONE)
    found = identity(FakeCluster(pod), FakeResources(*listed)).find(("x-1",), soon())
    assert (found.container.name, found.lender) == ("i", "i")


def test_find_sidecar_without_a_slot_is_never_lent_the_apps() -> None:
    boxes = [Box(name="s", memory_mib=100, kind=ContainerKind.SIDECAR), Box(name="a")]
    pod = reserved_pod("p", boxes, {"a": ONE}, Generation.V2_7)
    found = identity(FakeCluster(pod), FakeResources(*held("p", s=NONE, a=NONE))).find(
        ("x-1",), soon()
    )
    assert found.container.name == "s"
    assert "reserved nothing for this sidecar" in found.problem


# -- before a refusal ------------------------------------------------------------------------------
def test_find_new_pod_behind_one_of_the_same_name_that_asks_for_nothing() -> None:
    cluster = FakeCluster(waiting())
    cluster.shown["default", "p"] = decode_pod(pod_body("p", [Box(cards=0)]))
    others = [decode_pod(pod_body(f"q{n}", [Box(cards=0)])) for n in range(20)]
    cluster.shown |= {("default", pod.name): pod for pod in others}
    listed = [held(name, main=NONE)[0] for name in (*(pod.name for pod in others), "p")]
    cluster.shown["default", "p"] = replace(
        cluster.shown["default", "p"], is_being_deleted=True, phase="Running"
    )
    found = identity(cluster, FakeResources(*listed))
    assert found.find(("x-1",), soon()).name == "default/p/main"
    assert cluster.reads[0] == "default/p"


@pytest.mark.parametrize(
    ("change", "is_noticed"),
    [
        pytest.param("deleted", True, id="deleted"),
        pytest.param("over", True, id="over"),
        pytest.param("replaced", True, id="another-of-that-name"),
        pytest.param("runs", False, id="runs"),
        pytest.param("unreadable", False, id="unreadable"),
    ],
)
def test_holder_that_kubelet_does_not_list_is_asked_about(change: str, is_noticed: bool) -> None:
    holder = served(waiting("old", phase="Running"))
    cluster = FakeCluster(holder, waiting())
    ledger = a_ledger(an_entry("old"))
    live = live_use(cluster, ledger=ledger)
    resources = FakeResources(*held("p", main=NONE))
    identity_of(cluster, resources, live, ledger).find(("x-1",), soon())
    key = (holder.namespace, holder.name)
    if change == "deleted":
        del cluster.actual[key]
    elif change == "over":
        cluster.actual[key] = replace(holder, phase="Succeeded")
    elif change == "replaced":
        cluster.actual[key] = replace(holder, uid="uid-of-another")
    elif change == "unreadable":
        cluster.fail_next(KubeError("no answer", 500))
    assert notice_ended(live, cluster, live.unlisted()) is is_noticed
    assert cluster.reads[-1] == "default/old"


INITS = 100


def calls_for_the_next(served: int) -> int:
    """Functions called for one more of a pod's init containers, `served` of them before it."""
    boxes = [Box(name=f"i{at}", memory_mib=1000, kind=INIT) for at in range(INITS)]
    boxes.append(Box(memory_mib=1000))
    text = layout(boxes, {box.name: ONE for box in boxes})
    cluster, ledger = FakeCluster(), a_ledger()
    live = live_use(cluster, ledger=ledger)
    found = identity_of(cluster, FakeResources(*held("p", main=NONE)), live, ledger)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    for at in range(served):
        ledger.put(an_entry("p", f"i{at}", kind="init", device_ids=("x-1",)))
        left = ";" * (at + 1) + ";".join(text.split(";")[at + 1 :])
        cluster.show(decode_pod(pod_body("p", boxes, reservation(text, to_allocate=left))))
        calls = 0
        sys.setprofile(count)
        candidate = found.find(("x-1",), soon())
        live.cards(CARDS, leave_out="uid-p")
        live.of_pod(candidate.pod, VENDOR)
        sys.setprofile(None)
        assert candidate.container.name == f"i{at + 1}"
    return calls


@shows(
    "N18",
    fault="a pod has hundreds of init containers that each ask for a slice",
    happens="what the earlier ones hold is read once, not again for each of the later ones",
)
def test_find_many_init_containers_are_not_summed_up_again_for_each() -> None:
    assert calls_for_the_next(served=90) < 2 * calls_for_the_next(served=10)
