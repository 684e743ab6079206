"""The client of an extender before objects in memory, and failures of its calls on command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from hami_node.cluster.calls import JSON_PATCH, ApiCall
from hami_node.errors import KubeError
from tests.fakes.local_kube import LocalKube

_METHODS: Final = {
    "get nodes": "read_node",
    "get pods": "read_pod",
    "patch pods": "patch_pod_exactly",
    "create pods/binding": "bind_pod",
    "list limitranges": "list_limit_ranges",
}


class FakeExtenderKube(LocalKube):
    """Notes its calls by the client's method; `before` has what happens before the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.before: dict[str, Callable[[], object]] = {}
        self._failures: dict[str, list[tuple[KubeError, bool]]] = {}

    def fail(self, method: str, *errors: KubeError, is_served: bool = False) -> None:
        """Let the next calls of a method fail; `is_served`: only their answers are lost."""
        self._failures.setdefault(method, []).extend((error, is_served) for error in errors)

    def around(self, call: ApiCall, serve: Callable[[], bytes]) -> bytes:
        if call.verb == "list" and call.resource in ("nodes", "pods"):
            return serve()  # as a watch sees them
        method = _method_of(call)
        self.calls.append(method)
        if (interlude := self.before.pop(method, None)) is not None:
            interlude()
        failures = self._failures.get(method)
        error, is_served = failures.pop(0) if failures else (None, True)
        if error is not None and not is_served:
            raise error
        answer = serve()
        if error is not None:
            raise error
        return answer


def _method_of(call: ApiCall) -> str:
    if call.content_type == JSON_PATCH:
        return f"json_patch_{call.resource.removesuffix('s')}"
    if call.verb == "patch" and call.resource == "nodes":
        assert isinstance(call.body, Mapping)
        return "label_node" if "labels" in call.body["metadata"] else "merge_patch_node"
    return _METHODS.get(f"{call.verb} {call.resource}", str(call))
