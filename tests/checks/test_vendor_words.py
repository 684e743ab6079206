"""Only a vendor's own folder names it: everything else walks over the tuple of vendors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

PRODUCT: Final = Path(__file__).parents[2] / "hami_node"
EXEMPT: Final = frozenset({"vendors", "migrate"})
"""What `migrate` is about are the objects of other makers' programs, by their names."""
WORDS: Final = frozenset({"nvidia", "neuron", "aws", "awsneuron", "mig"})
SHARED: Final = re.compile(r"hami\.io/vgpu-[a-z-]*")
"""Names of HAMi's protocol that all vendors use."""
_TOKEN: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def sources() -> list[Path]:
    files = PRODUCT.rglob("*.py")
    return sorted(
        path
        for path in files
        if not EXEMPT & set(path.relative_to(PRODUCT).parts) and "_pb2" not in path.name
    )


def named(text: str) -> set[str]:
    """The vendors' words in an identifier or a string."""
    found = {token.lower() for token in _TOKEN.findall(SHARED.sub("", text))}
    inside = {word for word in ("nvidia", "neuron") if word in text.lower()}
    return (found & WORDS) | inside


def docstrings(tree: ast.AST) -> set[int]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for place, statement in enumerate(body):
            is_first = place == 0 and isinstance(node, owners)
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            after_name = place > 0 and isinstance(body[place - 1], ast.Assign | ast.AnnAssign)
            if is_text and (is_first or after_name):
                found.add(id(statement.value))
    return found


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every identifier, imported name and string, with its line."""
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield line, value
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in skipped:
            yield line, node.value  # type: ignore[attr-defined] # a Constant, as asked


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PRODUCT)))
def test_no_code_outside_the_vendors_folders_names_a_vendor(path: Path) -> None:
    tree = ast.parse(path.read_text())
    found = [f"line {line}: {text[:60]!r}" for line, text in texts(tree) if named(text)]
    assert found == [], f"{path.relative_to(PRODUCT)} names a vendor"


@pytest.mark.parametrize(
    "text",
    ["nvidia_names", "NvidiaCards", "nvidia.com/gpu", "AWSNeuron", "has_mig", "MIG mode", "aws"],
)
def test_vendor_words_are_found(text: str) -> None:
    assert named(text)
