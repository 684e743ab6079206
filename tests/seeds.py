"""Seeds of tests by chance: the first few in `make test`, all others in `make test-long`."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(short: int, all_of_them: int) -> list[ParameterSet]:
    """The seeds 0 to `all_of_them` - 1, of which those from `short` are marked `long`."""
    return [
        pytest.param(seed, marks=() if seed < short else pytest.mark.long)
        for seed in range(all_of_them)
    ]
