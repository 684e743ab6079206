"""Paths of the API server: from names to single segments, and from paths to resources."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from hami_node.errors import NotFound

CORE: Final = "/api/v1"
POLICY: Final = "/apis/policy/v1"
LEASES: Final = "/apis/coordination.k8s.io/v1"


def segment(name: str) -> str:
    """A name as a single segment of a path.

    Raises:
        NotFound: no object can have this name; a request with it would mean something else.
    """
    if name in {"", ".", ".."}:
        raise NotFound(f"no object can be named {name!r}", 404)
    return quote(name, safe="")


def resource_of(path: str) -> str:
    """The resource in a path, never a name: it becomes a label of a metric."""
    parts = path.partition("?")[0].strip("/").split("/")
    skipped = {"api": 2, "apis": 3}.get(parts[0])
    rest = parts[skipped:] if skipped else parts[:1]
    if len(rest) >= 3 and rest[0] == "namespaces":
        rest = rest[2:]
    return rest[0] if rest else ""


def node_path(name: str) -> str:
    """Path of a node."""
    return f"{CORE}/nodes/{segment(name)}"


def pod_path(namespace: str, name: str = "") -> str:
    """Path of a pod; without a name, of a namespace's pods."""
    base = f"{CORE}/namespaces/{segment(namespace)}/pods"
    return f"{base}/{segment(name)}" if name else base


def lease_path(namespace: str, name: str = "") -> str:
    """Path of a Lease; without a name, of a namespace's leases."""
    base = f"{LEASES}/namespaces/{segment(namespace)}/leases"
    return f"{base}/{segment(name)}" if name else base
