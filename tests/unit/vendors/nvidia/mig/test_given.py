"""MIG instances of others on record: as they were given, whatever else a text says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import Grant, Pod
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import MigDevice
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.fakes.cards import uuid
from tests.fakes.ledgers import CODEC

DEVICES = st.builds(
    MigDevice,
    uuid=st.text(alphabet="MIG-0123456789abcdef/", min_size=4, max_size=60),
    gpu_instance_id=st.integers(0, 14),
    compute_instance_id=st.integers(0, 7),
)


def held(device: MigDevice | None) -> Grant:
    return Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=4864, cores=15, part=device)


@given(st.lists(DEVICES, min_size=1, max_size=7))
def test_record_has_the_instances_that_were_given(devices: list[MigDevice]) -> None:
    grants = tuple(map(held, devices))
    assert CODEC.decode("NVIDIA", *CODEC.encode("NVIDIA", grants)) == grants


@pytest.mark.parametrize(
    "parts",
    [
        "{",
        "{}",
        '{"given": {}}',
        '{"given": [{"index": 0}]}',
        '{"given": [{"index": 1, "migUUID": "M", "gpuInstanceID": 0, "computeInstanceID": 0}]}',
        '{"given": [{"index": -1, "migUUID": "M", "gpuInstanceID": 0, "computeInstanceID": 0}]}',
    ],
)
def test_text_that_is_none_names_no_instance(parts: str) -> None:
    text, _ = CODEC.encode("NVIDIA", (held(None),))
    assert CODEC.decode("NVIDIA", text, parts) == (held(None),)


def test_annotation_can_not_name_instances_for_several_containers() -> None:
    row = {"index": 0, "migUUID": "MIG-1", "gpuInstanceID": 1, "computeInstanceID": 0}
    forged = {names.POD_MIG_ALLOCATIONS: json.dumps({"given": [row]})}
    pod = Pod(uid="u", namespace="d", name="p", annotations=forged)
    grants = ((held(None),), (held(None),))
    assert nvidia_protocol().with_parts(pod, grants) == grants
