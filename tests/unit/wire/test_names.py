"""docs/protocol.md is made of wire/names.py."""

from __future__ import annotations

import pytest

from tests.protocol_page import NAMES, PAGE, read_names, updated


def test_protocol_page_when_names_change_has_to_be_made_anew() -> None:
    page = PAGE.read_text()

    assert page == updated(page, NAMES.read_text()), "run: python -m tests.protocol_page"


def test_names_all_constants_have_writer_reader_and_source() -> None:
    source = NAMES.read_text()
    names = read_names(source)

    assert len(names) == source.count(": Final = ")
    assert all("->" in name.flow and name.what and name.source for name in names)


def test_names_constant_without_a_comment_is_refused() -> None:
    with pytest.raises(ValueError, match="no `writer -> reader"):
        read_names('# -- A ---\nA: Final = "b"\n')


def test_names_texts_are_unique() -> None:
    texts = [name.text for name in read_names(NAMES.read_text())]

    assert len(texts) == len(set(texts))
