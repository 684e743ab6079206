"""What docs/neuron.md says, sentence by sentence where the code can be asked."""

from __future__ import annotations

import re

import pytest

from hami_node.errors import WireError
from hami_node.model import Container, Node
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.admission import NeuronAdmission
from hami_node.vendors.neuron.node.devices import devices_of
from hami_node.vendors.neuron.node.instance_types import NEURON_TYPES
from hami_node.vendors.neuron.placement import (
    TRAINIUM_CORES,
    TRAINIUM_COUNTS,
    Family,
    count_problem,
    family_of,
    in_words,
)
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from tests.documents import DOCS

PAGE = DOCS.joinpath("neuron.md").read_text()
DEVICES, CORES = names.RESOURCE_NEURON, names.RESOURCE_NEURON_CORE


def rows(first: str) -> dict[str, list[str]]:
    """The table whose head begins with that cell: the other cells of each row by its first."""
    _, _, after = PAGE.partition(f"| {first} |")
    lines = after.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize("word", ["Trainium", "Inferentia", "Neuron"])
@pytest.mark.parametrize("page", ["neuron.md", "troubleshooting.md", "../README.md"])
def test_words_that_people_search_for_are_found(page: str, word: str) -> None:
    assert word in DOCS.joinpath(page).read_text()


def test_readme_and_troubleshooting_lead_to_the_page() -> None:
    assert "(docs/neuron.md)" in DOCS.parent.joinpath("README.md").read_text()
    assert "(neuron.md)" in DOCS.joinpath("troubleshooting.md").read_text()


def test_sentence_of_the_refusal_is_the_one_on_the_pages() -> None:
    sentence = count_problem(7, family_of("trn1.32xlarge"))
    assert f"> NumaNotFit: {sentence}\n" in PAGE
    assert f"`NumaNotFit: {sentence}`" in DOCS.joinpath("troubleshooting.md").read_text()


def test_families_and_counts_are_those_of_the_code() -> None:
    table = rows("family")
    assert table["Trainium"][1] == in_words(TRAINIUM_COUNTS)
    for family, label in (("Inferentia", "inf2.48xlarge"), ("Trainium", "ml.trn1.32xlarge")):
        shown = re.sub(r"\d.*", "...", label)
        assert f"`{shown}`" in table[family][0]
        assert str(family_of(label)) == shown.removeprefix("ml.").removesuffix("...")
    assert family_of("m5.large") is None
    assert count_problem(1, None) == ""
    assert count_problem(2, None)


@pytest.mark.parametrize("compat", ["2.8", "2.10"])
@pytest.mark.parametrize(("cores", "column"), [("3", 0), ("5", 1), ("0", 2)])
def test_seed_001_odd_numbers_are_treated_as_the_table_says(
    compat: str, cores: str, column: int
) -> None:
    key = "`2.8` (the default)" if compat == "2.8" else "`2.10`"
    said = rows("`compat`")[key][column]
    protocol = neuron_protocol(compat=compat)
    container = Container(name="c", limits={CORES: cores})
    found = NeuronAdmission(protocol=protocol).read(container)
    if said == "refused by the webhook":
        assert found.problem
        with pytest.raises(WireError):
            protocol.ask_of(container)
    elif said == "nothing is reserved":
        assert (found.ask, found.problem) == (None, "")
    else:
        assert found.ask is not None
        assert said == f"{found.ask.count * found.ask.cores} cores, and a warning from the webhook"
        assert len(found.warnings) == 1


@pytest.mark.parametrize(
    ("instance_type", "cores", "is_healthy"),
    [
        pytest.param("trn1.32xlarge", None, True, id="type in the table"),
        pytest.param("trn9.huge", None, False, id="type not in the table"),
        pytest.param("trn1.32xlarge", "33", False, id="uneven"),
    ],
)
def test_daemon_registers_devices_without_cores_as_the_page_says(
    instance_type: str, cores: str | None, is_healthy: bool
) -> None:
    capacity = {DEVICES: "16"} | ({} if cores is None else {CORES: cores})
    node = Node(name="n1", labels={names.INSTANCE_TYPE: instance_type}, capacity=capacity)
    devices = devices_of(node, NeuronResources())
    assert {device.healthy for device in devices} == {is_healthy}
    assert all(device.cores == (3 if is_healthy else 0) for device in devices)
    assert is_healthy or all(device.unhealthy_reason for device in devices)


def test_numbers_of_cores_are_those_of_the_instance_types() -> None:
    found = {
        cores
        for name, kind in NEURON_TYPES.items()
        if family_of(name) is Family.TRAINIUM
        for cores in kind.logical_cores
    }
    assert tuple(sorted(found)) == TRAINIUM_CORES


def test_uneven_cores_without_a_daemon_leave_a_rest() -> None:
    node = Node(name="n1", allocatable={DEVICES: "16", CORES: "33"})
    assert {device.cores for device in neuron_protocol().offered_by(node)} == {3}
