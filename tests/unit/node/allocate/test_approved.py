"""A repeated call may go beyond the limits by what was approved, and by nothing else."""

from __future__ import annotations

import pytest

from hami_node.engine.check import is_covered
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Ask, Grant
from hami_node.node.allocate.terms import Candidate, approved_grants, repeat_of
from hami_node.record.ledger import ResizeNote
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.resize import Approval, encode_approval
from tests.fakes.cards import card, uuid
from tests.fakes.ledgers import an_entry
from tests.fakes.pods import Box, pod_body, reservation

ASK = Ask(vendor=NVIDIA, count=1, memory_mib=1000, cores=10)
LARGER = f"{uuid(0)},NVIDIA,3000,30:;"


def candidate(
    held: str = LARGER, approved: str = "", uid: str = "uid-p", note: ResizeNote | None = None
) -> Candidate:
    """What kubelet asks for again, of a container that holds this by the record."""
    notes = reservation(held, to_allocate=";")
    if approved:
        approval = Approval(id="a-1", uid=uid, vendor="NVIDIA", grants={"main": approved})
        notes[names.POD_RESIZE_APPROVED] = encode_approval(approval)
    pod = decode_pod(pod_body("p", [Box(memory_mib=1000, cores=10)], notes, phase="Running"))
    protocol = nvidia_protocol()
    entry = an_entry("p", grants=held, resize=note)
    return repeat_of(pod, pod.containers[0], protocol.held_by(pod), entry)


def is_refused(asked: Candidate, used_mib: int = 0, beside_mib: int = 0) -> bool:
    """Whether it is, where other pods use so much of the card, and its own one beside it."""
    cards = {uuid(0): DeviceUsage(device=card(0), memory_used_mib=used_mib)}
    beside = Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=beside_mib, cores=1)
    own = PodGrants(containers=(asked.grants, (beside,) if beside_mib else ()))
    approved = approved_grants(nvidia_protocol(), asked, cards, own)
    return is_covered(cards, asked.grants, ASK, approved) is not None


def test_note_of_the_ledger_is_the_proof() -> None:
    assert is_refused(candidate())
    assert not is_refused(candidate(note=ResizeNote(id="a-1")))
    assert not is_refused(candidate(note=ResizeNote(id="a-1", before=an_entry().grants)))


@pytest.mark.parametrize(
    ("approved", "uid", "used_mib", "refused"),
    [
        (LARGER, "uid-p", 0, False),
        (LARGER, "uid-p", 40_000, True),  # others hold the card by now
        (LARGER, "uid-q", 0, True),
        (f"{uuid(0)},NVIDIA,2999,30:;", "uid-p", 0, True),
        (f"{uuid(0)},NVIDIA,4000,40:;", "uid-p", 0, True),  # exactly, not up to
        (f"{uuid(1)},NVIDIA,3000,30:;", "uid-p", 0, True),
        ("nonsense", "uid-p", 0, True),
    ],
)
def test_without_the_note_the_approval_counts_as_far_as_there_is_room(
    approved: str, uid: str, used_mib: int, *, refused: bool
) -> None:
    assert is_refused(candidate(approved=approved, uid=uid), used_mib) is refused


@pytest.mark.parametrize(("beside_mib", "refused"), [(1000, False), (40_000, True)])
def test_containers_of_one_pod_do_not_share_the_room_twice(
    beside_mib: int, *, refused: bool
) -> None:
    assert is_refused(candidate(approved=LARGER), beside_mib=beside_mib) is refused
