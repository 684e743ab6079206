"""Cutting lists and watch lines: any bytes give objects or a KubeError."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.cluster.watching.frames import read_frame, read_list, read_mapping, read_meta
from hami_node.errors import KubeError

READERS: dict[str, Callable[[bytes], object]] = {
    "list": read_list,
    "frame": read_frame,
    "meta": read_meta,
    "mapping": read_mapping,
}


def test_read_list_cuts_objects_without_reading_them() -> None:
    page = read_list(b'{"metadata":{"resourceVersion":"7","continue":"t"},"items":[{"a":1},7]}')
    assert (page.resource_version, page.next_token) == ("7", "t")
    assert page.items == (b'{"a":1}', b"7")


@pytest.mark.parametrize("items", ["", ',"items":null', ',"items":[]'])
def test_read_list_without_items_is_empty(items: str) -> None:
    assert read_list(f'{{"metadata":{{}}{items}}}'.encode()).items == ()


def test_read_frame_cuts_kind_and_object() -> None:
    frame = read_frame(b'{"type":"ADDED","object":{"metadata":{"name":"n"}}}')
    assert (frame.kind, frame.raw) == ("ADDED", b'{"metadata":{"name":"n"}}')


def test_read_meta_reads_identity_of_an_object_that_has_other_defects() -> None:
    meta = read_meta(
        b'{"metadata":{"namespace":"a","name":"b","resourceVersion":"3","labels":7},"spec":[]}'
    )
    assert (meta.key, meta.resource_version) == (("a", "b"), "3")


BAD = {
    "empty": b"",
    "cut off": b'{"metadata":',
    "a list": b"[]",
    "null": b"null",
    "not utf-8": b'{"metadata":{"name":"\xff","continue":"\xff"},"type":"\xff","object":{}}',
    "deep": b'{"metadata":' * 5000,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_readers_refuse_what_is_none_of_theirs(reader: str, body: bytes) -> None:
    with pytest.raises(KubeError, match="API server sent"):
        READERS[reader](body)


@given(body=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@pytest.mark.parametrize("reader", READERS)
def test_readers_raise_nothing_but_kube_error(reader: str, body: bytes) -> None:
    try:
        READERS[reader](body)
    except KubeError as error:
        assert "API server sent" in str(error)  # noqa: PT017 - any other error fails the test
