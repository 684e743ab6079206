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

_HISTORY_LIMIT: Final = 20_000  # changes that a watch can be resumed over


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object that the server knows."""

    resource: str
    kind: str
    api_version: str
    is_namespaced: bool


KINDS: Final = {
    kind.resource: kind
    for kind in (
        Kind(resource="nodes", kind="Node", api_version="v1", is_namespaced=False),
        Kind(resource="pods", kind="Pod", api_version="v1", is_namespaced=True),
        Kind(resource="events", kind="Event", api_version="v1", is_namespaced=True),
        Kind(resource="resourcequotas", kind="ResourceQuota", api_version="v1", is_namespaced=True),
        Kind(
            resource="leases",
            kind="Lease",
            api_version="coordination.k8s.io/v1",
            is_namespaced=True,
        ),
        Kind(resource="secrets", kind="Secret", api_version="v1", is_namespaced=True),
        Kind(
            resource="mutatingwebhookconfigurations",
            kind="MutatingWebhookConfiguration",
            api_version="admissionregistration.k8s.io/v1",
            is_namespaced=False,
        ),
    )
}


class Refused(HamiError):
    """An HTTP error answer, as its status and reason."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        """Keep what the Status object will hold."""
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of one object, at one version of the store."""

    version: int
    resource: str
    before: Json | None
    after: Json | None

    def seen_by(self, selects: Selects) -> tuple[str, Json] | None:
        """The watch event for a watcher with this selector; None when it is not concerned."""
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
    """All objects, guarded by one condition that also wakes watchers.

    Objects are replaced, never changed in place: what `read` hands out stays as it is.
    """

    condition: threading.Condition = field(default_factory=threading.Condition)
    version: int = 1000
    oldest: int = 1000
    _objects: dict[str, dict[tuple[str, str], Json]] = field(
        default_factory=lambda: {resource: {} for resource in KINDS}
    )
    _history: list[Change] = field(default_factory=list)

    def read(self, resource: str, namespace: str, name: str) -> Json:
        """One object. Raises Refused (404)."""
        with self.condition:
            found = self._objects[resource].get((namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found')
        return found

    def select(self, resource: str, selects: Selects) -> tuple[int, list[Json]]:
        """(version, matching objects by namespace and name)."""
        with self.condition:
            version, found = self.version, sorted(self._objects[resource].items())
        return version, [one for _, one in found if selects(one)]

    def create(self, resource: str, namespace: str, given: Mapping[str, Any]) -> Json:
        """Add an object with uid, version and time. Raises Refused (409, 422)."""
        body = copy.deepcopy(dict(given))
        meta = body.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        if not meta.get("name"):
            raise Refused(422, "Invalid", f"{resource}: metadata.name is required")
        if KINDS[resource].is_namespaced:
            meta["namespace"] = namespace or meta.get("namespace") or "default"
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        body.setdefault("kind", KINDS[resource].kind)
        body.setdefault("apiVersion", KINDS[resource].api_version)
        key = (str(meta.get("namespace", "")), str(meta["name"]))
        with self.condition:
            if key in self._objects[resource]:
                raise Refused(409, "AlreadyExists", f'{resource} "{meta["name"]}" already exists')
            return self._put(resource, key, body)

    def change(
        self, resource: str, namespace: str, name: str, edit: Callable[[Json], Json]
    ) -> Json:
        """Replace one object by what `edit` makes of it.

        Raises:
            Refused: 404; 409 when `edit` returns another resourceVersion or uid than stands there.
        """
        key = (namespace, name)
        with self.condition:
            before = self._objects[resource].get(key)
            if before is None:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found')
            body = edit(copy.deepcopy(before))
            _check_identity(resource, before, body)
            if body == before:
                return before
            return self._put(resource, key, body)

    def delete(self, resource: str, namespace: str, name: str) -> Json:
        """Remove one object. Raises Refused (404)."""
        with self.condition:
            before = self._objects[resource].pop((namespace, name), None)
            if before is None:
                raise Refused(404, "NotFound", f'{resource} "{name}" not found')
            self._record(resource, before, None)
            return before

    def changes_after(self, version: int, resource: str) -> tuple[int, list[Change]]:
        """(version now, changes since). Raises Refused (410) when that history is gone."""
        with self.condition:
            if version < self.oldest:
                raise Refused(
                    410, "Expired", f"too old resource version: {version} ({self.oldest})"
                )
            start = bisect.bisect_right(self._history, version, key=lambda one: one.version)
            found = [one for one in self._history[start:] if one.resource == resource]
            return self.version, found

    def wait_for_change(self, version: int, timeout_s: float) -> None:
        """Wait until the store is newer than `version`, is woken, or the time is over.

        Never longer than half a second: a wake between the caller's look and this wait is lost.
        """
        with self.condition:
            if self.version == version and timeout_s > 0:
                self.condition.wait(min(timeout_s, 0.5))

    def wake(self) -> None:
        """Let every waiting watcher look around."""
        with self.condition:
            self.condition.notify_all()

    def forget_history(self) -> None:
        """Drop what watches could be resumed from: any older version is answered with 410."""
        with self.condition:
            self.version += 1
            self.oldest = self.version
            self._history.clear()
            self.condition.notify_all()

    def _put(self, resource: str, key: tuple[str, str], body: Json) -> Json:
        before = self._objects[resource].get(key)
        body["metadata"]["resourceVersion"] = str(self.version + 1)
        self._objects[resource][key] = body
        self._record(resource, before, body)
        return body

    def _record(self, resource: str, before: Json | None, after: Json | None) -> None:
        self.version += 1
        change = Change(version=self.version, resource=resource, before=before, after=after)
        self._history.append(change)
        if len(self._history) > _HISTORY_LIMIT:
            del self._history[: _HISTORY_LIMIT // 2]
            self.oldest = self._history[0].version - 1
        self.condition.notify_all()


def _check_identity(resource: str, before: Json, body: Json) -> None:
    """Optimistic locking: a version or uid in the body has to be the one that stands there."""
    meta, old = body.setdefault("metadata", {}), before["metadata"]
    for field_name in ("resourceVersion", "uid"):
        given = meta.get(field_name)
        if given and given != old[field_name]:
            text = (
                f'Operation cannot be fulfilled on {resource} "{old["name"]}": '
                "the object has been modified; please apply your changes to the latest version"
            )
            raise Refused(409, "Conflict", text)
        meta[field_name] = old[field_name]
    meta["name"] = old["name"]
    if "namespace" in old:
        meta["namespace"] = old["namespace"]


def selector(namespace: str, labels: str, fields: str) -> Selects:
    """What a list or watch asks for, as one test. Raises Refused (400) for what is not known."""
    tests: list[Selects] = []
    if namespace:
        tests.append(lambda one: one["metadata"].get("namespace") == namespace)
    tests += [_field_test(term) for term in filter(None, fields.split(","))]
    tests += [_label_test(term) for term in filter(None, labels.split(","))]
    return lambda one: all(test(one) for test in tests)


_FIELDS: Final = {
    "metadata.name": ("metadata", "name"),
    "metadata.namespace": ("metadata", "namespace"),
    "spec.nodeName": ("spec", "nodeName"),
    "status.phase": ("status", "phase"),
    "involvedObject.name": ("involvedObject", "name"),
    "involvedObject.uid": ("involvedObject", "uid"),
}


def _field_test(term: str) -> Selects:
    negated = "!=" in term
    name, _, value = term.replace("==", "=").replace("!=", "=").partition("=")
    if name not in _FIELDS:
        raise Refused(400, "BadRequest", f"field label not supported: {name}")
    outer, inner = _FIELDS[name]
    return lambda one: (
        ((one.get(outer) or {}).get(inner) or "") != value
        if negated
        else (((one.get(outer) or {}).get(inner) or "") == value)
    )


def _label_test(term: str) -> Selects:
    if " " in term.strip() or "(" in term:
        raise Refused(400, "BadRequest", f"label selector not supported: {term}")
    negated = "!=" in term
    name, has_value, value = term.replace("==", "=").replace("!=", "=").partition("=")

    def test(one: Json) -> bool:
        labels = one["metadata"].get("labels") or {}
        if not has_value:
            return (name.lstrip("!") in labels) != name.startswith("!")
        return bool((labels.get(name) == value) != negated)

    return test
