from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.wire.lock import LockOwner, decode_lock, encode_lock

T = 1715605457.0  # 2024-05-13T13:04:17Z


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        pytest.param(
            "2024-05-13T13:04:17Z,default,train",
            LockOwner(time_s=T, namespace="default", name="train"),
            id="since 2.4",
        ),
        pytest.param("2024-05-13T13:04:17Z", LockOwner(time_s=T), id="bare time"),
        pytest.param(
            "2024-05-13T21:04:17+08:00,a,b",
            LockOwner(time_s=T, namespace="a", name="b"),
            id="another zone",
        ),
        pytest.param("2024-05-13T13:04:17Z,default", LockOwner(time_s=T), id="two parts"),
        pytest.param("2024-05-13T13:04:17Z,a,b,c", LockOwner(time_s=T), id="four parts"),
        pytest.param("2024-05-13T13:04:17Z,,b", LockOwner(time_s=T), id="no namespace"),
        pytest.param("soon,a,b", LockOwner(time_s=None), id="no time"),
        pytest.param("", LockOwner(time_s=None), id="nothing"),
    ],
)
def test_decode_lock_spellings(text: str, owner: LockOwner) -> None:
    assert decode_lock(text) == owner


@pytest.mark.parametrize(
    ("text", "is_ours"),
    [
        ("2024-05-13T13:04:17Z,default,abc", True),
        ("2024-05-13T13:04:17Z,default,abc-123", False),
        ("2024-05-13T13:04:17Z,other,abc", False),
        ("2024-05-13T13:04:17Z", False),
        ("2024-05-13T13:04:17Z,default,abc,uid", False),
    ],
)
def test_lock_is_of_exactly_the_pod_it_names(text: str, is_ours: bool) -> None:
    assert decode_lock(text).is_pod("default", "abc") is is_ours


def test_lock_without_an_owner_is_of_no_pod_even_an_unnamed_one() -> None:
    assert not decode_lock("2024-05-13T13:04:17Z").is_pod("", "")


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


@given(st.integers(0, 4_000_000_000), NAMES, NAMES)
def test_encode_lock_decodes_to_the_same_owner(unix_s: int, namespace: str, name: str) -> None:
    owner = decode_lock(encode_lock(unix_s, namespace, name))

    assert owner == LockOwner(time_s=unix_s, namespace=namespace, name=name)


@given(st.text() | st.lists(st.sampled_from(["2024-05-13T13:04:17Z", ",", "a"])).map("".join))
def test_decode_lock_any_text_is_a_lock(text: str) -> None:
    owner = decode_lock(text)

    assert not owner.name or owner.time_s is not None
