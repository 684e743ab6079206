from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
)
from hami_node.vendors.nvidia.mig.codec import (
    MigAllocation,
    decode_mig_allocations,
    encode_mig_allocations,
    joined_uuid,
    readable_allocations,
    split_uuid,
    with_devices,
    with_parts,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigDevice,
    MigInstance,
    MigPlacement,
    TemplateSlot,
)

RESERVED = MigAllocation(
    container_index=0,
    device_index=0,
    uuid=Uuid("GPU-1"),
    instance=MigInstance(profile="1g.24gb", placement=MigPlacement(start=9, size=3)),
)


def row(**changes: object) -> dict[str, object]:
    base: dict[str, object] = json.loads(encode_mig_allocations([RESERVED]) or "")[0]
    return {key: value for key, value in (base | changes).items() if value is not None}


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row(), row()], id="one grant twice"),
        pytest.param([row(placement=None)], id="no placement"),
        pytest.param([row(placement={"start": 0, "size": 0})], id="no size"),
        pytest.param([row(placement={"start": -1, "size": 1})], id="start below 0"),
        pytest.param([row(profile=None)], id="no profile"),
        pytest.param([row(gpuUUID="")], id="no card"),
        pytest.param([row(containerIndex=-1)], id="container below 0"),
        pytest.param([row(deviceIndex=-1)], id="grant below 0"),
        pytest.param([row(migUUID="MIG-1")], id="UUID without instances"),
        pytest.param([row(gpuInstanceID=1, computeInstanceID=1)], id="instances without UUID"),
        pytest.param([row(migUUID="MIG-1", gpuInstanceID=1)], id="one instance number"),
        pytest.param(
            [row(migUUID="MIG-1", gpuInstanceID=-1, computeInstanceID=0)], id="instance below 0"
        ),
        pytest.param({}, id="an object"),
        pytest.param("x", id="a word"),
    ],
)
def test_decode_mig_allocations_damaged_text_is_a_wire_error(rows: object) -> None:
    with pytest.raises(WireError, match="vgpu-mig-allocations"):
        decode_mig_allocations(json.dumps(rows))


NUMBERS = st.integers(0, 99)
ALLOCATIONS = st.lists(
    st.builds(
        MigAllocation,
        container_index=NUMBERS,
        device_index=NUMBERS,
        uuid=st.text(st.characters(codec="utf-8"), min_size=1, max_size=5).map(Uuid),
        instance=st.builds(
            MigInstance,
            profile=st.sampled_from(["1g.5gb", "7g.80gb"]),
            placement=st.builds(MigPlacement, start=NUMBERS, size=st.integers(1, 8)),
        ),
        device=st.none()
        | st.builds(
            MigDevice,
            uuid=st.just("MIG-1"),
            gpu_instance_id=NUMBERS,
            compute_instance_id=NUMBERS,
        ),
    ),
    max_size=4,
    unique_by=lambda row: (row.container_index, row.device_index),
)


@given(ALLOCATIONS)
def test_encode_mig_allocations_decodes_to_the_same_sorted(rows: list[MigAllocation]) -> None:
    ordered = sorted(rows, key=lambda row: (row.container_index, row.device_index))

    assert decode_mig_allocations(encode_mig_allocations(rows) or "") == tuple(ordered)


@given(
    st.text(max_size=60)
    | st.lists(
        st.dictionaries(st.sampled_from([*row(), "migUUID"]), st.none() | NUMBERS | st.text())
    )
)
def test_readable_allocations_of_anything_are_one_a_grant(value: object) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    rows = readable_allocations(text)
    assert len({(row.container_index, row.device_index) for row in rows}) == len(rows)


DEVICE = MigDevice(uuid="MIG-2", gpu_instance_id=0, compute_instance_id=0)
THEIRS = '{ "deviceIndex" : 1,"gpuUUID":"GPU-1","profile":"2g","placement":{"size":1},"x":[1.50]}'


def test_with_devices_names_the_containers_rows_and_keeps_all_else_to_the_byte() -> None:
    ours = json.dumps(row(note="theirs too", migUUID="MIG-1", gpuInstanceID=7, computeInstanceID=1))
    text = with_devices(f"[{THEIRS},{ours}]", 0, {0: DEVICE})

    assert text.startswith(f"[{THEIRS},")
    assert json.loads(text)[1] == json.loads(ours) | {
        "migUUID": "MIG-2",
        "gpuInstanceID": 0,
        "computeInstanceID": 0,
    }
    assert with_devices(text, 0, {0: DEVICE}) == text


@pytest.mark.parametrize(
    ("container", "index"), [(1, 0), (0, 3)], ids=["other container", "other grant"]
)
def test_with_devices_without_such_a_row_changes_nothing(container: int, index: int) -> None:
    text = f" [ {THEIRS} ] "

    assert with_devices(text, container, {index: DEVICE}) == text


@given(ALLOCATIONS, st.sampled_from([0, 1]))
def test_with_devices_decodes_to_the_same_rows_with_identity(
    rows: list[MigAllocation], container: int
) -> None:
    text = encode_mig_allocations(rows) or "[]"
    wanted = tuple(
        replace(it, device=DEVICE)
        if (it.container_index, it.device_index) == (container, 0)
        else it
        for it in decode_mig_allocations(text)
    )

    assert decode_mig_allocations(with_devices(text, container, {0: DEVICE})) == wanted


def grant(uuid: str, part: TemplateSlot | MigInstance | None = None) -> Grant:
    return Grant(uuid=Uuid(uuid), vendor=NVIDIA, memory_mib=9728, cores=14, part=part)


def test_template_slot_round_trip() -> None:
    slot = TemplateSlot(template=1, slot=0)

    assert joined_uuid(grant("GPU-9192ed3d", slot)) == "GPU-9192ed3d[1-0]"
    assert split_uuid("GPU-9192ed3d[1-0]") == ("GPU-9192ed3d", slot)


@pytest.mark.parametrize("part", [None, RESERVED.instance], ids=["plain", "2.10"])
def test_joined_uuid_of_other_grants_is_the_card(part: MigInstance | None) -> None:
    assert joined_uuid(grant("GPU-1", part)) == "GPU-1"


@pytest.mark.parametrize(
    "uuid",
    ["", "GPU-1", "GPU-1[]", "GPU-1[1]", "[1-0]", "GPU-1[1-0]x", "GPU-1[a-b]", "A[1-0][2-0]"],
)
def test_template_slot_other_texts_are_plain_uuids(uuid: str) -> None:
    assert split_uuid(uuid) == (uuid, None)


def test_with_parts_takes_the_instance_out_of_the_uuid_or_the_allocations() -> None:
    written = ((grant("GPU-2[1-3]"), grant("GPU-3")), (), (grant("GPU-1"),))
    allocations = [replace(RESERVED, container_index=2)]

    assert with_parts(written, allocations) == (
        (grant("GPU-2", TemplateSlot(template=1, slot=3)), grant("GPU-3")),
        (),
        (grant("GPU-1", RESERVED.instance),),
    )


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"container_index": 1}, id="another container"),
        pytest.param({"device_index": 1}, id="another grant"),
        pytest.param({"uuid": Uuid("GPU-2")}, id="another card"),
    ],
)
def test_with_parts_leaves_grants_alone_that_no_allocation_names(changes: dict[str, Any]) -> None:
    written = ((grant("GPU-1"),),)

    assert with_parts(written, [replace(RESERVED, **changes)]) == written
