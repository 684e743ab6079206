"""What a pod asks for and wishes, over all vendors."""

from __future__ import annotations

import pytest

from hami_node.engine.place import ContainerAsks
from hami_node.errors import WireError
from hami_node.model import (
    Ask,
    CardWishes,
    Container,
    ContainerKind,
    Pod,
    PodWishes,
    UuidWish,
)
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import WHOLE_DEVICES
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.request import (
    LONGEST_POLICY,
    MOST_ASKING,
    MOST_MODELS,
    asks_of,
    request_of,
    wishes_of,
)
from hami_node.wire import names

VENDORS = (nvidia_protocol(), neuron_protocol())
GPU, NEURON_DEVICE = nvidia_names.RESOURCE_GPU, neuron_names.RESOURCE_NEURON
CARD = Ask(vendor=NVIDIA, count=1, memory_percent=100)
TOO_LONG = f"has more than {LONGEST_POLICY} characters"
DEVICE = Ask(vendor=NEURON, count=1, cores=2, detail=WHOLE_DEVICES)


def of_nvidia(**wishes: object) -> PodWishes:
    return PodWishes(cards=((NVIDIA, CardWishes(**wishes)),))  # type: ignore[arg-type]  # by name


def test_asks_of_two_vendors_gives_one_ask_each() -> None:
    asked = Container(name="main", limits={GPU: "1", NEURON_DEVICE: "1"})

    assert asks_of(asked, VENDORS) == (CARD, DEVICE)
    assert asks_of(asked, VENDORS[1:]) == (DEVICE,)


def test_request_of_every_container_in_order() -> None:
    pod = Pod(
        uid="u",
        namespace="team",
        name="p",
        annotations={names.POD_GPU_POLICY: "spread"},
        containers=(
            Container(name="i", kind=ContainerKind.INIT, limits={GPU: "1"}),
            Container(name="a"),
            Container(name="b", limits={NEURON_DEVICE: "1"}),
        ),
    )
    found = request_of(pod, VENDORS)

    assert (found.namespace, found.wishes) == ("team", PodWishes(gpu_policy="spread"))
    assert found.containers == (
        ContainerAsks(kind=ContainerKind.INIT, asks=(CARD,)),
        ContainerAsks(kind=ContainerKind.APP, asks=()),
        ContainerAsks(kind=ContainerKind.APP, asks=(DEVICE,)),
    )


@pytest.mark.parametrize("resource", [GPU, NEURON_DEVICE])
def test_request_of_bad_value_names_container_and_resource(resource: str) -> None:
    bad = Container(name="main", limits={resource: "500m"})
    pod = Pod(uid="u", namespace="d", name="p", containers=(Container(name="a"), bad))

    with pytest.raises(WireError, match="whole number") as caught:
        request_of(pod, VENDORS)
    assert caught.value.key == f"container main: {resource}"


def pod_of(asking: int, others: int = 0, annotations: dict[str, str] | None = None) -> Pod:
    made = [Container(name=f"c{at}", limits={GPU: "1"}) for at in range(asking)]
    made += [Container(name=f"o{at}") for at in range(others)]
    notes = annotations or {}
    return Pod(uid="u", namespace="d", name="p", annotations=notes, containers=tuple(made))


def noted(key: str, text: str) -> Pod:
    return pod_of(1, annotations={key: text})


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(pod_of(MOST_ASKING, 500), id="containers"),
        pytest.param(noted(names.POD_GPU_POLICY, "x" * LONGEST_POLICY), id="policy"),
        pytest.param(noted(nvidia_names.USE_GPU_TYPE, "a," * MOST_MODELS), id="models"),
        pytest.param(pod_of(0, 900, {names.POD_GPU_POLICY: "a," * 9_000}), id="asks for nothing"),
    ],
)
def test_request_of_any_usual_size_is_read(pod: Pod) -> None:
    assert len(request_of(pod, VENDORS).containers) == len(pod.containers)


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        pytest.param(pod_of(MOST_ASKING + 1), "more than 64 containers", id="containers"),
        pytest.param(noted(names.POD_GPU_POLICY, "a," * 99_000), TOO_LONG, id="card policy"),
        pytest.param(noted(names.POD_NODE_POLICY, "a" * 257), TOO_LONG, id="node policy"),
        pytest.param(noted(names.POD_SCORING_WEIGHTS, "a" * 257), TOO_LONG, id="weights"),
        pytest.param(noted(nvidia_names.USE_GPU_TYPE, "a," * 65), "64 models", id="models"),
        pytest.param(
            pod_of(
                1,
                annotations={
                    nvidia_names.USE_GPU_TYPE: "a," * 40,
                    nvidia_names.NOUSE_GPU_TYPE: "b," * 40,
                },
            ),
            "64 models",
            id="models, wished and not",
        ),
    ],
)
def test_request_that_makes_every_look_at_a_node_dear_is_refused(pod: Pod, why: str) -> None:
    """A policy of 240 KB was split again for every card: 20 containers took 0.75 s."""
    with pytest.raises(WireError, match=why) as caught:
        request_of(pod, VENDORS)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("annotations", "wishes"),
    [
        ({}, PodWishes()),
        (
            {nvidia_names.USE_GPU_TYPE: "V100, h100 ,"},
            of_nvidia(use_types=("v100", "h100")),
        ),
        ({nvidia_names.NOUSE_GPU_TYPE: "A100"}, of_nvidia(nouse_types=("a100",))),
        ({nvidia_names.USE_GPU_UUID: " , "}, PodWishes()),
        (
            {nvidia_names.USE_GPU_UUID: "GPU-1 ,"},
            of_nvidia(uuids=UuidWish(use=frozenset({"GPU-1"}))),
        ),
        (
            {neuron_names.NOUSE_NEURON_UUID: "n-0"},
            PodWishes(
                cards=((NEURON, CardWishes(uuids=UuidWish(nouse=frozenset({"n-0"})))),),
            ),
        ),
        ({nvidia_names.VGPU_MODE: "mig,mps"}, of_nvidia(modes=frozenset({"mig", "mps"}))),
        (
            {names.POD_GPU_POLICY: "", names.POD_NODE_POLICY: "spread"},
            PodWishes(gpu_policy="", node_policy="spread"),
        ),
        ({names.POD_SCORING_WEIGHTS: "x"}, PodWishes(scoring_weights="x")),
    ],
)
def test_wishes_of(annotations: dict[str, str], wishes: PodWishes) -> None:
    assert wishes_of(annotations, VENDORS) == wishes


@pytest.mark.parametrize(
    ("words", "is_on"),
    [
        (("1", "t", "T", "TRUE", "true", "True"), True),
        (("", "yes", "false", "tRUE", " true", "0"), False),
    ],
)
def test_numa_bind_is_on_for_true_words_alone(words: tuple[str, ...], is_on: bool) -> None:
    for word in words:
        wishes = wishes_of({nvidia_names.NUMA_BIND: word}, VENDORS)
        assert wishes.of(NVIDIA).is_numa_bound is is_on, word


def test_uuid_wishes_are_per_vendor() -> None:
    annotations = {nvidia_names.USE_GPU_UUID: "g", neuron_names.USE_NEURON_UUID: "n"}
    wishes = wishes_of(annotations, VENDORS)

    assert wishes.of(NVIDIA).uuids.use == frozenset({"g"})
    assert wishes.of(NEURON).uuids.use == frozenset({"n"})
