"""A group by our own keys and by those of the field; a wrong minimum is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import Pod
from hami_node.wire import names
from hami_node.wire.pod_group import LONGEST_NAME, MAX_MINIMUM, PodGroup, decode_pod_group

MIN = {names.POD_GROUP_MIN: "4"}
TOTAL = {names.KUEUE_GROUP_TOTAL: "4"}


def pod(notes: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Pod:
    return Pod(uid="u", namespace="ns", name="p", annotations=notes, labels=labels or {})


@pytest.mark.parametrize(
    "member",
    [
        pod({names.POD_GROUP: "g"} | MIN),
        pod(MIN, {names.POD_GROUP: "g"}),
        pod(MIN, {names.COSCHEDULING_GROUP: "g"}),
        pod(TOTAL, {names.KUEUE_GROUP: "g"}),
        pod(TOTAL | {names.POD_GROUP_MIN: "4"}, {names.KUEUE_GROUP: "g"}),
        pod({names.VOLCANO_GROUP: "g"} | MIN),
    ],
)
def test_each_way_to_say_it_is_the_same_group(member: Pod) -> None:
    assert decode_pod_group(member) == PodGroup(namespace="ns", name="g", minimum=4)


@pytest.mark.parametrize(
    "member",
    [
        pod({}),
        pod(MIN),
        pod({names.POD_GROUP: ""}),
        pod({}, {names.COSCHEDULING_GROUP: "g"}),
        pod({names.VOLCANO_GROUP: "g"}),
    ],
)
def test_pod_without_a_group_or_of_a_foreign_one_without_a_minimum_stands_alone(
    member: Pod,
) -> None:
    assert decode_pod_group(member) is None


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "four", "4.0", "+4", " 4", "1e3", "\u0664", str(MAX_MINIMUM + 1), "9" * 5000],
)
def test_wrong_minimum_is_refused_and_named(text: str) -> None:
    with pytest.raises(WireError, match=names.POD_GROUP_MIN):
        decode_pod_group(pod({names.POD_GROUP: "g", names.POD_GROUP_MIN: text}))


def test_own_group_without_a_minimum_is_refused() -> None:
    with pytest.raises(WireError, match=names.POD_GROUP_MIN):
        decode_pod_group(pod({names.POD_GROUP: "g"}))


@given(st.text(), st.text())
def test_any_text_gives_a_group_or_a_wire_error(name: str, minimum: str) -> None:
    try:
        group = decode_pod_group(pod({names.POD_GROUP: name, names.POD_GROUP_MIN: minimum}))
    except WireError:
        return
    assert group is None or 1 <= group.minimum <= MAX_MINIMUM


def test_name_that_no_object_may_have_is_refused() -> None:
    """Groups that rest are remembered by name, 10,000 of them: 256 KiB each were 2.5 GiB."""
    assert decode_pod_group(pod({names.POD_GROUP: "g" * LONGEST_NAME} | MIN)) is not None
    with pytest.raises(WireError, match="more than 253 characters"):
        decode_pod_group(pod({names.POD_GROUP: "g" * 250_000} | MIN))
