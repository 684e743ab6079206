"""Which test notices a fault: `make mutants ROOM=engine`, or `python -m tests.mutants --help`.

Puts one small fault (a mutant) after the other into a room of the product, in a copy of the working
tree, and runs tests against it. A mutant that stays alive is a rule that no test holds, or one that
nobody needs.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
ALIVE: Final = "ALIVE"
NOT_JUDGED: Final = "not judged"
_LEFT_OUT: Final = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
_NOT_MUTATED: Final = ("annotation", "returns", "decorator_list", "slice")
_SWAPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault: the text of `file` from `start` to `end` (bytes) becomes `new`."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """What can be made wrong here: kind, the part of the tree, and what takes its place."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield "negate", node.test, ast.UnaryOp(ast.Not(), node.test)
        case ast.comprehension(ifs=[test, *_]):
            yield "negate", test, ast.UnaryOp(ast.Not(), test)
        case ast.Compare(ops=[op]):
            yield "compare", node, ast.Compare(node.left, [_SWAPPED[type(op)]()], node.comparators)
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, ast.BoolOp(other, node.values)
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (("constant", node, ast.Constant(value + step)) for step in (1, -1))
        case ast.Expr(value=ast.Call(func=called)) if not ast.unparse(called).startswith("log."):
            yield "drop", node, ast.Pass()
        case ast.AugAssign() | ast.Raise() | ast.Delete():
            yield "drop", node, ast.Pass()
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", value, ast.Constant(None)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.JoinedStr):  # Python 3.11 doesn't know the places in there
        for name, value in ast.iter_fields(node):
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, ast.AST) and name not in _NOT_MUTATED:
                    yield from _nodes(part)


def mutants_of(path: Path, file: str) -> Iterator[Mutant]:
    """All mutants of one module."""
    source = path.read_bytes()
    lines = source.splitlines(keepends=True)
    for kind, old, new in (change for n in _nodes(ast.parse(source)) for change in _changes(n)):
        assert isinstance(old, ast.expr | ast.stmt)
        start, end = (
            sum(map(len, lines[: (line or 0) - 1])) + (column or 0)
            for line, column in ((old.lineno, old.col_offset), (old.end_lineno, old.end_col_offset))
        )
        text = ast.unparse(new)
        yield Mutant(
            file=file, line=old.lineno, kind=kind, start=start, end=end,
            old=source[start:end].decode(), new=f"({text})" if isinstance(new, ast.expr) else text,
        )  # fmt: skip


def chosen(tree: Path, room: str, count: int, seed: int) -> list[Mutant]:
    """Mutants of a folder or module: spread over its files first, over kinds second."""
    chance = random.Random(seed)
    path = tree / "hami_node" / room
    files = [file for file in sorted({path, *path.rglob("*.py")}) if file.suffix == ".py"]
    by_file = [list(mutants_of(file, str(file.relative_to(tree)))) for file in files]
    picked: list[Mutant] = []
    while len(picked) < count and any(by_file):
        chance.shuffle(by_file)
        for left in filter(None, by_file):
            kind = chance.choice(sorted({mutant.kind for mutant in left}))
            picked.append(chance.choice([mutant for mutant in left if mutant.kind == kind]))
            left.remove(picked[-1])
    return sorted(picked[:count], key=lambda mutant: (mutant.file, mutant.line))


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


class Trial:
    """A copy of the working tree, in which mutants are tried one after the other."""

    def __init__(self, tree: Path, tests: tuple[str, ...], limit_s: float) -> None:
        self._tree = tree
        self._tests = tests
        self._limit_s = limit_s
        self._tried = 0
        files = (file for room in ("hami_node", "tests") for file in (tree / room).rglob("*.py"))
        self._imports = {str(file.relative_to(tree)): _imported(file) for file in files}
        settings = tomllib.loads((tree / "pyproject.toml").read_text())
        self._folders = tuple(settings["tool"]["pytest"]["ini_options"]["testpaths"])

    def tests_of(self, file: str) -> tuple[str, ...]:
        """The tests that import a module; if none does, those that import what imports it, ..."""
        level = seen = {file}
        tests: list[str] = []
        while level and not tests:
            names = {re.sub(r"(/__init__)?\.py$", "", file).replace("/", ".") for file in level}
            level = {file for file, imported in self._imports.items() if imported & names} - seen
            seen = seen | level
            tests = [f for f in level if f.startswith(self._folders) and "/test_" in f]
        return tuple(sorted(tests, key=lambda test: (not test.startswith("tests/unit"), test)))

    def outcome(self, mutant: Mutant) -> str:
        """The test that fails with this mutant and not without it; ALIVE if none does."""
        tests = self._tests or self.tests_of(mutant.file)
        if not tests:
            return f"{ALIVE}: no test imports it"
        path = self._tree / mutant.file
        source = path.read_bytes()
        self._write(path, source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        failed = self._failed(*tests)
        self._write(path, source)
        if failed and "::" in failed and self._failed(failed):
            return f"{NOT_JUDGED}: it fails without a mutant, too: {failed}"
        return failed or ALIVE

    def _write(self, path: Path, source: bytes) -> None:
        """Write a module, each time another second: Python compares that to what it compiled."""
        path.write_bytes(source)
        self._tried += 1
        os.utime(path, (self._tried, self._tried))

    def _failed(self, *tests: str) -> str | None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
        process = subprocess.Popen(
            (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests),
            cwd=self._tree, env=environment | {"PYTHONPATH": str(self._tree)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            shown, _ = process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return f"no end within {self._limit_s:g} s"
        found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", shown, re.MULTILINE)
        nothing = pytest.ExitCode.NO_TESTS_COLLECTED
        return None if process.returncode in (0, nothing) else found[1] if found else shown[-300:]


def main() -> None:
    """Try mutants, print each with the test that kills it, and how many stay alive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("room", help="a folder or module below hami_node/")
    parser.add_argument("--tests", default="", help="paths and options for pytest, instead of the tests that import the mutated module")  # fmt: skip # noqa: E501
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300, help="seconds a mutant")
    parser.add_argument("--json", action="store_true", help="instead of text")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the working tree")
    given = parser.parse_args()
    mutants = chosen(given.root, given.room, given.count, given.seed)
    if not mutants:
        parser.error(f"nothing to mutate in hami_node/{given.room}")
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # a mutant may never end
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(given.root, tree, ignore=_LEFT_OUT, symlinks=True)
        trial = Trial(tree, tuple(shlex.split(given.tests)), given.limit)
        for mutant in mutants:
            outcomes.append(trial.outcome(mutant))
            if not given.json:
                old, new = (" ".join(text.split())[:60] for text in (mutant.old, mutant.new))
                print(f"{mutant.file}:{mutant.line}: {mutant.kind}: {old} -> {new}")
                print(f"    {outcomes[-1]}", flush=True)
    if given.json:
        facts = ("file", "line", "kind", "old", "new")
        print(json.dumps([
            {fact: getattr(mutant, fact) for fact in facts} | {"outcome": outcome}
            for mutant, outcome in zip(mutants, outcomes, strict=True)
        ]))  # fmt: skip
    else:
        alive, unknown = (sum(o.startswith(word) for o in outcomes) for word in (ALIVE, NOT_JUDGED))
        killed = len(outcomes) - alive - unknown
        print(f"{killed} killed, {alive} alive, {unknown} not judged, with seed {given.seed}")


if __name__ == "__main__":
    main()
