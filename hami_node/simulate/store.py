"""The objects of the simulated API server: versions, history for watches, selectors."""

from __future__ import annotations

import bisect
import copy
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from hami_node.errors import HamiError

Json = dict[str, Any]
Selects = Callable[[Json], bool]

_HISTORY_LIMIT: Final = 20_000  # changes that a resumed watch may have missed


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceKind:
    """A kind of object that the server supports."""

    resource: str
    kind: str
    api_version: str
    is_namespaced: bool


_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_IN_NAMESPACES: Final = (
    ("pods", "Pod", "v1"),
    ("events", "Event", "v1"),
    ("resourcequotas", "ResourceQuota", "v1"),
    ("limitranges", "LimitRange", "v1"),
    ("secrets", "Secret", "v1"),
    ("services", "Service", "v1"),
    ("serviceaccounts", "ServiceAccount", "v1"),
    ("configmaps", "ConfigMap", "v1"),
    ("daemonsets", "DaemonSet", "apps/v1"),
    ("deployments", "Deployment", "apps/v1"),
    ("leases", "Lease", "coordination.k8s.io/v1"),
    ("endpointslices", "EndpointSlice", "discovery.k8s.io/v1"),
    ("poddisruptionbudgets", "PodDisruptionBudget", "policy/v1"),
)
_OF_THE_CLUSTER: Final = (
    ("nodes", "Node", "v1"),
    ("runtimeclasses", "RuntimeClass", "node.k8s.io/v1"),
    ("clusterrolebindings", "ClusterRoleBinding", "rbac.authorization.k8s.io/v1"),
    ("mutatingwebhookconfigurations", "MutatingWebhookConfiguration", _ADMISSION),
    ("validatingadmissionpolicies", "ValidatingAdmissionPolicy", _ADMISSION),
    ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", _ADMISSION),
)
KINDS: Final = {
    resource: ResourceKind(
        resource=resource, kind=kind, api_version=version, is_namespaced=is_namespaced
    )
    for kinds, is_namespaced in ((_IN_NAMESPACES, True), (_OF_THE_CLUSTER, False))
    for resource, kind, version in kinds
}


class ApiRefusal(HamiError):
    """An HTTP error response: its status and reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Keep the values for the Status object."""
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectChange:
    """A change of an object, at a version of the store."""

    version: int
    resource: str
    before: Json | None
    after: Json | None

    def seen_by(self, selects: Selects) -> tuple[str, Json] | None:
        """The watch event for a watcher with this selector; None when it is not affected."""
        was = self.before is not None and selects(self.before)
        if self.after is not None and selects(self.after):
            return ("MODIFIED" if was else "ADDED", self.after)
        if not was or self.before is None:
            return None
        gone = copy.deepcopy(self.after or self.before)
        gone["metadata"]["resourceVersion"] = str(self.version)
        return ("DELETED", gone)


@dataclass(slots=True)
class Store:
    """All objects, guarded by a condition that also wakes watchers.

    Objects are replaced, never changed in place: what `read` returns is never changed.
    """

    condition: threading.Condition = field(default_factory=threading.Condition)
    version: int = 1000
    oldest: int = 1000
    _objects: dict[str, dict[tuple[str, str], Json]] = field(
        default_factory=lambda: {resource: {} for resource in KINDS}
    )
    _history: list[ObjectChange] = field(default_factory=list)

    def read(self, resource: str, namespace: str, name: str) -> Json:
        """The object with this name. Raises ApiRefusal (404)."""
        with self.condition:
            found = self._objects[resource].get((namespace, name))
        if found is None:
            raise ApiRefusal(404, "NotFound", f'{resource} "{name}" not found')
        return found

    def select(self, resource: str, selects: Selects) -> tuple[int, list[Json]]:
        """(version, matching objects by namespace and name)."""
        with self.condition:
            version, found = self.version, sorted(self._objects[resource].items())
        return version, [item for _, item in found if selects(item)]

    def create(self, resource: str, namespace: str, given: Mapping[str, Any]) -> Json:
        """Add an object with uid, version and time. Raises ApiRefusal (409, 422)."""
        body = copy.deepcopy(dict(given))
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        if not meta.get("name"):
            raise ApiRefusal(422, "Invalid", f"{resource}: metadata.name is required")
        if KINDS[resource].is_namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        body.setdefault("kind", KINDS[resource].kind)
        body.setdefault("apiVersion", KINDS[resource].api_version)
        key = (str(meta.get("namespace", "")), str(meta["name"]))
        with self.condition:
            if key in self._objects[resource]:
                raise ApiRefusal(
                    409, "AlreadyExists", f'{resource} "{meta["name"]}" already exists'
                )
            return self._put(resource, key, body)

    def change(
        self, resource: str, namespace: str, name: str, edit: Callable[[Json], Json]
    ) -> Json:
        """Replace an object by the result of `edit`.

        Raises:
            ApiRefusal: 404; 409 when `edit` returns another resourceVersion or uid.
        """
        key = (namespace, name)
        with self.condition:
            before = self._objects[resource].get(key)
            if before is None:
                raise ApiRefusal(404, "NotFound", f'{resource} "{name}" not found')
            body = edit(copy.deepcopy(before))
            _check_identity(resource, before, body)
            if body == before:
                return before
            return self._put(resource, key, body)

    def delete(self, resource: str, namespace: str, name: str) -> Json:
        """Remove an object. Raises ApiRefusal (404)."""
        with self.condition:
            before = self._objects[resource].pop((namespace, name), None)
            if before is None:
                raise ApiRefusal(404, "NotFound", f'{resource} "{name}" not found')
            self._record(resource, before, None)
            return before

    def changes_after(self, version: int, resource: str) -> tuple[int, list[ObjectChange]]:
        """(version now, changes since). Raises ApiRefusal (410) when that history is gone."""
        with self.condition:
            if version < self.oldest:
                raise ApiRefusal(
                    410, "Expired", f"too old resource version: {version} ({self.oldest})"
                )
            start = bisect.bisect_right(self._history, version, key=lambda item: item.version)
            found = [item for item in self._history[start:] if item.resource == resource]
            return self.version, found

    def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Wait until the store is newer than `version`, is woken, or the time is over.

        Never longer than half a second: a wake between the caller's check and this wait is lost.
        """
        with self.condition:
            if self.version == version and timeout_s > 0:
                self.condition.wait(min(timeout_s, 0.5))

    def wake(self) -> None:
        """Make every waiting watcher check its state."""
        with self.condition:
            self.condition.notify_all()

    def _put(self, resource: str, key: tuple[str, str], body: Json) -> Json:
        before = self._objects[resource].get(key)
        body["metadata"]["resourceVersion"] = str(self.version + 1)
        self._objects[resource][key] = body
        self._record(resource, before, body)
        return body

    def _record(self, resource: str, before: Json | None, after: Json | None) -> None:
        self.version += 1
        change = ObjectChange(version=self.version, resource=resource, before=before, after=after)
        self._history.append(change)
        if len(self._history) > _HISTORY_LIMIT:
            del self._history[: _HISTORY_LIMIT // 2]
            self.oldest = self._history[0].version - 1
        self.condition.notify_all()


def _check_identity(resource: str, before: Json, body: Json) -> None:
    """Optimistic locking: a version or uid in the body has to equal the stored value."""
    meta, old = body.setdefault("metadata", {}), before["metadata"]
    for field_name in ("resourceVersion", "uid"):
        given = meta.get(field_name)
        if given and given != old[field_name]:
            text = (
                f'Operation cannot be fulfilled on {resource} "{old["name"]}": '
                "the object has been modified; please apply your changes to the latest version"
            )
            raise ApiRefusal(409, "Conflict", text)
        meta[field_name] = old[field_name]
    meta["name"] = old["name"]
    if "namespace" in old:
        meta["namespace"] = old["namespace"]


def selector(namespace: str, labels: str, fields: str) -> Selects:
    """A test for the objects of a list or watch. Raises ApiRefusal (400) for unknown selectors."""
    tests: list[Selects] = []
    if namespace:
        tests.append(lambda item: item["metadata"].get("namespace") == namespace)
    tests += [_field_test(term) for term in filter(None, fields.split(","))]
    tests += [_label_test(term) for term in filter(None, labels.split(","))]
    return lambda item: all(test(item) for test in tests)


_FIELDS: Final = (
    "metadata.name",
    "metadata.namespace",
    "spec.nodeName",
    "status.phase",
    "involvedObject.name",
    "involvedObject.uid",
)


def _parts(term: str) -> tuple[str, str, str, bool]:
    """Name, the sign if there is one, value, and whether it must differ."""
    name, sign, value = term.replace("==", "=").replace("!=", "=").partition("=")
    return name, sign, value, "!=" in term


def _field_test(term: str) -> Selects:
    name, _, value, differs = _parts(term)
    if name not in _FIELDS:
        raise ApiRefusal(400, "BadRequest", f"field label not supported: {name}")
    outer, _, inner = name.partition(".")
    return lambda item: (((item.get(outer) or {}).get(inner) or "") == value) != differs


def _label_test(term: str) -> Selects:
    if " " in term.strip() or "(" in term:
        raise ApiRefusal(400, "BadRequest", f"label selector not supported: {term}")
    name, sign, value, differs = _parts(term)

    def test(item: Json) -> bool:
        labels = item["metadata"].get("labels") or {}
        if not sign:
            return (name.lstrip("!") in labels) != name.startswith("!")
        return bool((labels.get(name) == value) != differs)

    return test
