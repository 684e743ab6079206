"""A cluster in memory: what a watch shows, what the API answers, what was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from hami_node.clock import Deadline
from hami_node.errors import Conflict, KubeError, NotFound
from hami_node.model import Node, Pod
from hami_node.ports import EventNote, HeldContainer, JsonPatch
from tests.fakes.pods import NODE


class FakeCluster:
    """`ports.Kube` and `ports.Watched` of one node. `shown` may lag behind `actual`."""

    def __init__(self, *pods: Pod, annotations: Mapping[str, str] | None = None) -> None:
        self.actual = {(pod.namespace, pod.name): pod for pod in pods}
        self.shown = dict(self.actual)
        self.actual_node = Node(
            name=NODE, annotations=dict(annotations or {}), resource_version="1"
        )
        self.shown_node: Node | None = self.actual_node
        self.errors: list[KubeError] = []
        self.writes: list[Mapping[str, str | None]] = []
        self.reads: list[str] = []
        self.events: list[EventNote] = []
        self.removed_locks: list[JsonPatch] = []

    def fail_next(self, *errors: KubeError) -> None:
        self.errors += errors

    def _answer(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    # -- Watched -----------------------------------------------------------------------------------
    def pods(self) -> tuple[Pod, ...]:
        return tuple(self.shown[key] for key in sorted(self.shown))

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.shown.get((namespace, name))

    def node(self) -> Node | None:
        return self.shown_node

    def is_synced(self) -> bool:
        return True

    def show(self, *pods: Pod) -> None:
        """The watch and the API have these pods now, and no others."""
        self.actual = {(pod.namespace, pod.name): pod for pod in pods}
        self.shown = dict(self.actual)

    def set_node(self, annotations: Mapping[str, str], *, is_shown: bool = True) -> None:
        version = str(int(self.actual_node.resource_version) + 1)
        self.actual_node = replace(
            self.actual_node, annotations=dict(annotations), resource_version=version
        )
        if is_shown:
            self.shown_node = self.actual_node

    # -- Kube --------------------------------------------------------------------------------------
    def within(self, deadline: Deadline) -> Self:
        del deadline
        return self

    def pods_now(self, node_name: str) -> tuple[Pod, ...]:
        self.reads.append(f"pods of {node_name}")
        self._answer()
        return tuple(pod for pod in self.actual.values() if pod.node_name == node_name)

    def read_node(self, name: str) -> Node:
        self.reads.append(name)
        self._answer()
        return self.actual_node

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        assert name == NODE
        self._answer()
        self.writes.append(dict(annotations))
        merged: dict[str, str | None] = {**self.actual_node.annotations, **annotations}
        self.set_node({k: v for k, v in merged.items() if v is not None}, is_shown=False)
        return self.actual_node

    def json_patch_node(self, name: str, patch: JsonPatch) -> Node:
        """Only what removes an annotation after a test of its value."""
        assert name == NODE
        self._answer()
        test, remove = patch
        key = str(remove["path"]).removeprefix("/metadata/annotations/").replace("~1", "/")
        if self.actual_node.annotations.get(key) != test["value"]:
            raise Conflict("test failed", 422)
        self.removed_locks.append(patch)
        self.set_node({k: v for k, v in self.actual_node.annotations.items() if k != key})
        return self.actual_node

    def read_pod(self, namespace: str, name: str) -> Pod:
        self.reads.append(f"{namespace}/{name}")
        self._answer()
        if (namespace, name) not in self.actual:
            raise NotFound(f"no pod {namespace}/{name}", 404)
        return self.actual[namespace, name]

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        raise AssertionError(f"no test here patches pods: {namespace}/{name} {patch}")

    def create_event(self, event: EventNote) -> None:
        self.events.append(event)


class FakeResources:
    """kubelet's list as given; an exception instead is raised."""

    def __init__(self, *held: HeldContainer, error: Exception | None = None) -> None:
        self.held, self.error = held, error

    def list(self, deadline: Deadline | None = None) -> tuple[HeldContainer, ...]:
        del deadline
        if self.error is not None:
            raise self.error
        return self.held
