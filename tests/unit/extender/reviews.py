"""AdmissionReviews of pods, asked and answered, for the tests of the webhook."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from hami_node.extender.webhook import Webhook, WebhookRules, webhook_rules_of
from hami_node.simulate.patches import json_patch
from hami_node.vendors.holding import reservation_keys
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from tests.fakes.reviews import review_of
from tests.fakes.settings import settings

GPU, MEM, PCT, CORES, PRIO = (
    nvidia_names.RESOURCE_GPU,
    nvidia_names.RESOURCE_GPU_MEMORY,
    nvidia_names.RESOURCE_GPU_MEMORY_PERCENT,
    nvidia_names.RESOURCE_GPU_CORES,
    nvidia_names.RESOURCE_GPU_PRIORITY,
)
NEURON, NEURON_CORE = neuron_names.RESOURCE_NEURON, neuron_names.RESOURCE_NEURON_CORE
SHARE = {GPU: "1", MEM: "3000", CORES: "30"}
Limits = Mapping[str, object]
Json = dict[str, Any]


def webhook_rules(**values: object) -> WebhookRules:
    """The rules under these settings."""
    return webhook_rules_of(settings(**values), VENDORS)


RULES = webhook_rules()
RESERVATION_KEYS = reservation_keys(vendor.protocol for vendor in RULES.vendors)


def container(
    limits: Limits | None = None, name: str = "main", *, has_requests: bool = True, **more: object
) -> Json:
    """A container as the API server shows it to a webhook: requests are equal to limits."""
    found: Json = {"name": name, "image": "cuda", **more}
    if limits is not None:
        found["resources"] = {"limits": dict(limits)}
        if has_requests:
            found["resources"]["requests"] = dict(limits)
    return found


def pod(*containers: Json, annotations: Mapping[str, str] | None = None, **spec: object) -> Json:
    """A pod whose schedulerName was defaulted already."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "annotations": dict(annotations or {})},
        "spec": {"schedulerName": "default-scheduler", "containers": list(containers), **spec},
    }


def ask(obj: object, rules: WebhookRules = RULES, **request: object) -> Json:
    """The response to one object."""
    body = json.dumps(review_of(obj, **request)).encode()
    answer = json.loads(Webhook(rules).review(body))
    assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response: Json = answer["response"]
    assert response["uid"] == "705ab4f5"
    return response


def patch_of(response: Json) -> list[Json]:
    assert response["allowed"], response
    if "patch" not in response:
        assert "patchType" not in response
        return []
    assert response["patchType"] == "JSONPatch"
    found: list[Json] = json.loads(base64.b64decode(response["patch"]))
    assert found
    return found


def admitted(obj: Json, rules: WebhookRules = RULES) -> Json:
    """The object after the patch; a second review has nothing left to change."""
    changed: Json = json_patch(obj, patch_of(ask(obj, rules)))
    assert patch_of(ask(changed, rules)) == []
    return changed


def refusal(obj: Json, rules: WebhookRules = RULES) -> tuple[int, str]:
    response = ask(obj, rules)
    assert response["allowed"] is False
    assert "patch" not in response
    return response["status"]["code"], response["status"]["message"]


def limits_of(obj: Json, index: int = 0) -> Json:
    resources = obj["spec"]["containers"][index]["resources"]
    assert resources.get("requests", resources["limits"]) == resources["limits"]
    found: Json = resources["limits"]
    return found


def env_of(obj: Json, index: int = 0) -> list[Json]:
    found: list[Json] = obj["spec"]["containers"][index].get("env", [])
    return found
