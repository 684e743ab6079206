"""Values that users of HAMi 2.4 to 2.10 found on their own nodes and pods."""

from __future__ import annotations

import pytest

from hami_node.errors import WireError
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
from hami_node.wire.handshake import HandshakeKind, decode_handshake
from hami_node.wire.lock import decode_lock
from hami_node.wire.register import decode_pair_scores
from hami_node.wire.slots import SlotMap, SlotMismatch, assign_slots

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


@pytest.mark.parametrize(
    ("text", "kind", "is_mark"),
    [
        (
            "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895",
            HandshakeKind.REPORTED,
            False,
        ),
        ("Reported_2025.07.15 09:58:39", HandshakeKind.REPORTED, False),
        ("Requesting_2024.05.20 11:44:46", HandshakeKind.REQUESTING, True),
        ("Requesting_2025-08-07 11:28:25", HandshakeKind.REQUESTING, False),
        ("Deleted_2025-08-03 19:32:07", HandshakeKind.DELETED, False),
    ],
)
def test_handshake_of_a_real_node(text: str, kind: HandshakeKind, is_mark: bool) -> None:
    found = decode_handshake(text, nvidia_names.NODE_HANDSHAKE)

    assert (found.kind, found.is_mark_of_2_4) == (kind, is_mark)
    assert found.time_s is not None


@pytest.mark.parametrize(
    ("text", "pod"),
    [
        ("2024-05-13T13:04:17Z", ("", "")),
        (
            "2025-10-20T03:07:02Z,jingyu-test,gputest-6c77bb77f8-gvtzc",
            ("jingyu-test", "gputest-6c77bb77f8-gvtzc"),
        ),
        ("2026-06-14T15:05:03Z,default,gang-pod-1", ("default", "gang-pod-1")),
    ],
)
def test_lock_of_a_real_node(text: str, pod: tuple[str, str]) -> None:
    found = decode_lock(text)

    assert (found.namespace, found.name) == pod
    assert found.time_s is not None


def test_pair_scores_of_a_simulated_node_and_of_one_that_is_off() -> None:
    first, second = (f"GPU-12345678-1234-1234-1234-12345678000{i}" for i in (0, 1))

    key = nvidia_names.NODE_PAIR_SCORES
    assert decode_pair_scores(f'[{{"uuid":"{first}","score":{{"{second}":50}}}}]', key) == {
        first: {second: 50}
    }
    assert decode_pair_scores("", key) == {}


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


@pytest.mark.parametrize(
    ("spec", "counts", "allocated", "left", "granted", "waiting"),
    [
        pytest.param(
            pod(0, 1),
            {"app-0": 1},
            f"{G},NVIDIA,5000,0:;",
            ";",
            {"app-0": [G]},
            set(),
            id="one container, finished",
        ),
        pytest.param(
            pod(0, 1),
            {"app-0": 2},
            f"{G},NVIDIA,3000,30:{H},NVIDIA,3000,30:;",
            ";",
            {"app-0": [G, H]},
            set(),
            id="two cards",
        ),
        pytest.param(
            pod(0, 2),
            {"app-0": 1},
            f"{G},NVIDIA,1000,10:;,,0,0:;",
            f"{G},NVIDIA,1000,10:;,,0,0:;",
            {"app-0": [G]},
            {"app-0"},
            id="2.4: second container empty",
        ),
        pytest.param(
            pod(0, 5),
            {"app-1": 1},
            f"{G},NVIDIA,1000,0:;;,,0,0:;,,0,0:;,,0,0:;",
            f"{G},NVIDIA,1000,0:;;,,0,0:;,,0,0:;,,0,0:;",
            {"app-1": [G]},
            {"app-1"},
            id="five containers, as stored",
        ),
        pytest.param(
            pod(0, 5),
            {"app-1": 1},
            f",,0,0:;{G},NVIDIA,1000,0:;,,0,0:;,,0,0:;,,0,0:;",
            f",,0,0:;{G},NVIDIA,1000,0:;,,0,0:;,,0,0:;,,0,0:;",
            {"app-1": [G]},
            {"app-1"},
            id="five containers, as asked for",
        ),
        pytest.param(
            pod(0, 5),
            {"app-1": 1},
            f";{G},NVIDIA,1000,0:;;;;",
            f";{G},NVIDIA,1000,0:;;;;",
            {"app-1": [G]},
            {"app-1"},
            id="five containers, empty slots",
        ),
        pytest.param(
            pod(1, 1),
            {"app-1": 1},
            f";{G},NVIDIA,6144,30:;",
            ";;;",
            {"app-1": [G]},
            set(),
            id="2.9: leading init slot, served",
        ),
        pytest.param(
            pod(2, 1),
            {"app-2": 2},
            f";;{G},NVIDIA,1,1:{H},NVIDIA,1,1:;",
            f";;{G},NVIDIA,1,1:{H},NVIDIA,1,1:;",
            {"app-2": [G, H]},
            {"app-2"},
            id="2.9: two init slots",
        ),
        pytest.param(
            pod(2, 1),
            {"app-2": 2},
            f"{G},NVIDIA,1,1:{H},NVIDIA,1,1:;",
            f"{G},NVIDIA,1,1:{H},NVIDIA,1,1:;",
            {"app-2": [G, H]},
            {"app-2"},
            id="2.8: the same pod",
        ),
        pytest.param(
            pod(1, 2),
            {"app-1": 1, "app-2": 1},
            f"{G},NVIDIA,2500,25:;{H},NVIDIA,2500,25:;",
            f"{G},NVIDIA,2500,25:;{H},NVIDIA,2500,25:;",
            {"app-1": [G], "app-2": [H]},
            {"app-1", "app-2"},
            id="2.10: init slot lost",
        ),
        pytest.param(
            pod(1, 1, sidecars=1),
            {"app-2": 1},
            f"{G},NVIDIA,4000,50:;",
            f"{G},NVIDIA,4000,50:;",
            {"app-2": [G]},
            {"app-2"},
            id="mesh: init and sidecar without slots",
        ),
    ],
)
def test_reservation_of_a_real_pod(
    spec: Pod,
    counts: dict[str, int],
    allocated: str,
    left: str,
    granted: dict[str, list[str]],
    waiting: set[str],
) -> None:
    found = assign_slots(spec, counts, decode(allocated), decode(left))

    assert isinstance(found, SlotMap)
    assert {name: [grant.uuid for grant in slot] for name, slot in found.granted.items()} == granted
    assert set(found.waiting) == waiting


def test_reservation_cut_short_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="four fields"):
        decode("GPU-2409b7b6-2df6-0343-90dd-2d73da18e0e8,NVIDIA:;")


def test_reservation_of_another_shape_gives_no_card_to_anybody() -> None:
    text = "GPU-1cb8edae:1,2,8,17,12,6,13,10,NVIDIA,NVIDIA A100 80GB PCIe"
    ((grant,),) = decode(text)

    assert grant.vendor == "2"
    assert isinstance(assign_slots(pod(0, 1), {"app-0": 8}, ((grant,),), ()), SlotMismatch)


def test_reservation_forged_in_to_allocate_alone_is_refused() -> None:
    forged = decode(f"{G},NVIDIA,20000,100:;")

    assert isinstance(assign_slots(pod(0, 1), {"app-0": 1}, (), forged), SlotMismatch)


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
