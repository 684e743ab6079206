"""What docs/neuron.md says, sentence by sentence where the code can be asked."""

from __future__ import annotations

import re

from hami_node.vendors.neuron.node.devices import NEURON_TYPES
from hami_node.vendors.neuron.placement import (
    TRAINIUM_CORES,
    TRAINIUM_COUNTS,
    Family,
    count_problem,
    family_of,
    in_words,
)
from tests.documents import DOCS

PAGE = DOCS.joinpath("neuron.md").read_text()


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


def test_numbers_of_cores_are_those_of_the_instance_types() -> None:
    found = {
        cores
        for name, kind in NEURON_TYPES.items()
        if family_of(name) is Family.TRAINIUM
        for cores in kind.logical_cores
    }
    assert tuple(sorted(found)) == TRAINIUM_CORES
