"""Damaged annotations, quantities and objects through everything that reads them."""

from __future__ import annotations

import time
from typing import Final

import pytest

from hami_node.errors import WireError
from tests.fuzz.mutate import Source
from tests.fuzz.targets import TARGETS

CASE_LIMIT_S: Final = 5.0
"""Processor time of one case; damaged input that costs more is as bad as an exception."""


@pytest.mark.parametrize("cases", [400, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("target", TARGETS)
def test_damaged_input_raises_only_named_errors(target: str, cases: int) -> None:
    results = set[str]()
    for number in range(cases):
        source, begun_s = Source(f"{target}:{number}"), time.process_time()
        try:
            results.add(TARGETS[target](source))
        except WireError:
            pass
        except Exception as error:
            made = "\n".join(repr(text)[:600] for text in source.made)
            raise AssertionError(f"case {number}\n{made}") from error
        assert time.process_time() - begun_s < CASE_LIMIT_S, (number, source.made)
    # every target has to get past its decoder as well, or nothing behind it is tried
    assert results
    assert "placed" in results or target not in ("register", "requests")
