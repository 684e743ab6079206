"""What is fuzzed of the extender: bodies of its calls, and quotas.

As in `targets`: a target returns the outcome in a word, and `WireError` is an answer.
"""

from __future__ import annotations

import base64
import json
from typing import Final

from hami_node.extender.http.messages import (
    FilterAnswer,
    decode_bind_args,
    decode_filter_args,
    encode_filter_answer,
)
from hami_node.extender.rules import rules_of
from hami_node.extender.webhook.rules import webhook_rules_of
from hami_node.extender.webhook.webhook import Webhook
from hami_node.simulate.patches import json_patch
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.offer import offer_of
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.request import request_of
from hami_node.wire.quotas import decode_resource_quota
from tests.fakes.settings import settings
from tests.fuzz import samples
from tests.fuzz.mutate import Source

RULES: Final = rules_of(settings(), VENDORS)
REVIEWERS: Final = tuple(
    Webhook(lambda rules=rules: rules)  # type: ignore[misc]  # mypy can't infer a default's type
    for rules in (
        webhook_rules_of(settings(), VENDORS),
        webhook_rules_of(settings(overwrite_env=True, runtime_class_name="nvidia"), VENDORS),
    )
)


def _body(source: Source, bodies: tuple[str, ...]) -> bytes:
    """A damaged body; now and then with a byte that is no text."""
    raw = source.json(bodies).encode("utf-8", "surrogatepass")
    if source.stream.random() < 0.1:
        place = source.stream.randint(0, len(raw))
        raw = raw[:place] + bytes([source.stream.randrange(256)]) + raw[place + 1 :]
    return raw


def filter_call(source: Source) -> str:
    """/filter's body, then the pod's request and what its nodes offer."""
    args = decode_filter_args(_body(source, samples.FILTER_CALLS))
    assert args.pod.name
    assert args.pod.uid
    for item in args.nodes or ():
        offer_of(item.node, RULES.vendors)
    answer = FilterAnswer(nodes=[item.raw for item in args.nodes or ()])
    assert len(json.loads(encode_filter_answer(answer))["Nodes"]["items"]) == len(args.nodes or ())
    return "untouched" if request_of(args.pod, RULES.vendors).is_empty else "asking"


def bind_call(source: Source) -> str:
    """/bind's body."""
    args = decode_bind_args(_body(source, samples.BIND_CALLS))
    assert all((args.namespace, args.name, args.uid, args.node))
    return "binding"


def review(source: Source) -> str:
    """/webhook's body: the patch applies to what came, and a second review has none left."""
    reviewer = source.stream.choice(REVIEWERS)
    body = _body(source, samples.REVIEWS)
    response = json.loads(reviewer.review(body))["response"]
    if not response["allowed"]:
        assert response["status"]["message"]
        return "denied"
    if "patch" not in response:
        return "allowed"
    asked = json.loads(body.decode("utf-8", "replace"))  # fields that nobody reads are not checked
    patch = json.loads(base64.b64decode(response["patch"]))
    asked["request"]["object"] = json_patch(asked["request"]["object"], patch)
    again = json.loads(reviewer.review(json.dumps(asked).encode()))["response"]
    assert again["allowed"]
    assert "patch" not in again
    return "patched"


def quota(source: Source) -> str:
    """A ResourceQuota, and the limits in it."""
    found = decode_resource_quota(_body(source, samples.RESOURCE_QUOTAS))
    limits = [
        found.limit(name)
        for name in (nvidia_names.RESOURCE_GPU_MEMORY, nvidia_names.RESOURCE_GPU_CORES)
    ]
    assert all(limit is None or limit >= 0 for limit in limits)
    return "limits" if any(limits) else "no limit"
