from __future__ import annotations

import pytest

from tests.documents import DOCS, PARTS, current


@pytest.mark.parametrize("page", list(PARTS))
def test_generated_tables_are_current(page: str) -> None:
    assert DOCS.joinpath(page).read_text() == current(page), "run python -m tests.documents"
