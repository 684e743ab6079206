"""Answers as bytes."""

from __future__ import annotations

import pytest

from hami_node.extender.http.answers import Answer, refusal, text_answer


def sent(answer: Answer, *, is_last: bool = False, has_body: bool = True) -> bytes:
    return b"".join(answer.pieces(is_last=is_last, has_body=has_body))


def test_answer_is_one_piece_of_head_and_body() -> None:
    (piece,) = Answer(200, b"{}").pieces(is_last=False, has_body=True)
    assert piece == (
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
    )


def test_large_body_is_not_copied_behind_its_head() -> None:
    body = b"x" * 100_000
    head, rest = Answer(200, body).pieces(is_last=False, has_body=True)
    assert rest is body
    assert b"content-length: 100000\r\n" in head


def test_head_of_what_head_asks_for_tells_the_length_only() -> None:
    text = sent(text_answer(200, "ok\n"), has_body=False)
    assert b"content-length: 3\r\n" in text
    assert text.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(("closes", "is_last"), [(True, False), (False, True), (True, True)])
def test_last_answer_says_that_the_connection_ends(closes: bool, is_last: bool) -> None:
    text = sent(refusal(503, "no", closes=closes), is_last=is_last)
    assert text.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert text.count(b"connection: close\r\n") == 1
    assert text.endswith(b'{"Error": "no"}')


def test_refusal_carries_its_headers() -> None:
    assert b"\r\nallow: GET, HEAD\r\n" in sent(refusal(405, "no", ("allow", "GET, HEAD")))
