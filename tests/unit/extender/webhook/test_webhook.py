"""The webhook's envelope: versions, outcomes, bad input, and that nothing is lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.extender.webhook import Webhook, WebhookRules
from hami_node.simulate.patches import json_patch
from hami_node.vendors.nvidia.choices import CorePolicy
from tests.fakes.reviews import review_of
from tests.unit.extender.reviews import (
    CORES,
    GPU,
    MEM,
    NEURON,
    PCT,
    PRIO,
    RULES,
    SHARE,
    Json,
    admitted,
    ask,
    container,
    limits_of,
    patch_of,
    pod,
    webhook_rules,
)


# -- The envelope ----------------------------------------------------------------------------------
def test_older_version_is_echoed() -> None:
    review = {**review_of(pod(container(SHARE))), "apiVersion": "admission.k8s.io/v1beta1"}
    answer = json.loads(Webhook(RULES).review(json.dumps(review).encode()))
    assert answer["apiVersion"] == "admission.k8s.io/v1beta1"
    assert answer["response"]["patchType"] == "JSONPatch"


@pytest.mark.parametrize(
    ("obj", "outcome"),
    [
        (pod(container()), "allowed"),
        (pod(container(SHARE)), "patched"),
        (pod(container({GPU: "x"})), "denied"),
    ],
    ids=["allowed", "patched", "denied"],
)
def test_outcome_is_told_once(obj: Json, outcome: str) -> None:
    results: list[str] = []
    Webhook(RULES, results.append).review(json.dumps(review_of(obj)).encode())
    assert results == [outcome]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"AdmissionReview"',
        b"{}",
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":null}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":1}}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2","request":{"uid":"u"}}',
        b'{"kind":"Pod","apiVersion":"v1","request":{"uid":"u"}}',
        b'{"kind":"AdmissionReview\xff"}',
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"\\ud800"}}',
        b"[" * 100_000,
        b'{"request":' * 100_000,
    ],
    ids=lambda body: body[:90].decode("ascii", "replace"),
)
def test_what_is_no_review_raises(body: bytes) -> None:
    with pytest.raises(WireError):
        Webhook(RULES).review(body)


@pytest.mark.parametrize(
    "obj",
    [None, [], "pod", {"spec": []}, {"spec": {"containers": [None]}}, {"spec": {"containers": 1}}],
    ids=["null", "list", "text", "spec-list", "null-container", "number"],
)
def test_pod_that_cannot_be_read_is_refused(obj: object) -> None:
    response = ask(obj)
    if obj is None:
        assert response["status"]["code"] == 400
    assert not response["allowed"]
    assert response["status"]["message"]


def test_secrets_of_a_truncated_review_stay_out_of_the_error() -> None:
    body = json.dumps(review_of(pod(container(env=[{"name": "A", "value": "hunter2"}])))).encode()
    for end in range(0, len(body), 7):
        with pytest.raises(WireError) as caught:
            Webhook(RULES).review(body[:end])
        assert "hunter2" not in str(caught.value)


def test_huge_pod_is_answered_with_its_patch() -> None:
    env = [{"name": f"V{i}", "value": "x" * 50} for i in range(5000)]
    obj = pod(*(container({GPU: "1"}, f"c{i}", env=env if i == 0 else None) for i in range(200)))
    changed = admitted(obj)
    assert [limits_of(changed, i)[CORES] for i in range(200)] == ["100"] * 200


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    "metadata spec containers initContainers resources limits requests env annotations labels "
    f"name value valueFrom schedulerName {GPU} {MEM} {CORES} ~1/x~0".split()
)
PODLIKE = st.recursive(
    st.none() | st.integers(-2, 200) | st.sampled_from(["", "1", "100", "x", GPU, "LD_PRELOAD"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=25,
)
ALL_ON = webhook_rules(
    overwrite_env=True, core_policy=CorePolicy.FORCE, runtime_class_name="nvidia"
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_raise_nothing_but_wire_errors(body: bytes) -> None:
    with pytest.raises(WireError):
        Webhook(ALL_ON).review(body)


@given(JSON | PODLIKE, st.sampled_from([RULES, ALL_ON]))
def test_any_object_is_answered(obj: object, rules: WebhookRules) -> None:
    response = ask(obj, rules)
    if response["allowed"]:
        json_patch(obj, patch_of(response))


UNKNOWN = st.dictionaries(st.from_regex(r"x[~/a-z.]{0,6}", fullmatch=True), JSON, max_size=3)
QUANTITIES = st.dictionaries(
    st.sampled_from([GPU, MEM, PCT, CORES, PRIO, NEURON, "cpu", "x.io/~y"]),
    st.sampled_from(["0", "1", "2", "50", "100", 1]),
    max_size=4,
)
ENV = st.lists(
    st.builds(
        lambda more, name, value: {**more, "name": name, **value},
        UNKNOWN,
        st.sampled_from(["A", "PATH", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"]),
        st.sampled_from([{}, {"value": "1"}, {"valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
    ),
    max_size=3,
)
RESOURCES = st.fixed_dictionaries({}, optional={"limits": QUANTITIES, "requests": QUANTITIES})
CONTAINERS = st.lists(
    st.builds(
        lambda more, known: {**more, "name": "c", **known},
        UNKNOWN,
        st.fixed_dictionaries({}, optional={"env": ENV | st.none(), "resources": RESOURCES}),
    ),
    min_size=1,
    max_size=3,
)


def lost(before: object, after: object, path: str = "") -> list[str]:
    """Paths of the first object that are missing or different in the second."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [f"{path}/{key}" for key in before if key not in after]
        both = [key for key in before if key in after]
        return found + [
            gone for key in both for gone in lost(before[key], after[key], f"{path}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        pairs = enumerate(zip(before, after, strict=False))
        return [gone for i, (old, new) in pairs for gone in lost(old, new, f"{path}/{i}")]
    is_same = before == after or before is None
    return [] if is_same or path == "/spec/schedulerName" else [path]


def is_overwritten(before: Json, after: Json, path: str) -> bool:
    """True for a variable that another value was configured for."""
    _, spec, kind, index, block, *rest = path.split("/")
    if block != "env":
        return False
    name = before[spec][kind][int(index)]["env"][int(rest[0])]["name"]
    new = after[spec][kind][int(index)]["env"][int(rest[0])]
    wanted = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}
    return bool(name == wanted["name"] and new == wanted)


@given(UNKNOWN, UNKNOWN, CONTAINERS, CONTAINERS, st.sampled_from([RULES, ALL_ON]))
def test_patch_keeps_every_field_it_does_not_know(
    top: Json, spec: Json, inits: list[Json], apps: list[Json], rules: WebhookRules
) -> None:
    obj = {**top, **pod(*apps, initContainers=inits, **spec)}
    response = ask(obj, rules)
    if not response["allowed"]:
        return
    changed: Json = json_patch(obj, patch_of(response))
    gone = [path for path in lost(obj, changed) if not is_overwritten(obj, changed, path)]
    assert gone == []
