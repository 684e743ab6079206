"""Arbitrary bytes, arbitrary JSON and damaged calls: a clear answer, and nothing is taken."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.simulate.store import Json
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.fuzz.mutate import Source
from tests.integration.extender_http.calls import (
    NODES,
    TIME_LIMIT_S,
    bind_args,
    create,
    filter_args,
    pods_of,
    post,
    refusal,
)
from tests.integration.extender_rig import ExtenderRig

EXAMPLES: Final = 50
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
PATHS: Final = st.sampled_from(["/filter", "/bind", "/preempt", "/webhook"])


def damaged(kind: str, number: int, whole: Json) -> bytes:
    """The JSON of a valid body after some changes."""
    text = Source(f"{kind}:{number}").json([json.dumps(whole)])
    return text.encode("utf-8", "surrogatepass")


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


def test_damaged_filter_call_of_a_pod_that_never_fits_reserves_nothing(rig: ExtenderRig) -> None:
    before, big = pods_of(rig), rig.api.read("pods", "big", "default")
    for number in range(2 * EXAMPLES):
        post(rig, "/filter", damaged("big", number, filter_args(big, list(NODES))))
        eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


def test_damaged_filter_call_never_reserves_but_for_its_pod_and_what_that_asks(
    rig: ExtenderRig,
) -> None:
    before = pods_of(rig)
    for number in range(EXAMPLES):
        pod = create(rig, "fuzzed", Box(memory_mib=1000, cores=10))
        uid = pod["metadata"]["uid"]
        # a pod that the watch does not show, as one of another name, is compared with what was
        # reserved when it is bound
        eventually(partial(is_shown, rig, uid), TIME_LIMIT_S)
        body = damaged("filter", number, filter_args(pod, list(NODES)))
        post(rig, "/filter", body)
        charges = rig.state.charges()
        rig.delete("fuzzed")
        assert set(charges) <= {uid}
        amounts = [
            (each.slots, each.memory_mib, each.cores)
            for _, held in charges.values()
            for each in held
        ]
        assert amounts in ([], [(1, 1000, 10)]) or b'"fuzzed"' not in body
        eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


def test_damaged_bind_call_binds_nothing_but_the_pod_it_names(rig: ExtenderRig) -> None:
    before = pods_of(rig)
    for number in range(EXAMPLES):
        pod = create(rig, "fuzzed", Box(memory_mib=1000, cores=10))
        _, answer = post(rig, "/bind", damaged("bind", number, bind_args(pod)))
        bound = rig.api.read("pods", "fuzzed", "default")["spec"].get("nodeName", "")
        assert bool(bound) == (answer.get("Error") == "")
        assert set(rig.state.charges()) == ({pod["metadata"]["uid"]} if bound else set())
        rig.delete("fuzzed")
        eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)
