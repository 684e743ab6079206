"""What docs/neuron.md says, sentence by sentence where the code can be asked."""

from __future__ import annotations

import re

import pytest

from hami_node.errors import WireError
from hami_node.model import Container
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.admission import NeuronAdmission
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
from tests.documents import DOCS

PAGE = DOCS.joinpath("neuron.md").read_text()
DEVICES, CORES = names.RESOURCE_NEURON, names.RESOURCE_NEURON_CORE


def rows(first: str) -> dict[str, list[str]]:
    """The table whose head begins with that cell: the other cells of each row by its first."""
    _, _, after = PAGE.partition(f"| {first} |")
    lines = after.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


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


def test_numbers_of_cores_are_those_of_the_instance_types() -> None:
    found = {
        cores
        for name, kind in NEURON_TYPES.items()
        if family_of(name) is Family.TRAINIUM
        for cores in kind.logical_cores
    }
    assert tuple(sorted(found)) == TRAINIUM_CORES
