"""docs/protocol.md is made from the names of wire/ and of every vendor."""

from __future__ import annotations

import pytest

from tests.protocol_page import NAMES, PAGE, Name, read_names, updated


def every_name() -> list[Name]:
    return [name for path in NAMES for name in read_names(path.read_text())]


def test_protocol_page_when_names_change_has_to_be_regenerated() -> None:
    page = PAGE.read_text()

    assert page == updated(page, *(path.read_text() for path in NAMES)), (
        "run: python -m tests.protocol_page"
    )


def test_names_all_constants_have_writer_reader_and_source() -> None:
    names = every_name()

    assert len(names) == sum(path.read_text().count(": Final = ") for path in NAMES)
    assert all("->" in name.flow and name.what and name.source for name in names)


def test_names_constant_without_a_comment_is_refused() -> None:
    with pytest.raises(ValueError, match="no `writer -> reader"):
        read_names('# -- A ---\nA: Final = "b"\n')


def test_names_texts_are_unique() -> None:
    texts = [name.text for name in every_name()]

    assert len(texts) == len(set(texts))
