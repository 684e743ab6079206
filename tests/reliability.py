"""Faults and the tests that show what happens then; tests/reliability.md prints them as a table.

A test that injects a fault is marked:

    @shows("N1", fault="kubelet's list fails once", happens="the call waits and asks again")
    def test_...

`python -m tests.documents` collects the marks from the sources; docs/reliability.md has those that
cost something.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

TESTS: Final = Path(__file__).parent
KINDS: Final = {
    "N": "on the node",
    "E": "at the extender and webhook",
    "R": "in the node's record",
    "P": "in everyday use",
    "D": "at the driver and the node's paths",
    "H": "in handing over GPUs",
    "L": "in the limiter's and containers' files",
    "F": "with other device plugins, NUMA nodes and Neuron",
    "U": "in reading what is used",
    "B": "with priorities and core limits",
    "S": "with fixed shares",
    "Z": "in resizing",
    "M": "with MIG: what other plugins get wrong",
    "G": "with MIG: everything else",
}
"""What the letter of a number means."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A fault and the test that injects it.

    Attributes:
        number: the row it belongs to.
        fault: what goes wrong.
        happens: what the product does.
        lost: what is lost.
        test: its file below tests/ and its name.
    """

    number: str
    fault: str
    happens: str
    lost: str
    test: str


def shows(number: str, *, fault: str, happens: str, lost: str = "nothing") -> Callable[[F], F]:
    """Mark a test as the one that injects a fault; the arguments have to be literal texts."""
    del number, fault, happens, lost

    def mark(test: F) -> F:
        return test

    return mark


def shown(root: Path = TESTS) -> Iterator[Shown]:
    """Every mark in the sources below `root`, file by file."""
    for path in sorted(root.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if (
                        isinstance(mark, ast.Call)
                        and isinstance(mark.func, ast.Name)
                        and mark.func.id == "shows"
                    ):
                        yield _read(mark, f"{path.relative_to(root)}::{node.name}")


def _read(mark: ast.Call, test: str) -> Shown:
    texts = {word.arg: ast.literal_eval(word.value) for word in mark.keywords if word.arg}
    number = ast.literal_eval(mark.args[0])
    return Shown(number=number, test=test, **({"lost": "nothing"} | texts))
