"""Who may run with which cards, who may hide a limit, and who uses parts of divided cards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.model import Device, Pod
from hami_node.node.usage import CARD_UNKNOWN, beyond_record, holders_of, uses_of_parts
from hami_node.ports import ContainerUse, HostUse, PartUse, UnreadUse
from hami_node.record.ledger import Entry
from hami_node.vendors.divided import DividedCards
from hami_node.vendors.on_node.usage import Holder
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import card, uuid
from tests.fakes.divided_node import POD, DividedNode, own_part
from tests.fakes.ledgers import an_entry

CARDS = tuple(card(index) for index in range(4))
TWO_CARDS = f"{uuid(2)},NVIDIA,1000,0:{uuid(1)},NVIDIA,1000,0:;"


def pod(name: str = "p", phase: str = "Running", **ended: int) -> Pod:
    """A pod whose named containers have ended with these codes."""
    statuses = [
        {"name": container, "state": {"terminated": {"exitCode": code}}}
        for container, code in ended.items()
    ]
    raw: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    return decode_pod(raw)


def found(
    *entries: Entry, pods: tuple[Pod, ...] = (), cards: tuple[Device, ...] = CARDS
) -> tuple[list[Holder], list[UnreadUse]]:
    return holders_of(
        entries, {item.uid: item for item in pods}, {item.uuid: item for item in cards}
    )


def names(*entries: Entry, pods: tuple[Pod, ...] = ()) -> list[str]:
    return [f"{holder.pod}/{holder.container}" for holder in found(*entries, pods=pods)[0]]


def test_cards_are_in_the_order_in_which_the_container_sees_them() -> None:
    (holder,), _ = found(an_entry(grants=TWO_CARDS))
    assert [item.index for item in holder.cards] == [1, 2]
    assert holder.folder_name == "uid-p_main"


def test_ended_containers_and_pods_are_left_out() -> None:
    entries = an_entry("a"), an_entry("a", "side"), an_entry("b"), an_entry("c")
    pods = pod("a", side=137), pod("b", "Failed"), pod("c", "Pending")
    assert names(*entries, pods=pods) == ["a/main", "c/main"]


def test_container_that_waits_to_be_started_again_is_left_out() -> None:
    raw: dict[str, Any] = {
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {
                    "name": "main",
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                    "lastState": {"terminated": {"exitCode": 0}},
                },
                {"name": "side", "state": {"running": {}}, "lastState": {"terminated": {}}},
            ],
        },
    }
    waiting = decode_pod(raw)
    assert not any(container.is_terminated_ok for container in waiting.containers)
    assert names(an_entry("a"), an_entry("a", "side"), pods=(waiting,)) == ["a/side"]


def test_entry_of_an_unknown_container_has_no_folder() -> None:
    assert names(an_entry("p", "")) == []


def test_part_of_a_divided_card_has_no_limiter() -> None:
    parts = '[{"container":"main","devices":[{"uuid":"x"}]}]'
    text = f"{uuid(0)}[0-1],NVIDIA,1000,0:;"
    holders, unread = found(an_entry(grants=text, parts=parts))
    assert (holders, [lost.reason for lost in unread]) in (([], []), ([], [CARD_UNKNOWN]))


def test_card_that_the_node_does_not_offer_leaves_the_order_open() -> None:
    holders, unread = found(an_entry(grants=TWO_CARDS), cards=CARDS[:2])
    assert [(holder.pod, holder.cards) for holder in holders] == [("p", ())]
    assert [(lost.pod, lost.reason) for lost in unread] == [("p", CARD_UNKNOWN)]


def test_entry_that_can_not_be_read_is_left_out() -> None:
    assert names(an_entry(grants="x"), an_entry("b")) == ["b/main"]


@pytest.mark.parametrize(
    ("limit_bytes", "position", "reason", "is_beyond"),
    [
        (8000 << 20, 0, "", False),
        (1, 0, "", False),
        ((8000 << 20) + 1, 0, "", True),
        (None, 0, "", True),
        (0, 0, "", True),
        (1, 1, "", True),  # it has its card behind others
        (1, 0, "impossible", True),  # it may hide its limits
    ],
)
def test_container_that_may_have_more_in_force_than_on_record_is_told(
    limit_bytes: int | None, position: int, reason: str, *, is_beyond: bool
) -> None:
    cards = {item.uuid: item for item in CARDS}
    entry = an_entry(grants=f"{uuid(0)},NVIDIA,8000,20:;")
    use = ContainerUse(
        namespace="default", pod="p", container="main", uuid=uuid(0), index=0, position=position,
        memory_bytes=7, context_bytes=1, module_bytes=2, data_bytes=4, core_percent=30,
        limit_bytes=limit_bytes, core_limit_percent=None, last_kernel_s=None,
    )  # fmt: skip
    unread = UnreadUse(namespace="default", pod="p", container="main", reason=reason)
    found = beyond_record((entry,), cards, (use,), (unread,) if reason else ())
    assert found == ({entry.key} if is_beyond else set())


# -- parts of divided cards ------------------------------------------------------------------------
OURS = own_part(7, 0)
READ = PartUse(
    uuid=OURS.uuid, numbers=(7, 0), memory_bytes=1000, limit_bytes=5000, processes=frozenset({4, 5})
)
NAMES = {POD.uid: (POD.namespace, POD.name)}


@pytest.fixture
def divided(tmp_path: Path) -> DividedCards:
    return DividedNode(tmp_path).owner.divided()


def uses(divided: DividedCards, *parts: PartUse) -> Iterator[ContainerUse]:
    return uses_of_parts({uuid(0): HostUse(parts=parts)}, divided, NAMES)


def test_memory_of_the_instance_is_its_containers(divided: DividedCards) -> None:
    (use,) = uses(divided, READ)
    assert (use.namespace, use.pod, use.container) == ("ml", "train", "main")
    assert (use.uuid, use.index, use.part) == (uuid(0), 0, OURS.uuid)
    assert (use.memory_bytes, use.limit_bytes, use.processes) == (1000, 5000, 2)
    assert (use.core_percent, use.core_limit_percent, use.last_kernel_s) == (None, None, None)


@pytest.mark.parametrize(
    "read",
    [
        replace(READ, uuid="MIG-other"),
        replace(READ, numbers=(6, 0)),
        replace(READ, memory_bytes=None),
        replace(READ, uuid="MIG-00000008-0000-5000-8000-000000000000", numbers=(8, 0)),
    ],
    ids=["number-used-again", "other-number", "not-told", "of-somebody-else"],
)
def test_what_is_not_certainly_a_containers_is_nobodys(
    divided: DividedCards, read: PartUse
) -> None:
    assert list(uses(divided, read)) == []


def test_pod_that_nobody_knows_has_no_use(divided: DividedCards) -> None:
    host = {uuid(0): HostUse(parts=(READ,))}
    assert list(uses_of_parts(host, divided, {})) == []
