from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.ledgers import a_ledger, an_entry
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, Generation, Part, reserved_pod
from tests.unit.node.holdings.uses import VENDOR, a_pod, listed, live_use, used

INIT = ContainerKind.INIT


@pytest.mark.parametrize(
    "changes",
    [
        {nvidia_names.POD_ALLOCATED: None},
        {nvidia_names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1,0:;"},
        {nvidia_names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,99999,100:;"},
        {nvidia_names.POD_TO_ALLOCATE: f"{uuid(0)},NVIDIA,1000,0:;"},
        {nvidia_names.POD_ALLOCATED: "rubbish,,:"},
    ],
    ids=["removed", "shrunk", "grown", "put-back", "broken"],
)
def test_claims_what_was_served_stays_whatever_its_owner_writes(
    changes: dict[str, str | None],
) -> None:
    pod = a_pod(resource_version="5")
    cluster = FakeCluster(pod)
    live = live_use(cluster)
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]
    edited = {key: value for key, value in {**pod.annotations, **changes}.items() if value}
    cluster.show(replace(pod, annotations=edited, resource_version="6"))
    assert used(live) == [1000, 0]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (nvidia_names.POD_ALLOCATED, "rubbish,;"),
        (nvidia_names.POD_TO_ALLOCATE, "GPU-x,NVIDIA,1,1:;"),
        (nvidia_names.POD_TO_ALLOCATE, f"{uuid(0)},NVIDIA,9,9:;"),
    ],
    ids=["unreadable", "foreign-rest", "other-amount"],
)
def test_claims_annotations_broken_later_keep_what_was_held(key: str, text: str) -> None:
    good = a_pod()
    cluster = FakeCluster(good)
    live = live_use(cluster)
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]
    cluster.show(replace(good, annotations={**good.annotations, key: text}))
    assert used(live) == [1000, 0]


def test_claims_unclear_from_the_start_counts_in_full() -> None:
    pod = a_pod()
    notes = {**pod.annotations, nvidia_names.POD_TO_ALLOCATE: "GPU-x,NVIDIA,1,1:;"}
    live = live_use(FakeCluster(replace(pod, annotations=notes)))
    live.settle([listed("p", "x-1")])
    assert used(live) == [1000, 0]


def test_claims_init_container_without_a_slot_holds_what_it_borrowed() -> None:
    boxes = [Box(name="i", memory_mib=500, kind=INIT), Box(name="m", memory_mib=3000)]
    pod = reserved_pod("p", boxes, {"m": [Part(uuid=uuid(1), memory_mib=3000)]}, Generation.V2_7)
    assert used(live_use(FakeCluster(pod))) == [0, 0]
    loan = an_entry(container="i", kind="init", lender="m", grants=f"{uuid(1)},NVIDIA,500,0:;")
    live = live_use(FakeCluster(pod), ledger=a_ledger(loan))
    assert used(live) == [0, 500]
    assert not any(live.of_pod(pod, VENDOR).containers), (
        "the app container itself was not served yet"
    )
