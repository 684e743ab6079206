"""What is fuzzed: each target takes damaged text through decoders, requests and the engine.

A target returns the outcome in a word. `WireError` is an answer, everything else that is raised is
a failure, and so is a broken promise (`_expect`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeVar

from hami_node.cluster.watching.frames import read_frame, read_list
from hami_node.engine.card_rules import Placement
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.filters import Rejection, context
from hami_node.engine.fit import fit
from hami_node.engine.fleet.fleet import Fleet, NoNode
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    Plan,
    PodRequest,
    Refused,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, collapse
from hami_node.errors import KubeError, WireError
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    Container,
    ContainerGrants,
    ContainerKind,
    Device,
    Grant,
    Node,
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
from hami_node.vendors.neuron.node.check import NeuronClaim, NeuronShape, check_neuron_pod
from hami_node.vendors.neuron.node.devices import devices_of, topology_of
from hami_node.vendors.neuron.placement import WHOLE_DEVICES, NeuronUnit, cores_each
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.nvidia import codec as nvidia_codec
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.link_groups import best_set, worst_single
from hami_node.vendors.nvidia.mig.codec import (
    decode_mig_allocations,
    encode_mig_allocations,
    joined_uuid,
    with_parts,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.protocol import NvidiaProtocol, nvidia_protocol
from hami_node.vendors.nvidia.requests import gpu_ask_of
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.placement import encode_placement
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import asks_of, request_of, wishes_of
from hami_node.wire import names
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.handshake import decode_handshake
from hami_node.wire.lock import decode_lock, encode_lock
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.register import decode_pair_scores, encode_pair_scores
from hami_node.wire.slots import assign_slots
from hami_node.wire.values.quantity import parse_quantity
from hami_node.wire.wishes import decode_cordon
from tests.fuzz import samples
from tests.fuzz.calls import bind_call, filter_call, quota, review
from tests.fuzz.mutate import Source
from tests.fuzz.regions import region

VENDORS: Final = (nvidia_protocol(), neuron_protocol())
CARDS: Final = (NVIDIA, NEURON)
NEURON_RESOURCES: Final = NeuronResources()
T = TypeVar("T")

RULES: Final = (
    Rules(compat=V2_8, node_policy="binpack", gpu_policy="spread"),
    Rules(compat=V2_10, node_policy="spread", gpu_policy="binpack"),
)

_MIG_PROFILES: Final = (
    MigProfile(
        name="1g.5gb",
        memory_mib=4864,
        cores=15,
        slice_count=1,
        placements=tuple(MigPlacement(start=start, size=1) for start in range(7)),
    ),
    MigProfile(
        name="3g.20gb",
        memory_mib=19968,
        cores=43,
        slice_count=3,
        placements=(MigPlacement(start=0, size=4), MigPlacement(start=4, size=4)),
    ),
)
_MIG_TEMPLATES: Final = (
    (MigTemplate(name="1g.5gb", memory_mib=5120, cores=14, count=7),),
    (
        MigTemplate(name="2g.10gb", memory_mib=10240, cores=28, count=3),
        MigTemplate(name="1g.5gb", memory_mib=5120, cores=14, count=1),
    ),
)


def _gpu(name: str, index: int, **more: object) -> Device:
    fields: dict[str, object] = {
        "uuid": Uuid(f"GPU-{name}"),
        "index": index,
        "vendor": NVIDIA,
        "model": "NVIDIA A10",
        "numa": index // 2,
        "slots": 10,
        "memory_mib": 24576,
    }
    return Device(**(fields | more))  # type: ignore[arg-type]  # fields by name


def _neuron_cards(kind: str, devices: str, cores: str) -> tuple[Device, ...]:
    capacity = {neuron_names.RESOURCE_NEURON: devices, neuron_names.RESOURCE_NEURON_CORE: cores}
    return devices_of(
        Node(name="n1", labels={neuron_names.INSTANCE_TYPE: kind}, capacity=capacity),
        NEURON_RESOURCES,
    )


NODE_CARDS: Final = (
    *(_gpu(name, index) for index, name in enumerate("ABCD")),
    _gpu(
        "9192ed3d-b840-cb99-dfe0-2212e49ee1ed",
        4,
        mode="mig",
        detail=MigLayout(templates=_MIG_TEMPLATES),
    ),
    _gpu(
        "4c395b7a-a7e6-d90f-1ced-d96e8dd68288",
        5,
        mode="mig",
        detail=MigLayout(profiles=_MIG_PROFILES),
    ),
    *_neuron_cards("inf2.24xlarge", "6", "12"),
)


def _expect(is_true: object, promise: str) -> None:
    """Fail the case when a promise is broken."""
    if not is_true:
        raise AssertionError(promise)


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


def _placed(source: Source, usage: NodeUsage, ask: Ask) -> str:
    """Place one ask on a node and hold the promises of `place_on`."""
    kind = source.stream.choice((ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR))
    request = PodRequest(namespace="a", containers=(ContainerAsks(kind=kind, asks=(ask,)),))
    return _place(source, usage, request)


def _place(source: Source, usage: NodeUsage, request: PodRequest) -> str:
    rules = source.stream.choice(RULES)
    quota = source.stream.choice((None, Quota(memory_limit_mib=20000, core_limit=0)))
    ready = plan(request, rules, quota)
    if isinstance(ready, Refused):
        return "refused"
    before = dict(usage.cards)
    answer = place_on(NodeOffer(cards=usage.cards), ready)
    _expect(dict(usage.cards) == before, "placing changed the node")
    if isinstance(answer, Rejection):
        _expect(answer.text(), "a rejection without a reason")
        return "rejected"
    for container, grants in zip(request.containers, answer.containers, strict=True):
        wanted = sum(ask.count for ask in container.asks)
        _expect(bool(grants) == bool(wanted), "an empty set counts as fit")
    _add_and_remove(usage, answer)
    return "placed"


def _add_and_remove(usage: NodeUsage, grants: PodGrants) -> None:
    before = dict(usage.cards)
    usage.add("a/new", grants)
    collapse(grants)
    usage.remove("a/new")
    _expect(dict(usage.cards) == before, "remove does not undo add")


def register(source: Source) -> str:
    """A GPU register in any of the three forms."""
    if source.stream.random() < 0.5:
        text = source.json(samples.JSON_REGISTERS)
    else:
        text = source.text((*samples.CSV7, *samples.CSV9))
    devices = nvidia_codec.decode_register(text)
    if all(device.mode for device in devices):
        written = nvidia_codec.encode_json(devices)
        again = nvidia_codec.decode_register(written)
        _expect(nvidia_codec.encode_json(again) == written, "encode and decode disagree")
    nvidia_codec.encode_csv7(devices)
    nvidia_codec.encode_csv9(devices)
    return _placed(source, NodeUsage(devices), _ask(source, NVIDIA))


def neuron_register(source: Source) -> str:
    """A Neuron register, then cores or devices of it."""
    kind = source.stream.choice(samples.INSTANCE_TYPES)
    devices = decode_neuron_register(source.json(samples.NEURON_REGISTERS), kind)
    encode_neuron_register(devices)
    return _neuron_fit(source, devices)


def neuron_node(source: Source) -> str:
    """A Node object with Neuron capacity, then cores or devices of it."""
    kind, devices, cores = source.stream.choice(samples.NEURON_NODES)
    changes = source.stream.choice((0, 0, 1))
    capacity = {
        neuron_names.RESOURCE_NEURON: source.text([devices], changes),
        neuron_names.RESOURCE_NEURON_CORE: source.text([cores], changes),
    }
    allocatable = {neuron_names.RESOURCE_NEURON: source.text([devices], 1)}
    node = Node(
        name="n1",
        labels={neuron_names.INSTANCE_TYPE: source.text([kind], changes)},
        capacity=capacity,
        allocatable=source.stream.choice(({}, allocatable)),
    )
    topology_of(node, NEURON_RESOURCES)
    return _neuron_fit(source, devices_of(node, NEURON_RESOURCES))


def _neuron_fit(source: Source, devices: tuple[Device, ...]) -> str:
    stream = source.stream
    cards = [
        DeviceUsage(device=device, cores_used=used, slots_used=used.bit_count())
        for device in devices
        for used in [stream.choice((0, 0, 0, 1, 2, 3, 5)) & device.cores]
    ]
    stream.shuffle(cards)
    ask = _ask(source, NEURON)
    compat = stream.choice((V2_8, V2_10))
    answer = fit(cards, context(ask, NO_CARD_WISHES, compat))
    if isinstance(answer, Rejection):
        _expect(answer.text(), "a rejection without a reason")
        return "rejected"
    _expect(isinstance(answer, Placement) and answer.taken, "an empty set counts as fit")
    wanted = ask.count * (cores_each(devices) if ask.detail == WHOLE_DEVICES else ask.cores)
    given = sum(taken.cores.bit_count() for taken in answer.taken)
    _expect(given == wanted, "not as many cores as asked for")
    return "placed"


def handshake(source: Source) -> str:
    """A handshake of any spelling."""
    return str(decode_handshake(source.text(samples.HANDSHAKES), nvidia_names.NODE_HANDSHAKE).kind)


def lock(source: Source) -> str:
    """A node lock of any spelling."""
    owner = decode_lock(source.text(samples.LOCKS))
    if owner.namespace and owner.name and owner.time_s is not None:
        again = decode_lock(encode_lock(owner.time_s, owner.namespace, owner.name))
        _expect(again.is_pod(owner.namespace, owner.name), "encode and decode disagree")
        return "owned"
    return "without owner"


def _decode(text: str) -> tuple[ContainerGrants, ...]:
    return decode_grants(text, nvidia_names.POD_ALLOCATED, NVIDIA)


def _flat(slots: tuple[ContainerGrants, ...]) -> list[Grant]:
    return [grant for slot in slots for grant in slot]


def grants(source: Source) -> str:
    """Grants of a pod: their slots, their weight on a node, the check of Allocate."""
    text = source.text(samples.GRANTS)
    written = _decode(text)
    _expect(_decode(encode_grants(written)) == written, "encode and decode disagree")
    slots = with_parts(written, ())
    for grant, entry in zip(_flat(slots), _flat(written), strict=True):
        _expect(joined_uuid(grant) == entry.uuid or grant.part, "a card without its name")
    stream = source.stream
    kinds = [stream.choice(tuple(ContainerKind)) for _ in range(min(len(slots), 6))]
    pod = Pod(
        uid="u",
        namespace="a",
        name="p",
        containers=tuple(
            Container(name=f"c{place}", kind=kind)
            for place, kind in enumerate(sorted(kinds, key=lambda kind: kind is ContainerKind.APP))
        ),
    )
    counts = {container.name: stream.choice((0, 1, 1, 2)) for container in pod.containers}
    assign_slots(pod, counts, slots, stream.choice((slots, ((),) * len(slots), slots[:1])))
    limits = {name: {nvidia_names.RESOURCE_GPU: str(count)} for name, count in counts.items()}
    holder = replace(
        pod,
        node_name=stream.choice(("", "n1")),
        annotations={nvidia_names.POD_ALLOCATED: text, nvidia_names.POD_TO_ALLOCATE: text},
        containers=tuple(replace(item, limits=limits[item.name]) for item in pod.containers),
    )
    holding = holding_of(holder, VENDORS)
    usage = NodeUsage(NODE_CARDS)
    if holding is not None:
        _add_and_remove(usage, holding.grants)
    usage.add("a/old", PodGrants(containers=slots[:1]))
    _add_and_remove(usage, PodGrants(containers=slots, kinds=tuple(kinds)))
    if not slots or not slots[0]:
        return "empty"
    ask = _ask(source, stream.choice(CARDS))
    cards = NodeUsage(NODE_CARDS).cards
    objection = check_reservation(cards, slots[0], ask, PodWishes(), stream.choice((V2_8, V2_10)))
    return "accepted" if objection is None else "objected"


def mig_allocations(source: Source) -> str:
    """Reserved MIG placements, and their weight on a node."""
    rows = decode_mig_allocations(source.json(samples.MIG_ALLOCATIONS))
    text = encode_mig_allocations(rows)
    if text is not None:
        _expect(encode_mig_allocations(decode_mig_allocations(text)) == text, "not stable")
    slots = with_parts(_decode(f"{NODE_CARDS[5].uuid},NVIDIA,4864,15:;"), rows)
    usage = NodeUsage(NODE_CARDS)
    _add_and_remove(usage, PodGrants(containers=slots))
    usage.add("a/old", PodGrants(containers=slots))
    return _placed(source, usage, _ask(source, NVIDIA))


def pair_scores(source: Source) -> str:
    """Link scores, then the best set and the worst card."""
    scores = decode_pair_scores(source.json(samples.PAIR_SCORES), nvidia_names.NODE_PAIR_SCORES)
    _expect(decode_pair_scores(encode_pair_scores(scores), "") == scores, "not stable")
    cards = sorted({*scores, *(other for row in scores.values() for other in row)})[:9]
    if not cards:
        return "empty"
    source.stream.shuffle(cards)
    count = source.stream.randint(1, len(cards))
    chosen = best_set(cards, count, scores)
    _expect(len(set(chosen)) == count, "not as many cards as asked for")
    _expect(worst_single(cards, scores) in range(len(cards)), "no such card")
    return "chosen"


def neuron_id_list(source: Source) -> str:
    """The ids on a Neuron pod, checked against its node."""
    ids = decode_neuron_ids(source.text(samples.NEURON_IDS))
    _expect(decode_neuron_ids(encode_neuron_ids(ids)) == ids, "not stable")
    stream = source.stream
    claim = NeuronClaim(
        devices=stream.choice((0, 0, 1, 4, len(ids))),
        cores=stream.choice((0, 1, 8, len(ids))),
        ids=ids,
        unit=stream.choice((None, *NeuronUnit)),
        predicate_node=stream.choice((None, "n1", "n2")),
    )
    shape = NeuronShape(
        devices=stream.choice((1, 6, 12, 16)),
        cores_per_device=stream.choice((1, 2, 4, 8)),
        instance_type=stream.choice(samples.INSTANCE_TYPES),
    )
    held = {"a/other": frozenset({0, 1, 30})}
    findings = check_neuron_pod(claim, shape, "n1", held)
    return "faulty" if findings else "sound"


_RESOURCES: Final = (
    nvidia_names.RESOURCE_GPU,
    nvidia_names.RESOURCE_GPU_MEMORY,
    nvidia_names.RESOURCE_GPU_MEMORY_PERCENT,
    nvidia_names.RESOURCE_GPU_CORES,
    nvidia_names.RESOURCE_GPU_PRIORITY,
    neuron_names.RESOURCE_NEURON,
    neuron_names.RESOURCE_NEURON_CORE,
)


def _container(source: Source, name: str) -> Container:
    def quantities() -> dict[str, str]:
        chosen = source.stream.sample(_RESOURCES, source.stream.randint(0, 4))
        return {
            resource: source.text(*source.stream.choice(((samples.QUANTITIES, 1), (("1", "2"), 0))))
            for resource in chosen
        }

    kind = source.stream.choice(tuple(ContainerKind))
    return Container(name=name, kind=kind, limits=quantities(), requests=quantities())


def requests(source: Source) -> str:
    """Containers with quantities of every kind, placed on a node."""
    stream = source.stream
    settings = NvidiaSettings(
        default_memory_mib=stream.choice((0, 5000)),
        default_cores=stream.choice((0, 20)),
        memory_factor=stream.choice((1, 256, 1_048_576)),
    )
    gpus = nvidia_protocol(settings)
    vendors = (gpus, neuron_protocol(compat=stream.choice(("2.8", "2.10"))))
    containers = [_container(source, f"c{place}") for place in range(stream.randint(1, 3))]
    kept = [item for item in containers if _is_served(item, gpus, vendors)]
    pod = Pod(uid="u", namespace="a", name="p", containers=tuple(kept))
    request = request_of(pod, vendors)
    for ask in (ask for container in request.containers for ask in container.asks):
        _expect(ask.count >= 1, "a request for no card")
        _expect(ask.cores >= 0 and (ask.memory_mib or 0) >= 0, "a negative request")
    if request.is_empty:
        return "no request"
    return _place(source, NodeUsage(NODE_CARDS), request)


def _is_served(
    container: Container, gpus: NvidiaProtocol, vendors: tuple[VendorProtocol, ...]
) -> bool:
    """False for a container that is refused; then the refusal names the resource."""
    try:
        asks = asks_of(container, vendors)
    except WireError as error:
        _expect(error.key, "a refusal that names no resource")
        return False
    asked = [ask for ask in asks if ask.vendor is NVIDIA]
    _expect(
        asked in ([], [gpu_ask_of(container, gpus.settings)]),
        "the check asks for more than the scheduler",
    )
    return True


def quantity(source: Source) -> str:
    """One quantity."""
    value = parse_quantity(source.text(samples.QUANTITIES), nvidia_names.RESOURCE_GPU)
    return "whole" if value.denominator == 1 else "fraction"


def wishes(source: Source) -> str:
    """A pod's annotations that are read leniently: they must never raise."""
    keys = {
        nvidia_names.USE_GPU_TYPE: samples.LISTS,
        nvidia_names.NOUSE_GPU_TYPE: samples.LISTS,
        nvidia_names.USE_GPU_UUID: samples.LISTS,
        nvidia_names.NOUSE_GPU_UUID: samples.LISTS,
        neuron_names.USE_NEURON_UUID: samples.LISTS,
        neuron_names.NOUSE_NEURON_UUID: samples.LISTS,
        nvidia_names.NUMA_BIND: samples.LISTS,
        nvidia_names.VGPU_MODE: samples.LISTS,
        names.POD_GPU_POLICY: samples.POLICIES,
        names.POD_NODE_POLICY: samples.POLICIES,
        names.POD_SCORING_WEIGHTS: samples.WEIGHTS,
        names.NODE_CORDON: samples.LISTS,
    }
    written = {key: source.some(values) for key, values in keys.items()}
    annotations = {key: text for key, text in written.items() if text is not None}
    decode_cordon(annotations)
    ask = _ask(source, source.stream.choice(CARDS))
    request = PodRequest(
        namespace="a",
        containers=(ContainerAsks(kind=ContainerKind.APP, asks=(ask,)),),
        wishes=wishes_of(annotations, VENDORS),
    )
    return _place(source, NodeUsage(NODE_CARDS), request)


def objects(source: Source) -> str:
    """Pods, nodes and watch events as the API server sends them, damaged."""
    kind = source.stream.randrange(4)
    text = source.json((samples.NODE,) if kind in (1, 3) else (samples.POD,))
    raw = text.encode("utf-8", "surrogatepass")
    if source.stream.random() < 0.1:
        place = source.stream.randint(0, len(raw))
        raw = raw[:place] + bytes([source.stream.randrange(256)]) + raw[place + 1 :]
    if kind == 0:
        asks_of_pod(decode_pod(raw))
    elif kind == 1:
        devices_of(decode_node(raw), NEURON_RESOURCES)
    elif kind == 2:
        for item in _cut(read_list, b'{"metadata":{},"items":[' + raw + b"]}").items:
            decode_pod(item)
    else:
        decode_node(_cut(read_frame, b'{"type":"MODIFIED","object":' + raw + b"}").raw)
    return "decoded"


def _cut(cutter: Callable[[bytes], T], text: bytes) -> T:
    """Lists and watch lines are refused with KubeError, which is as good an answer."""
    try:
        return cutter(text)
    except KubeError as error:
        raise WireError("frame", str(error), "can't be read") from error


def asks_of_pod(pod: Pod) -> None:
    """What follows from a decoded pod."""
    for container in pod.containers:
        asks_of(container, VENDORS)
    wishes_of(pod.annotations, VENDORS)


def ids_of_grants(source: Source) -> str:
    """Grants that name Neuron devices, written on a pod with the ids that they mean."""
    key = neuron_names.POD_NEURON_ALLOCATED
    devices = {device.uuid: device for device in NODE_CARDS}
    slots = [
        tuple(grant for grant in slot if grant.uuid in devices)
        for slot in decode_grants(source.text(samples.GRANTS[-3:]), key, NEURON)
    ]
    for resource in (neuron_names.RESOURCE_NEURON, neuron_names.RESOURCE_NEURON_CORE):
        containers = [
            Container(name=f"c{place}", limits={resource: "1"}) for place in range(len(slots))
        ]
        texts = encode_placement(Node(name="n1"), containers, slots, devices, VENDORS)
        decode_neuron_ids(texts.get(neuron_names.NEURON_IDS, ""))
    return "numbered"


def _node_cards(source: Source) -> tuple[Device, ...]:
    """The cards of one of a cluster's nodes."""
    kind = source.stream.randrange(3)
    if kind == 0:
        return NODE_CARDS
    if kind == 1:
        return _neuron_cards(*source.stream.choice(samples.NEURON_NODES))
    try:
        text = source.text((*samples.CSV9, *samples.JSON_REGISTERS), 1)
        return nvidia_codec.decode_register(text)
    except WireError:
        return ()


def fleet(source: Source) -> str:
    """A small cluster: its short cuts must answer as if every node had been looked at."""
    stream = source.stream
    cluster = Fleet(stream.choice(RULES))
    node_names = [f"n{place}" for place in range(stream.randint(1, 3))]
    for name in node_names:
        cluster.set_node(name, _node_cards(source))
    for place in range(stream.randint(0, 3)):
        slots = with_parts(_decode(source.text(samples.GRANTS, 1)), ())
        cluster.add_pod(f"a/{place}", "a", stream.choice(node_names), PodGrants(containers=slots))
    ask = _ask(source, stream.choice(CARDS))
    asks = ContainerAsks(kind=stream.choice(tuple(ContainerKind)), asks=(ask,))
    request = PodRequest(namespace="a", containers=(asks,))
    answer, refusals = cluster.place(request), cluster.explain(request)
    if isinstance(answer, Refused) or isinstance(refusals, Refused):
        return "refused"
    ready = plan(request, cluster.rules)
    fitting = []
    for name, node in cluster.nodes.items():
        if node.usage.cards and isinstance(ready, Plan):
            alone = place_on(NodeOffer(cards=node.usage.cards), ready)
            if isinstance(alone, Rejection):
                _expect(refusals[name].text() == alone.text(), f"{name}: another reason")
            else:
                fitting.append(name)
                _expect(name not in refusals, f"{name}: refused although it fits")
    if isinstance(answer, NoNode):
        _expect(not fitting, f"no node, although {fitting} fit")
        return "no node"
    _expect(answer.node in fitting, f"{answer.node} chosen although it does not fit")
    cluster.add_pod("a/new", "a", answer.node, answer.grants)
    cluster.remove_pod("a/new")
    _expect(cluster.place(request) == answer, "adding and removing a pod changes the answer")
    return "placed"


Target = Callable[[Source], str]

TARGETS: Final[Mapping[str, Target]] = {
    target.__name__: target
    for target in (
        register,
        neuron_register,
        neuron_node,
        handshake,
        lock,
        grants,
        mig_allocations,
        pair_scores,
        neuron_id_list,
        requests,
        quantity,
        wishes,
        objects,
        ids_of_grants,
        fleet,
        filter_call,
        bind_call,
        review,
        quota,
        region,
    )
}
