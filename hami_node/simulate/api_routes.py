"""The object or list that a request to the simulated API server refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from hami_node.simulate.store import KINDS, ApiRefusal, ResourceKind

_VERBS: Final = {
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_PREFIXES: Final = tuple(
    f"{'apis' if '/' in version else 'api'}/{version}".split("/")
    for version in sorted({kind.api_version for kind in KINDS.values()})
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A request's target; `name` is "" for a list."""

    verb: str
    kind: ResourceKind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]


def route_of(method: str, target: str) -> Route:
    """Read a request line. Raises ApiRefusal (404) for a path that the server does not serve."""
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    for prefix in _PREFIXES:
        if parts[: len(prefix)] == prefix:
            break
    else:
        raise ApiRefusal(404, "NotFound", f"the simulated API server does not serve {url.path}")
    group = "/".join(prefix[1:])
    rest = parts[len(prefix) :]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get(rest[0]) if rest and len(rest) <= 3 else None
    if kind is None or kind.api_version != group:
        raise ApiRefusal(404, "NotFound", f"the simulated API server does not serve {url.path}")
    name, subresource = [*rest[1:], "", ""][:2]
    return Route(
        verb=_verb(method, name, query),
        kind=kind,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query,
    )


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if query.get("watch") in ("true", "1"):
        return "watch"
    return "get" if name else "list"
