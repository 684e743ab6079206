"""The API server's objects in memory behind `ports.ExtenderKube`, and failures on command."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TypeVar

from hami_node.errors import Conflict, KubeError, NotFound
from hami_node.model import Node, Pod
from hami_node.ports import EventNote, Fence, JsonPatch
from hami_node.simulate.patches import PatchRefused, json_patch, merge_patch
from hami_node.simulate.store import ApiRefusal, Json, Store
from hami_node.wire.objects import decode_node, decode_pod

T = TypeVar("T")


class FakeExtenderKube:
    """Writes are checked as by the API server: versions, uids, one binding for each pod."""

    def __init__(self) -> None:
        self.store = Store()
        self.calls: list[str] = []
        self.events: list[EventNote] = []
        self.binding_limits: list[float | None] = []
        self._failures: dict[str, list[tuple[KubeError, bool]]] = {}
        self.before: dict[str, Callable[[], object]] = {}
        self.fence: Fence = lambda: None

    def fail(self, method: str, *errors: KubeError, is_served: bool = False) -> None:
        """Let the next calls of a method fail; `is_served`: only their answers are lost."""
        self._failures.setdefault(method, []).extend((error, is_served) for error in errors)

    def _serve(self, method: str, body: Callable[[], T]) -> T:
        if not method.startswith("read"):
            self.fence()
        self.calls.append(method)
        if (interlude := self.before.pop(method, None)) is not None:
            interlude()
        failures = self._failures.get(method)
        error, is_served = failures.pop(0) if failures else (None, True)
        if error is not None and not is_served:
            raise error
        try:
            answer = body()
        except ApiRefusal as e:
            kind = {404: NotFound, 409: Conflict}.get(e.status, KubeError)
            raise kind(str(e), e.status) from e
        except PatchRefused as e:
            raise Conflict(str(e), 422) from e
        if error is not None:
            raise error
        return answer

    # -- Kube --------------------------------------------------------------------------------------
    def read_node(self, name: str) -> Node:
        return decode_node(self._serve("read_node", lambda: self.store.read("nodes", "", name)))

    def list_nodes(self) -> tuple[Node, ...]:
        return tuple(decode_node(item) for item in self.store.select("nodes", lambda _: True)[1])

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        return self._merged_node("merge_patch_node", name, {"annotations": dict(annotations)})

    def label_node(self, name: str, labels: Mapping[str, str]) -> Node:
        return self._merged_node("label_node", name, {"labels": dict(labels)})

    def _merged_node(self, method: str, name: str, metadata: Json) -> Node:
        def merged(old: Json) -> Json:
            return _merged(old, {"metadata": metadata})

        return decode_node(
            self._serve(method, lambda: self.store.change("nodes", "", name, merged))
        )

    def json_patch_node(self, name: str, patch: JsonPatch) -> Node:
        return decode_node(
            self._serve(
                "json_patch_node",
                lambda: self.store.change("nodes", "", name, lambda old: _patched(old, patch)),
            )
        )

    def read_pod(self, namespace: str, name: str) -> Pod:
        return decode_pod(self._serve("read_pod", lambda: self.store.read("pods", namespace, name)))

    def list_pods(self, node_name: str | None = None) -> tuple[Pod, ...]:
        del node_name
        return tuple(decode_pod(item) for item in self.store.select("pods", lambda _: True)[1])

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        return decode_pod(
            self._serve(
                "json_patch_pod",
                lambda: self.store.change(
                    "pods", namespace, name, lambda old: _patched(old, patch)
                ),
            )
        )

    def create_event(self, event: EventNote) -> None:
        self.events.append(event)

    # -- ExtenderKube ------------------------------------------------------------------------------
    def fenced(self, fence: Fence) -> FakeExtenderKube:
        view = copy.copy(self)
        view.fence = fence
        return view

    def list_limit_ranges(self, namespace: str) -> tuple[Json, ...]:
        def listed() -> tuple[Json, ...]:
            found = self.store.select("limitranges", lambda _: True)[1]
            return tuple(one for one in found if one["metadata"]["namespace"] == namespace)

        return self._serve("list_limit_ranges", listed)

    def patch_pod_exactly(
        self,
        pod: Pod,
        annotations: Mapping[str, str | None],
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        metadata = {
            "uid": pod.uid,
            "resourceVersion": pod.resource_version,
            "annotations": dict(annotations),
            "labels": dict(labels or {}),
        }
        return decode_pod(
            self._serve(
                "patch_pod_exactly",
                lambda: self.store.change(
                    "pods",
                    pod.namespace,
                    pod.name,
                    lambda old: _merged(old, {"metadata": metadata}),
                ),
            )
        )

    def bind_pod(
        self,
        pod: Pod,
        node_name: str,
        annotations: Mapping[str, str],
        within_s: float | None = None,
    ) -> None:
        self.binding_limits.append(within_s)

        def bound(old: Json) -> Json:
            if pod.resource_version not in ("", old["metadata"]["resourceVersion"]):
                raise ApiRefusal(409, "Conflict", "the pod was written since")
            if old["metadata"]["uid"] != pod.uid or old["spec"].get("nodeName"):
                raise ApiRefusal(409, "Conflict", "another pod, or bound already")
            old["spec"]["nodeName"] = node_name
            return _merged(old, {"metadata": {"annotations": dict(annotations)}})

        self._serve("bind_pod", lambda: self.store.change("pods", pod.namespace, pod.name, bound))


def _merged(old: Json, patch: Json) -> Json:
    merged: Json = merge_patch(old, patch)
    return merged


def _patched(old: Json, patch: JsonPatch) -> Json:
    patched: Json = json_patch(old, list(patch))
    return patched
