"""A simulated kube-scheduler, and the API server's call of the webhook: the extender's two clients.

Only the caller is simulated: no queue, no back-off, none of kube-scheduler's own filters. The calls
and their order are real: a new pod goes to POST /webhook and is stored with the patch of the
response; a pod with our scheduler's name goes to POST /filter with the names of all nodes, then to
POST /bind with the chosen node.
Source: k8s.io/kube-scheduler/extender/v1, k8s.io/api/admission/v1.
"""

from __future__ import annotations

import base64
import binascii
import copy
import http.client
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.errors import HamiError
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.patches import json_patch
from hami_node.simulate.store import Json

CALL_TIMEOUT_S: Final = 30.0
"""kube-scheduler's limit for a call, `httpTimeout`."""
DEFAULT_SCHEDULER: Final = "default-scheduler"
_JSON: Final = "application/json"


class CallFailed(HamiError):
    """The extender can't be reached, or kube-scheduler would not accept its response."""


class PodDenied(HamiError):
    """The webhook denies the pod; the text is what kubectl shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The pod is bound to a node."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """No node fits for now: the reasons by node; `error` when a call reported a failure itself."""

    reasons: Mapping[str, str]
    error: str = ""

    def __str__(self) -> str:
        """Everything in a single line."""
        return self.error or "; ".join(f"{node}: {why}" for node, why in self.reasons.items())


Outcome = Bound | Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderClient:
    """Calls an extender by plain HTTP on this machine."""

    port: int

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self.port}"

    def call(self, path: str, arguments: Mapping[str, Any]) -> Json:
        """POST and return the response. Raises CallFailed."""
        status, text = self.fetch("POST", path, json.dumps(arguments).encode())
        if status != 200:
            raise CallFailed(f"POST {path} was answered with {status}: {text.strip()}")
        return _object(path, text)

    def fetch(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """(status, text) of a request. Raises CallFailed when there is no response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_TIMEOUT_S)
        try:
            connection.request(method, path, body, {"Content-Type": _JSON} if body else {})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as e:
            raise CallFailed(f"{method} {self.url}{path}: {e}") from e
        finally:
            connection.close()


# -- the API server's part -------------------------------------------------------------------------
def create_pod(api: ApiServer, extender: ExtenderClient, pod: Mapping[str, Any]) -> Json:
    """Create a pod as a user does: the webhook sees it first; returns the stored pod.

    Raises:
        PodDenied: the webhook denies it.
        CallFailed: the webhook does not respond (failurePolicy Fail).
        ApiRefusal: the API server has a pod of that name.
    """
    given = copy.deepcopy(dict(pod))
    spec = given.setdefault("spec", {})
    spec["schedulerName"] = spec.get("schedulerName") or DEFAULT_SCHEDULER  # the server's default
    answer = extender.call("/webhook", review_of(given))
    return api.create("pods", _admitted(given, answer))


def review_of(pod: Mapping[str, Any]) -> Json:
    """The AdmissionReview that the API server sends for a new pod."""
    meta = pod["metadata"]
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": meta.get("namespace", "default"),
            "name": meta["name"],
            "operation": "CREATE",
            "object": {"apiVersion": "v1", "kind": "Pod", **pod},
        },
    }


def _admitted(pod: Json, answer: Json) -> Json:
    response = answer.get("response")
    if not isinstance(response, dict):
        raise CallFailed("POST /webhook: the answer holds no response")
    if not response.get("allowed"):
        raise PodDenied(str((response.get("status") or {}).get("message", "no reason was given")))
    if "patch" not in response:
        return pod
    try:
        operations = json.loads(base64.b64decode(response["patch"], validate=True))
    except (ValueError, TypeError, binascii.Error) as e:
        raise CallFailed(f"POST /webhook: the patch can't be read: {e}") from e
    patched: Json = json_patch(pod, operations)
    return patched


# -- kube-scheduler's part -------------------------------------------------------------------------
def schedule_pod(api: ApiServer, extender: ExtenderClient, name: str, namespace: str) -> Outcome:
    """Try once to bind the pod; if no node fits, its status gets the reason, as kubectl shows it.

    Raises:
        CallFailed: the extender does not respond as it should.
        ApiRefusal: there is no such pod.
    """
    pod = api.read("pods", name, namespace)
    answer = extender.call("/filter", filter_arguments(api, pod))
    outcome = _bound(extender, pod, answer)
    if isinstance(outcome, Waiting):
        _report_unschedulable(api, pod, str(outcome))
    return outcome


def filter_arguments(api: ApiServer, pod: Json) -> Json:
    """ExtenderArgs with the names of all nodes, as sent to an extender with `nodeCacheCapable`."""
    names = [node["metadata"]["name"] for node in api.list("nodes")]
    return {"Pod": pod, "Nodes": None, "NodeNames": names}


def bind_arguments(pod: Json, node: str) -> Json:
    """ExtenderBindingArgs."""
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }


def _bound(extender: ExtenderClient, pod: Json, answer: Json) -> Outcome:
    if answer.get("Error"):
        return Waiting(reasons={}, error=str(answer["Error"]))
    fitting = answer.get("NodeNames") or []
    if not fitting:
        failed = {**(answer.get("FailedNodes") or {})}
        return Waiting(reasons=failed | (answer.get("FailedAndUnresolvableNodes") or {}))
    bound = extender.call("/bind", bind_arguments(pod, fitting[0]))
    if bound.get("Error"):
        return Waiting(reasons={}, error=str(bound["Error"]))
    return Bound(node=fitting[0])


def _report_unschedulable(api: ApiServer, pod: Json, why: str) -> None:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": why,
    }

    def change(body: Json) -> None:
        body.setdefault("status", {})["conditions"] = [condition]

    api.edit("pods", pod["metadata"]["name"], change, pod["metadata"]["namespace"])


def _object(path: str, text: str) -> Json:
    try:
        answer = json.loads(text)
    except ValueError as e:
        raise CallFailed(f"POST {path}: the answer is no JSON: {e}") from e
    if not isinstance(answer, dict):
        raise CallFailed(f"POST {path}: the answer is no JSON object")
    return answer
