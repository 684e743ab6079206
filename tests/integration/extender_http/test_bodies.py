"""Bodies that are cut, huge, deep or strange."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.fakes.pods import Box
from tests.fakes.reviews import review_of
from tests.integration.extender_http.calls import (
    BIND_BYTES,
    DEEP,
    NODES,
    ROUTES,
    bind_args,
    bodies,
    check_shape,
    create,
    exchange,
    filter_args,
    post,
    refusal,
    talk,
)
from tests.integration.extender_rig import ExtenderRig


def request_of(path: str, head: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body


@pytest.mark.parametrize("path", ROUTES)
def test_truncated_body_is_refused_wherever_it_ends(rig: ExtenderRig, path: str) -> None:
    whole = json.dumps(bodies(rig)[path]).encode()
    for end in range(0, len(whole), max(1, len(whole) // 60)):
        assert refusal(rig, path, whole[:end])


@pytest.mark.parametrize("path", ROUTES)
def test_length_that_is_too_short_cuts_the_body_and_is_refused(rig: ExtenderRig, path: str) -> None:
    whole = json.dumps(bodies(rig)[path]).encode()
    head = f"Content-Length: {len(whole) - 5}"
    received = talk(rig, request_of(path, head, whole))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert b'"Error"' in received


@pytest.mark.parametrize("path", ROUTES)
def test_length_that_is_too_long_is_no_call(rig: ExtenderRig, path: str) -> None:
    whole = json.dumps(bodies(rig)[path]).encode()
    head = f"Content-Length: {len(whole) + 5}"
    assert b" 200 " not in talk(rig, request_of(path, head, whole), is_over=True)


@pytest.mark.parametrize("path", ROUTES)
def test_chunked_body_that_breaks_off_is_no_call(rig: ExtenderRig, path: str) -> None:
    whole = json.dumps(bodies(rig)[path]).encode()
    cut = b"%x\r\n%s\r\n" % (len(whole), whole)  # without the chunk that ends it
    for data in (cut, cut + b"zz\r\n", b"ffffffffffffffffff\r\n" + whole):
        request = request_of(path, "Transfer-Encoding: chunked", data)
        assert b" 200 " not in talk(rig, request, is_over=True)


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/filter", 8 * 2**20),
        ("/preempt", 8 * 2**20),
        ("/bind", BIND_BYTES),
        ("/webhook", 4 * 2**20),
    ],
)
def test_huge_body_is_413_before_it_comes(rig: ExtenderRig, path: str, limit: int) -> None:
    status, answer = exchange(rig, "POST", path, b"", {"Content-Length": str(limit + 1)})
    check_shape(path, status, answer)
    assert (status, str(limit) in answer["Error"]) == (413, True)


DEEP_VALUES: Final = {
    "lists": "[" * DEEP + "]" * DEEP,
    "objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "open": "[" * DEEP,
    "mixed": '[{"a":' * DEEP + "null" + "}]" * DEEP,
}


@pytest.mark.parametrize("text", DEEP_VALUES.values(), ids=DEEP_VALUES)
def test_deep_nesting_is_refused_anywhere(rig: ExtenderRig, text: str) -> None:
    for path, good in bodies(rig).items():
        stranger = json.dumps({**good, "stranger": "@"}).replace('"@"', text)
        inside = json.dumps(good).replace('"default"', text)
        for body in (text, stranger, inside):
            status, _ = post(rig, path, body.encode())
            wanted = 413 if path == "/bind" and len(body) > BIND_BYTES else 400
            assert status == wanted, path


WRONG_TEXTS: Final = {
    "nan": b"NaN",
    "infinity": b"Infinity",
    "minus-infinity": b"-Infinity",
    "invalid-utf8": b'"\xff\xfe"',
    "raw-surrogate": b'"\xed\xa0\x80"',
    "lone-surrogate": b'"\\ud800"',
    "swapped-surrogates": b'"\\udc00\\ud800"',
    "control": b'"\x01"',
    "octal": b"017",
    "plus": b"+1",
    "single-quotes": b"'a'",
    "comment": b"/* a */ 1",
    "huge-exponent": b"1e999999",
    "huge-number": b"9" * 5000,
    "number": b"7",
    "list": b"[]",
}
"""In the place of a name; the last ones are JSON, but not a name."""


@pytest.mark.parametrize("text", WRONG_TEXTS.values(), ids=WRONG_TEXTS)
def test_what_is_no_text_is_refused_in_the_place_of_a_name(rig: ExtenderRig, text: bytes) -> None:
    for path, good in bodies(rig).items():
        place = b'"705ab4f5"' if path == "/webhook" else b'"small"'
        body = json.dumps(good).encode()
        assert place in body
        assert refusal(rig, path, body.replace(place, text)), path
        if path == "/webhook":
            status, answer = post(rig, path, body.replace(b'"small"', text))
            assert status == 400 or not answer["response"]["allowed"]


def test_unknown_fields_and_other_case_change_nothing(rig: ExtenderRig) -> None:
    more = {"a": [None, {"b": 1}], "hostPort": 2**70, "é\x00": "x"}

    def with_more(value: Any) -> Any:
        if isinstance(value, dict) and "requests" not in value and "limits" not in value:
            return {**{key: with_more(item) for key, item in value.items()}, **more}
        return [with_more(item) for item in value] if isinstance(value, list) else value

    pod = create(rig, "strange", Box(memory_mib=1000))
    spoken = with_more(pod)
    for key in ("annotations", "labels"):  # whose members are all known: texts
        spoken["metadata"][key] = pod["metadata"].get(key) or {}
    spoken["spec"]["containers"][0]["resources"] = pod["spec"]["containers"][0]["resources"]
    body = {"pod": spoken, "nodenames": list(NODES), "NODES": None, **more}
    status, answer = post(rig, "/filter", body)
    assert (status, answer["Error"], len(answer["NodeNames"])) == (200, "", 1)
    args = {key.upper(): value for key, value in bind_args(pod, answer["NodeNames"][0]).items()}
    assert post(rig, "/bind", {**args, **more}) == (200, {"Error": ""})
    status, answer = post(rig, "/webhook", with_more(review_of(1)) | {"request": {
        **review_of(spoken)["request"], **more}})  # fmt: skip
    assert (status, answer["response"]["uid"]) == (200, "705ab4f5")
    rig.delete("strange")


def test_last_of_two_equal_keys_counts(rig: ExtenderRig) -> None:
    body = json.dumps(filter_args(rig.api.read("pods", "big", "default"), ["n0"]))
    twice = body[:-1] + ', "NodeNames": ["n1"], "NodeNames": ["n2"]}'
    assert list(post(rig, "/filter", twice.encode())[1]["FailedAndUnresolvableNodes"]) == ["n2"]
    broken = body[:-1] + ', "Pod": 7}'
    assert "pod" in refusal(rig, "/filter", broken.encode()).lower()
