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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.errors import HamiError
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.patches import json_patch
from hami_node.simulate.store import Json

CALL_TIMEOUT_S: Final = 30.0
"""kube-scheduler's limit for a call, `httpTimeout`."""
DEFAULT_SCHEDULER: Final = "default-scheduler"


class CallFailed(HamiError):
    """The program can't be reached, or kube-scheduler would not accept its response."""


class PodDenied(HamiError):
    """The webhook denies the pod; the text is what kubectl shows."""


class Unschedulable(HamiError):
    """No node fits for now; the text has the reasons by node, or the failure that was reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """Calls a program by plain HTTP on this machine."""

    port: int

    @property
    def url(self) -> str:
        """`http://127.0.0.1:<port>`."""
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, arguments: Mapping[str, Any]) -> Json:
        """Send JSON and return the object that is the response. Raises CallFailed."""
        status, text = self.fetch("POST", path, json.dumps(arguments).encode())
        if status != 200:
            raise CallFailed(f"POST {path} was answered with {status}: {text.strip()}")
        try:
            answer = json.loads(text)
        except ValueError as e:
            raise CallFailed(f"POST {path}: the answer is no JSON: {e}") from e
        if not isinstance(answer, dict):
            raise CallFailed(f"POST {path}: the answer is no JSON object")
        return answer

    def fetch(self, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        """(status, text) of a request. Raises CallFailed when there is no response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=CALL_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json"} if body else {}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as e:
            raise CallFailed(f"{method} {self.url}{path}: {e}") from e
        finally:
            connection.close()


# -- the API server's part -------------------------------------------------------------------------
def create_pod(api: ApiServer, extender: HttpClient, pod: Mapping[str, Any]) -> Json:
    """Create a pod as a user does: the webhook sees it first; returns the stored pod.

    Raises:
        PodDenied: the webhook denies it.
        CallFailed: the webhook does not respond (failurePolicy Fail).
        ApiRefusal: the API server has a pod of that name.
    """
    given = copy.deepcopy(dict(pod))
    spec = given.setdefault("spec", {})
    spec["schedulerName"] = spec.get("schedulerName") or DEFAULT_SCHEDULER  # the server's default
    response = extender.post("/webhook", review_of(given)).get("response")
    if not isinstance(response, dict):
        raise CallFailed("POST /webhook: the answer holds no response")
    if not response.get("allowed"):
        raise PodDenied(str((response.get("status") or {}).get("message", "no reason was given")))
    if "patch" in response:
        try:
            operations = json.loads(base64.b64decode(response["patch"], validate=True))
        except (ValueError, TypeError, binascii.Error) as e:
            raise CallFailed(f"POST /webhook: the patch can't be read: {e}") from e
        given = json_patch(given, operations)
    return api.create("pods", given)


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


# -- kube-scheduler's part -------------------------------------------------------------------------
def schedule_pod(api: ApiServer, extender: HttpClient, name: str, namespace: str) -> str:
    """Try once to bind the pod; returns its node.

    Raises:
        Unschedulable: no node fits; its status got the reason, as kubectl shows it.
        CallFailed: the extender does not respond as it should.
        ApiRefusal: there is no such pod.
    """
    pod = api.read("pods", name, namespace)
    every = [node["metadata"]["name"] for node in api.list("nodes")]
    answer = extender.post("/filter", filter_arguments(pod, every))
    nodes, why = answer.get("NodeNames") or [], answer.get("Error")
    if nodes and not why:
        why = extender.post("/bind", bind_arguments(pod, nodes[0])).get("Error")
        if not why:
            return str(nodes[0])
    if not why:
        kinds = ("FailedNodes", "FailedAndUnresolvableNodes")
        failed = (item for kind in kinds for item in (answer.get(kind) or {}).items())
        why = "; ".join(f"{node}: {reason}" for node, reason in failed)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

    def change(body: Json) -> None:
        body.setdefault("status", {})["conditions"] = [{**condition, "message": why}]

    api.edit("pods", name, change, namespace)
    raise Unschedulable(str(why))


def filter_arguments(pod: Mapping[str, Any], nodes: Iterable[str]) -> Json:
    """ExtenderArgs with names of nodes, as sent to an extender with `nodeCacheCapable`."""
    return {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)}


def bind_arguments(pod: Mapping[str, Any], node: str) -> Json:
    """ExtenderBindingArgs."""
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }
