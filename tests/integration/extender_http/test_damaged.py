"""Arbitrary bytes, arbitrary JSON and damaged calls: a clear answer, and nothing is taken."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.extender.http.messages import decode_filter_args
from hami_node.simulate.patches import json_patch
from hami_node.simulate.store import Json
from tests.fakes.pods import Box
from tests.fakes.reviews import review_of
from tests.fakes.waiting import eventually
from tests.integration.extender_http.calls import (
    BIG_MIB,
    NODES,
    TIME_LIMIT_S,
    bind_args,
    create,
    filter_args,
    pods_of,
    post,
    refusal,
)
from tests.integration.extender_rig import ExtenderRig, pod_manifest

EXAMPLES: Final = 50


# -- anything at all -------------------------------------------------------------------------------
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
PATHS: Final = st.sampled_from(["/filter", "/bind", "/preempt", "/webhook"])
VALUES: Final[st.SearchStrategy[Any]] = (
    st.sampled_from(
        [None, True, 0, -1, 1.5, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "1", "x",
         "..", "a/b", "\x00", "\ud800", "é😀", "9" * 5000, "x" * 70_000, [], {}, [None], [[]],
         {"": None}, ["n0"], "n0", "default"]
    )
    | JSON
).map(copy.deepcopy)  # fmt: skip
TWIN: Final = "\ue000"
"""Ends a key that is meant to be there twice; it is taken out of the text."""


def places_in(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a member, however deep."""
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list):
        members = enumerate(value)
    for key, inner in members:
        yield (*above, key)
        yield from places_in(inner, (*above, key))


def retyped(value: Any) -> Any:
    """The value in the nearest other type."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [list(member) for member in value.items()]
    return str(value)


def changed(draw: st.DrawFn, whole: Any) -> Any:
    """One member dropped, there twice, in another case, replaced, or of another type."""
    places = list(places_in(whole))
    if not places:
        return draw(VALUES)
    *above, key = draw(st.sampled_from(places))
    parent = whole
    for step in above:
        parent = parent[step]
    kind = draw(st.sampled_from(["drop", "twice", "case", "replace", "retype", "stranger"]))
    if kind == "drop":
        del parent[key]
    elif kind == "replace":
        parent[key] = draw(VALUES)
    elif kind == "retype":
        parent[key] = retyped(parent[key])
    elif isinstance(parent, list):
        parent.insert(key, draw(VALUES) if kind == "stranger" else parent[key])
    elif kind == "twice":
        parent[key + TWIN] = draw(VALUES | st.just(parent[key]))
    elif kind == "case":
        parent[draw(st.sampled_from([key.lower(), key.upper(), key.swapcase()]))] = parent.pop(key)
    else:
        parent[draw(st.text(max_size=8))] = draw(VALUES)
    return whole


SPOKEN_OF: Final = {
    "name": "@name",
    "namespace": "default",
    "uid": "@uid",
    "resourceVersion": "@rv",
}
"""Stands for a pod, so that what is drawn is the same in every run."""


def spoken_of(memory_mib: int) -> Json:
    pod = pod_manifest("@name", (Box(memory_mib=memory_mib, cores=10),), {"k": "v"})
    return {**pod, "metadata": {**pod["metadata"], **SPOKEN_OF}}


def about(pod: Json, body: bytes) -> bytes:
    """The body with the real pod in the place of the one that stands for it."""
    for key, word in SPOKEN_OF.items():
        body = body.replace(word.encode(), pod["metadata"][key].encode())
    return body


@st.composite
def damaged(draw: st.DrawFn, whole: Json) -> bytes:
    """The JSON of a valid body after one to four changes."""
    value: Any = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 4))):
        value = changed(draw, value)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).replace(TWIN, "")
    return text.replace("\\ue000", "").encode("utf-8", "surrogatepass")


def is_unharmed(rig: ExtenderRig, before: list[Json]) -> bool:
    """Nothing is charged and no pod differs; the watch may need a moment to show that."""
    return not rig.state.charges() and pods_of(rig) == before


def is_shown(rig: ExtenderRig, uid: str) -> bool:
    """The watch shows this pod, and no more the one before it of the same name."""
    shown = rig.extender.parts.view.pod("default", "fuzzed")
    return shown is not None and shown.uid == uid


@given(path=PATHS, body=st.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_arbitrary_bytes_are_refused(rig: ExtenderRig, path: str, body: bytes) -> None:
    assert refusal(rig, path, body)


@given(path=PATHS, value=JSON)
@settings(max_examples=EXAMPLES, deadline=None)
def test_arbitrary_json_is_refused(rig: ExtenderRig, path: str, value: object) -> None:
    assert refusal(rig, path, value)


@given(body=damaged(filter_args(spoken_of(BIG_MIB), list(NODES))))
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_damaged_filter_call_of_a_pod_that_never_fits_reserves_nothing(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    post(rig, "/filter", about(rig.api.read("pods", "big", "default"), body))
    eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


@given(body=damaged(filter_args(spoken_of(1000), list(NODES))))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_filter_call_never_reserves_but_for_its_pod_and_what_that_asks(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    pod = create(rig, "fuzzed", Box(memory_mib=1000, cores=10))
    uid = pod["metadata"]["uid"]
    # a pod that the watch does not show, as one of another name, is compared with what was
    # reserved when it is bound
    eventually(lambda: is_shown(rig, uid), TIME_LIMIT_S)
    try:
        post(rig, "/filter", about(pod, body))
        charges = rig.state.charges()
        assert set(charges) <= {uid}
        for _, held in charges.values():
            if decode_filter_args(about(pod, body)).pod.key != "default/fuzzed":
                continue
            assert [(grant.slots, grant.memory_mib, grant.cores) for grant in held] == [
                (1, 1000, 10)
            ]
    finally:
        rig.delete("fuzzed")
    eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


@given(body=damaged(bind_args(spoken_of(1000))))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_bind_call_binds_nothing_but_the_pod_it_names(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    pod = create(rig, "fuzzed", Box(memory_mib=1000, cores=10))
    try:
        _, answer = post(rig, "/bind", about(pod, body))
        bound = rig.api.read("pods", "fuzzed", "default")["spec"].get("nodeName", "")
        assert bool(bound) == (answer.get("Error") == "")
        assert set(rig.state.charges()) == ({pod["metadata"]["uid"]} if bound else set())
    finally:
        rig.delete("fuzzed")
    eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


@given(body=damaged(review_of(spoken_of(1000))))
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_damaged_review_is_refused_or_answered_with_a_patch_that_applies(
    rig: ExtenderRig, body: bytes
) -> None:
    status, answer = post(rig, "/webhook", body)
    patch = base64.b64decode(answer["response"].get("patch", "")) if status == 200 else b""
    if patch:
        json_patch(json.loads(body)["request"]["object"], json.loads(patch))
