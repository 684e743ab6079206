"""What a request means for the cards of a pod, whatever wrote its reservation."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.engine.filters import Reason
from hami_node.engine.objection import Amounts, Objection
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.errors import WireError
from hami_node.model import ContainerKind, Pod, Uuid
from hami_node.vendors.holding import holding_of
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.resizing import (
    is_ready,
    is_undecided,
    is_withdrawn,
    limits_of,
    no_room,
    resizing_of,
    with_larger,
    with_slots,
)
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.resize import Approval, decision_id, decode_request, encode_approval
from tests.acme.protocol import acme_protocol
from tests.fakes.cards import card, uuid
from tests.fakes.pods import Box, Generation, Part, layout, pod_body, reservation

NVIDIA = nvidia_protocol(NvidiaSettings())
INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR
BOXES = (
    Box(name="i", memory_mib=500, kind=INIT),
    Box(name="plain", cards=0),
    Box(name="x", memory_mib=1000, cores=10),
    Box(name="y", cards=2, memory_mib=2000),
)
HELD = {
    "i": [Part(uuid=uuid(0), memory_mib=500)],
    "x": [Part(uuid=uuid(0), memory_mib=1000, cores=10)],
    "y": [Part(uuid=uuid(0), memory_mib=2000), Part(uuid=uuid(1), memory_mib=2000)],
}


def pod_of(generation: Generation = Generation.V2_10, more: Mapping[str, str] | None = None) -> Pod:
    notes = reservation(layout(BOXES, HELD, generation), to_allocate=";;;;") | dict(more or {})
    return decode_pod(pod_body("p", BOXES, notes, phase="Running"))


def asked(text: str, pod: Pod | None = None) -> dict[str, list[tuple[int, int]]]:
    found = resizing_of(pod or pod_of(), decode_request(text), [acme_protocol(), NVIDIA])
    return {
        name: [(grant.memory_mib, grant.cores) for grant in grants]
        for name, grants in found.grants.items()
    }


@pytest.mark.parametrize(
    "generation", [Generation.V2_7, Generation.V2_10, Generation.V2_10_COMPACT]
)
def test_slots_of_other_containers_stay_to_the_byte(generation: Generation) -> None:
    pod = pod_of(generation)
    wanted = resizing_of(
        pod, decode_request('{"y": {"gpumem": 3000}, "x": {"gpucores": 5}}'), [NVIDIA]
    )
    text = with_larger(pod, wanted)
    assert text is not None
    before = pod.annotations[nvidia_names.POD_ALLOCATED]
    assert text == before.replace(",2000,", ",3000,")  # x shrinks: it counts as it is
    exact = with_slots(NVIDIA, pod, wanted.grants)
    assert exact == before.replace(",2000,", ",3000,").replace(",1000,10", ",1000,5")
    assert with_slots(NVIDIA, pod, {"plain": wanted.grants["x"]}) is None


def test_amounts_are_per_card_and_replace_only_what_is_named() -> None:
    assert asked('{"y": {"gpumem": 3000}}') == {"y": [(3000, 0), (3000, 0)]}
    assert asked('{"x": {"gpumem": 1, "gpucores": 100}}') == {"x": [(1, 100)]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"i": {"gpumem": 1}}', "an init container has ended"),
        ('{"plain": {"gpumem": 1}}', "holds no cards"),
        ('{"z": {"gpumem": 1}}', "no such container"),
        ('{"x": {"memory": 1}}', "write gpumem and gpucores only"),
        ('{"x": {"gpucores": 101}}', "100 at most"),
    ],
)
def test_what_can_not_be_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(WireError, match=why):
        asked(text)


def test_part_of_a_divided_card_keeps_its_size() -> None:
    text = f"{uuid(0)}[0-1],NVIDIA,4864,14:;"
    pod = decode_pod(pod_body("p", [Box()], reservation(text, to_allocate=";"), phase="Running"))
    with pytest.raises(WireError, match="fixed size"):
        asked('{"main": {"gpumem": 1}}', pod)


def test_container_without_a_memory_limit_has_none_to_change() -> None:
    text = f"{uuid(0)},NVIDIA,0,0:;"
    pod = decode_pod(pod_body("p", [Box()], reservation(text, to_allocate=";"), phase="Running"))
    with pytest.raises(WireError, match="no memory limit"):
        asked('{"main": {"gpumem": 1}}', pod)


def test_request_is_open_until_it_is_approved_or_refused() -> None:
    text = '{"x": {"gpumem": 1}}'
    pod = pod_of(more={names.POD_RESIZE: text})
    assert is_undecided(pod)
    assert is_ready(pod, [NVIDIA])
    id_ = decision_id(text, "7")
    approval = Approval(id=id_, uid="uid-p", vendor="NVIDIA", grants={})
    approved = {names.POD_RESIZE_APPROVED: encode_approval(approval)}
    refused = {names.POD_RESIZE_STATE: f'{{"id":"{id_}","state":"refused"}}'}
    done = {names.POD_RESIZE_STATE: f'{{"id":"{id_}","state":"done"}}'}
    for decided in (approved, refused):
        assert not is_undecided(pod_of(more={names.POD_RESIZE: text} | decided))
        assert is_undecided(pod_of(more={names.POD_RESIZE: text + " "} | decided))
    assert is_undecided(pod_of(more={names.POD_RESIZE: text} | done))  # without an approval: forged
    assert is_withdrawn(pod_of(more=refused))
    assert not is_withdrawn(pod_of(more=done))
    assert not is_withdrawn(pod_of())


def test_request_of_a_pod_that_is_not_served_is_not_ready() -> None:
    text = layout(BOXES, HELD)
    waits = pod_of(more={names.POD_RESIZE: "{}", nvidia_names.POD_TO_ALLOCATE: text})
    assert is_undecided(waits)
    assert not is_ready(waits, [NVIDIA])


def test_quota_counts_at_least_the_limits() -> None:
    pod = pod_of()
    holding = holding_of(pod, [NVIDIA])
    assert holding is not None
    cards = {card(at).uuid: DeviceUsage(device=card(at)) for at in (0, 1)}
    small = resizing_of(pod, decode_request('{"x": {"gpumem": 7, "gpucores": 1}}'), [NVIDIA])
    index = [item.name for item in pod.containers].index("x")
    held = holding.grants
    shrunk = PodGrants(
        containers=(*held.containers[:index], small.grants["x"], *held.containers[index + 1 :]),
        kinds=held.kinds,
    )
    counted = limits_of(pod, shrunk, cards, [NVIDIA]).containers[index][0]
    assert (counted.memory_mib, counted.cores) == (1000, 10)
    assert limits_of(pod, shrunk, {}, [NVIDIA]) == shrunk


def test_usage_without_a_pod_is_that_of_the_others() -> None:
    usage = NodeUsage([card(0)])
    grants = holding_of(pod_of(), [NVIDIA])
    assert grants is not None
    usage.add("a", grants.grants)
    before = usage.cards[uuid(0)]
    usage.add("b", grants.grants)
    assert usage.without("b")[uuid(0)] == before
    assert usage.cards[uuid(0)].memory_used_mib == 2 * before.memory_used_mib
    assert usage.without("c") == usage.cards


def test_objection_in_words_has_card_reason_and_numbers() -> None:
    objection = Objection(
        reason=Reason.TOO_FEW_CORES,
        uuid=Uuid("GPU-1"),
        index=3,
        amounts=Amounts(left=5, asked=7, unit="percent"),
        detail="hot",
    )
    assert no_room(objection) == (
        "card 3 (GPU-1) has too few free cores (hot): 5 % are left for this pod, it would hold 7 %"
    )
