"""Values that users of HAMi 2.4 to 2.10 found on their own nodes and pods."""

from __future__ import annotations

import pytest

from hami_node.model import Container, ContainerGrants, ContainerKind, Pod
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.nvidia.mig.codec import decode_mig_allocations, split_uuid
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.wire.grants import decode_grants
from hami_node.wire.slots import SlotMismatch, assign_slots

V100 = (
    "GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
    "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:"
)
RTX_2080_TI = (
    "GPU-61101651-d822-7cac-e1f7-bd627a4b7d5a,10,11264,100,NVIDIA-NVIDIA GeForce RTX 2080 Ti,0,"
    "false:GPU-271b488e-6801-ad8b-6811-bbfebebb285e,10,22528,100,NVIDIA-NVIDIA GeForce RTX 2080 Ti,"
    "0,false:"
)
H20 = (
    "GPU-3d8e41ef-48bf-f981-f119-e850eafb2e4a,10,143771,100,NVIDIA-NVIDIA H20-3e,1,true,3,"
    "hami-core:"
    "GPU-6e869947-34aa-ce8b-8861-c04986721746,10,143771,100,NVIDIA-NVIDIA H20-3e,1,true,4,"
    "hami-core:"
    "GPU-5e4890bf-3b47-28b9-0aab-03a11daafcee,10,143771,100,NVIDIA-NVIDIA H20-3e,0,true,0,"
    "hami-core:"
)
H20_MIG = (
    "GPU-40c0923a-6172-5f3c-d299-4f6eaf218ad5,10,258787,500,NVIDIA-NVIDIA H20-3e,0,true,1,mig:"
)
A10_JSON = (
    '[{"id":"GPU-ae833152-60ad-7e72-33e8-cba2c02d7414","index":2,"count":10,"devmem":23028,'
    '"devcore":100,"type":"NVIDIA A10","mode":"hami-core","health":true,"devicepairscore":{}}]'
)
V100_JSON = (
    '[{"id":"GPU-00552014-5c87-89ac-b1a6-7b53aa24b0ec","count":10,"devmem":32768,"devcore":100,'
    '"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true},'
    '{"id":"GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448","index":1,"count":10,"devmem":32768,'
    '"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB","numa":1,"mode":"hami-core","health":true}]'
)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        pytest.param(V100, [(0, 32768, 0, True), (0, 32768, 0, True)], id="2.3: 7 fields"),
        pytest.param(
            RTX_2080_TI, [(0, 11264, 0, False), (0, 22528, 0, False)], id="2.4: all unhealthy"
        ),
        pytest.param(
            H20,
            [(3, 143771, 1, True), (4, 143771, 1, True), (0, 143771, 0, True)],
            id="2.7: indexes not in order",
        ),
        pytest.param(H20_MIG, [(1, 258787, 0, True)], id="2.6: scaled, in MIG mode"),
        pytest.param(A10_JSON, [(2, 23028, 0, True)], id="2.9: JSON"),
        pytest.param(V100_JSON, [(0, 32768, 1, True), (1, 32768, 1, True)], id="JSON, no index 0"),
    ],
)
def test_register_of_a_real_node(text: str, cards: list[tuple[int, int, int, bool]]) -> None:
    found = decode_register(text)

    assert [(card.index, card.memory_mib, card.numa, card.healthy) for card in found] == cards
    assert decode_register(f" {text}\n") == found


def decode(text: str) -> tuple[ContainerGrants, ...]:
    return decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)


def pod(inits: int, apps: int, sidecars: int = 0) -> Pod:
    kinds = [(ContainerKind.INIT, "init")] * inits + [(ContainerKind.SIDECAR, "sidecar")] * sidecars
    kinds += [(ContainerKind.APP, "app")] * apps
    return Pod(
        uid="u",
        namespace="default",
        name="p",
        containers=tuple(
            Container(name=f"{k}-{i}", kind=kind) for i, (kind, k) in enumerate(kinds)
        ),
    )


G, H = "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71", "GPU-37dea325-9a7c-6272-6c5e-1a247c8f7807"


def test_reservation_of_another_shape_gives_no_card_to_anybody() -> None:
    text = "GPU-1cb8edae:1,2,8,17,12,6,13,10,NVIDIA,NVIDIA A100 80GB PCIe"
    ((grant,),) = decode(text)

    assert grant.vendor == "2"
    assert isinstance(assign_slots(pod(0, 1), {"app-0": 8}, ((grant,),), ()), SlotMismatch)


def test_mig_grants_of_2_5_name_template_and_instance() -> None:
    uuid = "GPU-08d63fe8-4a59-b17e-de5e-04e5c1ce5c41"
    ((grant,),) = decode(f"{uuid}[2-0],NVIDIA,20480,0:;")

    assert split_uuid(grant.uuid) == (uuid, TemplateSlot(template=2, slot=0))


def test_mig_allocations_of_2_10_with_the_made_device() -> None:
    (found,) = decode_mig_allocations(
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288",'
        '"profile":"1g.24gb","placement":{"start":9,"size":3},'
        '"migUUID":"MIG-a5fa6120-f6fa-51b6-9820-a42112640629","gpuInstanceID":6,'
        '"computeInstanceID":0}]'
    )

    assert found.instance == MigInstance(profile="1g.24gb", placement=MigPlacement(start=9, size=3))
    assert found.device is not None
    assert found.device.gpu_instance_id == 6
