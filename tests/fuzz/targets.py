"""What is fuzzed: each target takes damaged text through decoders, requests and the engine.

A target returns the outcome in a word. `WireError` is an answer, everything else that is raised is
a failure, and so is a broken promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from hami_node.cluster.watching.frames import read_frame, read_list
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.filters import Rejection
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    PodRequest,
    Refused,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.quota import Quota
from hami_node.engine.usage import NodeUsage, PodGrants, collapse
from hami_node.errors import KubeError, WireError
from hami_node.model import (
    Ask,
    Container,
    ContainerGrants,
    ContainerKind,
    Pod,
    PodWishes,
    Uuid,
    Vendor,
)
from hami_node.vendors.holding import holding_of
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.codec import (
    decode_neuron_ids,
    decode_neuron_register,
    encode_neuron_ids,
    encode_neuron_register,
)
from hami_node.vendors.neuron.node.devices import devices_of
from hami_node.vendors.neuron.placement import WHOLE_DEVICES
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.nvidia import codec as nvidia_codec
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.codec import (
    decode_mig_allocations,
    encode_mig_allocations,
    joined_uuid,
    with_parts,
)
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import asks_of, request_of, wishes_of
from hami_node.wire import names
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import decode_resource_quota
from hami_node.wire.slots import assign_slots
from tests.fuzz import samples
from tests.fuzz.mutate import Source
from tests.fuzz.regions import region
from tests.unit.engine.cards import device, mig_card, neuron_card, template_card

VENDORS: Final = (nvidia_protocol(), neuron_protocol())
NODE_CARDS: Final = (
    *(device(index, uuid=Uuid(f"GPU-{name}")) for index, name in enumerate("ABCD")),
    template_card(4, uuid=Uuid("GPU-9192ed3d-b840-cb99-dfe0-2212e49ee1ed")).device,
    mig_card(5, uuid=Uuid("GPU-4c395b7a-a7e6-d90f-1ced-d96e8dd68288")).device,
    neuron_card(uuid=Uuid("n1-AWSNeuron-5")).device,
)
RESOURCES: Final = (
    nvidia_names.RESOURCE_GPU,
    nvidia_names.RESOURCE_GPU_MEMORY,
    nvidia_names.RESOURCE_GPU_MEMORY_PERCENT,
    nvidia_names.RESOURCE_GPU_CORES,
    nvidia_names.RESOURCE_GPU_PRIORITY,
    neuron_names.RESOURCE_NEURON,
    neuron_names.RESOURCE_NEURON_CORE,
)
WISHES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            nvidia_names.USE_GPU_TYPE,
            nvidia_names.NOUSE_GPU_UUID,
            nvidia_names.USE_GPU_UUID,
            neuron_names.USE_NEURON_UUID,
            nvidia_names.NUMA_BIND,
            nvidia_names.VGPU_MODE,
        ),
        samples.LISTS,
    ),
    names.POD_GPU_POLICY: samples.POLICIES,
    names.POD_SCORING_WEIGHTS: samples.WEIGHTS,
}
T = TypeVar("T")


def _ask(source: Source, vendor: Vendor) -> Ask:
    stream = source.stream
    return Ask(
        vendor=vendor,
        count=stream.choice((1, 1, 1, 2, 3, 4, 8, 2**31)),
        memory_mib=stream.choice((None, 0, 1, 3000, 24576, 2**40)),
        memory_percent=stream.choice((None, None, 0, 50, 100)),
        cores=stream.choice((0, 1, 2, 30, 100)),
        detail=WHOLE_DEVICES if stream.random() < 0.2 else None,
    )


def _placed(source: Source, usage: NodeUsage, vendor: Vendor) -> str:
    """Place one ask on a node."""
    kind = source.stream.choice(tuple(ContainerKind))
    container = ContainerAsks(kind=kind, asks=(_ask(source, vendor),))
    return _place(source, usage, PodRequest(namespace="a", containers=(container,)))


def _place(source: Source, usage: NodeUsage, request: PodRequest) -> str:
    rules = Rules(compat=source.stream.choice((V2_8, V2_10)))
    quota = source.stream.choice((None, Quota(memory_limit_mib=20000, core_limit=0)))
    ready = plan(request, rules, quota)
    if isinstance(ready, Refused):
        return "refused"
    before = dict(usage.cards)
    answer = place_on(NodeOffer(cards=usage.cards), ready)
    assert dict(usage.cards) == before
    if isinstance(answer, Rejection):
        assert answer.text()
        return "rejected"
    for container, granted in zip(request.containers, answer.containers, strict=True):
        assert bool(granted) == bool(container.asks), "an empty set counts as fit"
    _add_and_remove(usage, answer)
    return "placed"


def _add_and_remove(usage: NodeUsage, held: PodGrants) -> None:
    before = dict(usage.cards)
    usage.add("a/new", held)
    collapse(held)
    usage.remove("a/new")
    assert dict(usage.cards) == before


def register(source: Source) -> str:
    """A GPU register in any of the three forms."""
    if source.stream.random() < 0.5:
        text = source.json(samples.JSON_REGISTERS)
    else:
        text = source.text(samples.CSV_REGISTERS)
    devices = nvidia_codec.decode_register(text)
    if all(device.mode for device in devices):
        written = nvidia_codec.encode_json(devices)
        assert nvidia_codec.encode_json(nvidia_codec.decode_register(written)) == written
    nvidia_codec.encode_csv7(devices)
    nvidia_codec.encode_csv9(devices)
    return _placed(source, NodeUsage(devices), NVIDIA)


def neuron_register(source: Source) -> str:
    """A Neuron register, then cores or devices of it."""
    kind = source.text(samples.INSTANCE_TYPES, 1)
    devices = decode_neuron_register(source.json(samples.NEURON_REGISTERS), kind)
    encode_neuron_register(devices)
    return _placed(source, NodeUsage(devices), NEURON)


def neuron_id_list(source: Source) -> str:
    """The ids on a Neuron pod."""
    ids = decode_neuron_ids(source.text(samples.NEURON_IDS))
    assert decode_neuron_ids(encode_neuron_ids(ids)) == ids
    return "read"


def _decode(text: str) -> tuple[ContainerGrants, ...]:
    return decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)


def grants(source: Source) -> str:
    """Grants of a pod: their slots, their weight on a node, the check of Allocate."""
    text, stream = source.text(samples.GRANTS), source.stream
    written = _decode(text)
    assert _decode(encode_grants(written)) == written
    slots = with_parts(written, ())
    for before, after in zip(written, slots, strict=True):
        assert all(
            joined_uuid(grant) == entry.uuid or grant.part
            for entry, grant in zip(before, after, strict=True)
        )
    kinds = sorted(
        (stream.choice(tuple(ContainerKind)) for _ in slots[:6]),
        key=lambda kind: kind is ContainerKind.APP,
    )
    counts = {f"c{place}": stream.choice((0, 1, 1, 2)) for place in range(len(kinds))}
    pod = Pod(
        uid="u",
        namespace="a",
        name="p",
        node_name=stream.choice(("", "n1")),
        annotations={nvidia_names.POD_ALLOCATED: text, nvidia_names.POD_TO_ALLOCATE: text},
        containers=tuple(
            Container(name=name, kind=kind, limits={nvidia_names.RESOURCE_GPU: str(count)})
            for kind, (name, count) in zip(kinds, counts.items(), strict=True)
        ),
    )
    assign_slots(pod, counts, slots, stream.choice((slots, ((),) * len(slots), slots[:1])))
    holding, usage = holding_of(pod, VENDORS), NodeUsage(NODE_CARDS)
    if holding is not None:
        _add_and_remove(usage, holding.grants)
    usage.add("a/old", PodGrants(containers=slots[:1]))
    _add_and_remove(usage, PodGrants(containers=slots, kinds=tuple(kinds)))
    if not slots or not slots[0]:
        return "empty"
    ask, cards = _ask(source, stream.choice((NVIDIA, NEURON))), NodeUsage(NODE_CARDS).cards
    objection = check_reservation(cards, slots[0], ask, PodWishes(), stream.choice((V2_8, V2_10)))
    return "accepted" if objection is None else "objected"


def mig_allocations(source: Source) -> str:
    """Reserved MIG placements, and their weight on a node."""
    rows = decode_mig_allocations(source.json(samples.MIG_ALLOCATIONS))
    text = encode_mig_allocations(rows)
    if text is not None:
        assert encode_mig_allocations(decode_mig_allocations(text)) == text
    slots = with_parts(_decode(f"{NODE_CARDS[5].uuid},NVIDIA,4864,15:;"), rows)
    usage = NodeUsage(NODE_CARDS)
    _add_and_remove(usage, PodGrants(containers=slots))
    usage.add("a/old", PodGrants(containers=slots))
    return _placed(source, usage, NVIDIA)


def _container(source: Source, name: str) -> Container:
    def quantities() -> dict[str, str]:
        chosen = source.stream.sample(RESOURCES, source.stream.randint(0, 4))
        return {
            resource: source.text(*source.stream.choice(((samples.QUANTITIES, 1), (("1", "2"), 0))))
            for resource in chosen
        }

    kind = source.stream.choice(tuple(ContainerKind))
    return Container(name=name, kind=kind, limits=quantities(), requests=quantities())


def _is_served(container: Container, vendors: Sequence[VendorProtocol]) -> bool:
    try:
        asks_of(container, vendors)
    except WireError:
        return False
    return True


def requests(source: Source) -> str:
    """Containers with quantities and pods with wishes of every kind, placed on a node."""
    stream = source.stream
    settings = NvidiaSettings(
        default_memory_mib=stream.choice((0, 5000)),
        default_cores=stream.choice((0, 20)),
        memory_factor=stream.choice((1, 256, 1_048_576)),
    )
    vendors = (nvidia_protocol(settings), neuron_protocol(compat=stream.choice(("2.8", "2.10"))))
    written = {key: source.some(values) for key, values in WISHES.items()}
    pod = Pod(
        uid="u",
        namespace="a",
        name="p",
        annotations={key: text for key, text in written.items() if text is not None},
    )
    wishes_of(pod.annotations, vendors)
    containers = [_container(source, f"c{place}") for place in range(stream.randint(1, 3))]
    served = tuple(container for container in containers if _is_served(container, vendors))
    request = request_of(replace(pod, containers=served), vendors)
    for ask in (ask for container in request.containers for ask in container.asks):
        assert ask.count >= 1
        assert ask.cores >= 0
        assert (ask.memory_mib or 0) >= 0
    return "nothing" if request.is_empty else _place(source, NodeUsage(NODE_CARDS), request)


def objects(source: Source) -> str:
    """Pods, nodes and watch events as the API server sends them, damaged."""
    kind = source.stream.randrange(4)
    text = source.json((samples.NODE,) if kind in (1, 3) else (samples.POD,))
    raw = _with_odd_byte(source, text)
    if kind == 0:
        for container in decode_pod(raw).containers:
            asks_of(container, VENDORS)
    elif kind == 1:
        devices_of(decode_node(raw), NeuronResources())
    elif kind == 2:
        for item in _cut(read_list, b'{"metadata":{},"items":[' + raw + b"]}").items:
            decode_pod(item)
    else:
        decode_node(_cut(read_frame, b'{"type":"MODIFIED","object":' + raw + b"}").raw)
    return "decoded"


def _with_odd_byte(source: Source, text: str) -> bytes:
    """The text; now and then with a byte that is no text."""
    raw = text.encode("utf-8", "surrogatepass")
    if source.stream.random() < 0.1:
        place = source.stream.randint(0, len(raw))
        raw = raw[:place] + bytes([source.stream.randrange(256)]) + raw[place + 1 :]
    return raw


def _cut(cutter: Callable[[bytes], T], text: bytes) -> T:
    """Lists and watch lines are refused with KubeError, which is as good an answer."""
    try:
        return cutter(text)
    except KubeError as error:
        raise WireError("frame", str(error), "can't be read") from error


def quota(source: Source) -> str:
    """A ResourceQuota, and the limits in it."""
    found = decode_resource_quota(_with_odd_byte(source, source.json(samples.RESOURCE_QUOTAS)))
    for name in (nvidia_names.RESOURCE_GPU_MEMORY, nvidia_names.RESOURCE_GPU_CORES):
        limit = found.limit(name)
        assert limit is None or limit >= 0
    return "read"


TARGETS: Final[Mapping[str, Callable[[Source], str]]] = {
    target.__name__: target
    for target in (
        register,
        neuron_register,
        neuron_id_list,
        grants,
        mig_allocations,
        requests,
        objects,
        quota,
        region,
    )
}
