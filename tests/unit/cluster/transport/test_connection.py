"""Errors by meaning, whatever stands in front of the API server says."""

from __future__ import annotations

import json

import pytest

from hami_node.cluster.calls import JSON_PATCH, MERGE_PATCH, ApiCall
from hami_node.cluster.transport.connection import decode_status, failure_of
from hami_node.errors import Conflict, Forbidden, Gone, KubeError, NotFound


def call(content_type: str = MERGE_PATCH) -> ApiCall:
    return ApiCall(
        method="PATCH",
        verb="patch",
        path="/api/v1/nodes/n1",
        resource="nodes",
        subject="nodes/n1",
        content_type=content_type,
    )


def status(message: str, seconds: int = 0) -> bytes:
    """As a kube-apiserver 1.34 writes it: an invalid object comes with causes, a test without."""
    details: dict[str, object] = {"retryAfterSeconds": seconds} if seconds else {}
    if "is invalid" in message:
        details["causes"] = [{"reason": "FieldValueInvalid", "field": "metadata.annotations"}]
    return json.dumps({"kind": "Status", "message": message, "details": details}).encode()


POLICY = (
    'nodes "n1" is forbidden: ValidatingAdmissionPolicy "hami-node" with binding "hami-node" '
    "denied request: another node"
)
TESTED = "the server rejected our request due to an error in our request"
MEANINGS = {
    "401": (401, MERGE_PATCH, "Unauthorized", Forbidden),
    "403": (403, MERGE_PATCH, 'nodes "n1" is forbidden', Forbidden),
    "404": (404, MERGE_PATCH, 'nodes "n1" not found', NotFound),
    "409": (409, MERGE_PATCH, "the object has been modified", Conflict),
    "410": (410, MERGE_PATCH, "too old resource version", Gone),
    "failed test": (422, JSON_PATCH, TESTED, Conflict),
    "invalid merge patch": (422, MERGE_PATCH, "annotations: too long", KubeError),
    "invalid result": (422, JSON_PATCH, 'Node "n1" is invalid: metadata.annotations', KubeError),
    "policy, as 422": (422, JSON_PATCH, POLICY, Forbidden),
    "policy, as 403": (403, JSON_PATCH, POLICY, Forbidden),
    "webhook": (400, JSON_PATCH, 'admission webhook "x" denied the request: no', KubeError),
    "too large": (413, MERGE_PATCH, "limit is 3145728", KubeError),
    "redirect": (302, MERGE_PATCH, "", KubeError),
}


@pytest.mark.parametrize(
    ("code", "content_type", "message", "kind"), MEANINGS.values(), ids=MEANINGS
)
def test_failure_of_maps_a_status_to_its_meaning(
    code: int, content_type: str, message: str, kind: type[KubeError]
) -> None:
    error = failure_of(call(content_type), code, decode_status(status(message)))
    assert type(error) is kind
    assert error.status == code
    assert str(error).startswith(f"can't patch nodes/n1: {message}")
    assert not error.is_transient


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_failure_of_overload_is_transient(code: int) -> None:
    assert failure_of(call(), code, decode_status(b"")).is_transient


@pytest.mark.parametrize(
    ("body", "header", "wait_s"),
    [
        (status("slow down"), "7", 7.0),
        (status("slow down", seconds=3), "", 3.0),
        (status("slow down", seconds=3), "7", 7.0),
        (status("slow down"), "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (b"", "", None),
    ],
    ids=["header", "body", "header first", "a date", "neither"],
)
def test_failure_of_keeps_the_wait_that_was_asked_for(
    body: bytes, header: str, wait_s: float | None
) -> None:
    assert failure_of(call(), 429, decode_status(body), header).retry_after_s == wait_s


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"<html>Bad Gateway</html>", "<html>Bad Gateway</html>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 10_000, "x" * 200),
        (b'{"message": 7}', '{"message": 7}'),
        (b"[]", "[]"),
        (b"", ""),
    ],
    ids=["html", "not utf-8", "long", "wrong type", "a list", "empty"],
)
def test_decode_status_of_anything_else_shows_its_first_words(body: bytes, shown: str) -> None:
    assert decode_status(body).message == shown


def test_failure_of_an_empty_answer_names_the_status() -> None:
    assert "Bad Gateway (HTTP 502)" in str(failure_of(call(), 502, decode_status(b"")))
