"""Numbers of devices that nobody can have, in the words of placement, webhook and `inspect pod`."""

from __future__ import annotations

import pytest

from hami_node.engine.compat import COMPATS, Compat
from hami_node.engine.filters import Rejection, context
from hami_node.engine.place import fit
from hami_node.engine.usage import DeviceUsage
from hami_node.model import NO_CARD_WISHES, Container, Device, Uuid
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.admission import NeuronAdmission
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import NeuronDetail, in_words
from hami_node.vendors.neuron.protocol import neuron_protocol

DEVICES, CORES = names.RESOURCE_NEURON, names.RESOURCE_NEURON_CORE
TRN1, TRN2, INF2, NONE = "trn1.32xlarge", "trn2.48xlarge", "inf2.48xlarge", ""


def device(index: int, instance_type: str, cores: int) -> DeviceUsage:
    return DeviceUsage(
        device=Device(
            uuid=Uuid(f"n1-AWSNeuron-{index}"),
            index=index,
            vendor=NEURON,
            model="AWSNeuron",
            slots=cores,
            cores=(1 << cores) - 1,
            detail=NeuronDetail(instance_type=instance_type),
        )
    )


def answer(
    instance_type: str, limits: dict[str, str], cores: int = 2, compat: str = "2.10"
) -> Rejection:
    """Why 16 unused devices of that type don't serve the container."""
    ask = neuron_protocol(compat=compat).ask_of(Container(name="c", limits=limits))
    assert ask is not None
    cards = [device(index, instance_type, cores) for index in range(16)]
    rejection = fit(cards, context(ask, NO_CARD_WISHES, COMPATS[compat]))
    assert isinstance(rejection, Rejection)
    return rejection


@pytest.mark.parametrize("compat", COMPATS.values(), ids=COMPATS)
@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 9, 12, 15])
def test_seed_001_strategy_2_other_counts_on_trainium_are_refused_in_a_sentence(
    count: int, compat: Compat
) -> None:
    rejection = answer(TRN1, {DEVICES: str(count)}, compat=compat.name)
    assert "NumaNotFit" in rejection.text()
    assert rejection.never == (
        f"Trainium allows 1, 4, 8 or 16 devices per container, and {count} are requested"
    )


@pytest.mark.parametrize(
    ("instance_type", "cores", "asked", "said"),
    [
        (TRN1, 2, 6, "and 3 are requested (6 cores, 2 on each)"),
        (TRN2, 4, 6, "and 2 are requested (6 cores, 4 on each)"),
        (TRN2, 8, 20, "and 3 are requested (20 cores, 8 on each)"),
        (NONE, 2, 4, "and 2 are requested (4 cores, 2 on each)"),
    ],
)
def test_cores_are_refused_with_the_devices_that_they_are(
    instance_type: str, cores: int, asked: int, said: str
) -> None:
    assert answer(instance_type, {CORES: str(asked)}, cores).never.endswith(said)


@pytest.mark.parametrize("instance_type", ["", "p4d.24xlarge", "m5.large"])
def test_unknown_family_names_the_label_that_decides(instance_type: str) -> None:
    never = answer(instance_type, {DEVICES: "4"}).never
    assert names.INSTANCE_TYPE in never
    assert "Inferentia (inf...) or Trainium (trn...)" in never


def test_room_that_others_hold_may_come_back() -> None:
    cards = [device(index, INF2, 2) for index in range(12)]
    busy = DeviceUsage(device=cards[6].device, slots_used=1, cores_used=1)
    ask = neuron_protocol().ask_of(Container(name="c", limits={DEVICES: "7"}))
    assert ask is not None
    taken = (*cards[:6], busy, *cards[7:])
    rejection = fit(taken, context(ask, NO_CARD_WISHES, COMPATS["2.8"]))
    assert isinstance(rejection, Rejection)
    assert rejection.never == ""


# -- the webhook -----------------------------------------------------------------------------------
def warnings(limits: dict[str, str], compat: str = "2.10") -> tuple[str, ...]:
    admission = NeuronAdmission(protocol=neuron_protocol(compat=compat))
    found = admission.read(Container(name="c", limits=limits))
    assert found.problem == ""
    return found.warnings


def test_seed_001_strategy_2_webhook_warns_of_other_counts() -> None:
    assert warnings({DEVICES: "7"}) == (
        "aws.amazon.com/neuron: Trainium allows 1, 4, 8 or 16 devices per container, and 7 are "
        "requested: only an Inferentia node could take the pod",
    )
    assert warnings({CORES: "10"}) == (
        "aws.amazon.com/neuroncore: 10 cores are 5, 3 or 2 devices (2, 4 or 8 cores "
        "on each), and Trainium allows 1, 4, 8 or 16 per container: only an Inferentia node could "
        "take the pod",
    )


@pytest.mark.parametrize(
    "limits",
    [{DEVICES: "1"}, {DEVICES: "4"}, {DEVICES: "16"}, {CORES: "1"}, {CORES: "6"}, {CORES: "32"}],
    ids=str,
)
def test_webhook_is_silent_where_some_trainium_serves(limits: dict[str, str]) -> None:
    assert warnings(limits) == ()


def test_webhook_says_both_where_cores_are_rounded_to_a_count_that_is_refused() -> None:
    rounded, refused = warnings({CORES: "11"}, "2.8")
    assert "rounded down" in rounded
    assert refused.startswith("aws.amazon.com/neuroncore: 10 cores are 5, 3 or 2 devices")


@pytest.mark.parametrize(
    ("numbers", "text"), [((1, 4, 8, 16), "1, 4, 8 or 16"), ((2, 1, 1), "2 or 1"), ((3, 3), "3")]
)
def test_in_words(numbers: tuple[int, ...], text: str) -> None:
    assert in_words(numbers) == text
