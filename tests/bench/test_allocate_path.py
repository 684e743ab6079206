"""How much of the daemon one ordinary Allocate passes: functions, files, calls, on its own thread.

`HAMI_BENCH_LIST=1` lists the functions of each file. Nothing here asserts a number.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import pytest

import hami_node
from tests.integration.rig import Rig

pytestmark = pytest.mark.bench

PRODUCT: Final = str(Path(hami_node.__file__).parent) + os.sep
ENTRY: Final = ("node/kubelet/plugin.py", "Allocate")
LISTS: Final = bool(os.environ.get("HAMI_BENCH_LIST"))


class Tracer:
    """Counts the product's functions that a thread calls between Allocate's begin and its end."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._within = threading.local()
        self._names: dict[CodeType, tuple[str, str]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        file, name = self._name(frame.f_code)
        if (file, name.rpartition(".")[2]) == ENTRY:
            self._within.is_so = event == "call"
        if file and event == "call" and getattr(self._within, "is_so", False):
            self.calls[file, name] += 1

    def _name(self, code: CodeType) -> tuple[str, str]:
        if code not in self._names:
            file = code.co_filename
            is_ours = file.startswith(PRODUCT)
            self._names[code] = (file.removeprefix(PRODUCT) if is_ours else "", code.co_qualname)
        return self._names[code]


@contextmanager
def traced() -> Iterator[Tracer]:
    """Threads that start meanwhile are traced as long as they live."""
    tracer = Tracer()
    threading.setprofile(tracer)
    try:
        yield tracer
    finally:
        threading.setprofile(None)


def test_allocate_path(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig()
    try:
        with traced() as tracer:
            rig.start()
            rig.serve_one("first")  # loads what is loaded once
            tracer.calls.clear()
            rig.serve_one("second", card=1)
            found = dict(tracer.calls)
    finally:
        rig.close()
    inner = [name for _, name in found if name.endswith(("comp>", "genexpr>"))]
    files: dict[str, list[tuple[str, int]]] = {}
    for (file, name), calls in found.items():
        files.setdefault(file, []).append((name, calls))
    with capsys.disabled():
        print(
            f"\n  one Allocate: {len(found)} functions ({len(inner)} of them comprehensions) in "
            f"{len(files)} files, {sum(found.values())} calls"
        )
        for file, functions in sorted(files.items()) if LISTS else ():
            print(f"    {file}: {len(functions)}")
            for name, calls in functions:
                print(f"      {calls:4} {name}")
