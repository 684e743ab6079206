"""Merge patch (RFC 7396) and JSON patch (RFC 6902), as the simulated API server applies them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from hami_node.errors import HamiError

_MISSING: Final = object()


class PatchRefused(HamiError):
    """A `test` failed or a path does not exist; the API server responds with 422."""


def merge_patch(target: Any, patch: Any) -> Any:  # noqa: ANN401 - any JSON value
    """The target with the patch merged in; null removes a key. The target is not changed."""
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def json_patch(target: Any, operations: Sequence[Mapping[str, Any]]) -> Any:  # noqa: ANN401
    """The target after all operations, or none of them. The target is not changed.

    Raises:
        PatchRefused: a `test` failed, a path is missing, or an operation is unknown.
    """
    document = copy.deepcopy(target)
    for operation in operations:
        document = _apply(document, operation)
    return document


def _apply(document: Any, operation: Mapping[str, Any]) -> Any:  # noqa: ANN401
    name, path = operation.get("op"), _parts(str(operation.get("path", "")))
    if name == "test":
        _test(document, path, operation.get("value"))
        return document
    if name == "add":
        return _add(document, path, operation.get("value"))
    if name == "remove":
        return _remove(document, path)
    if name == "replace":
        _find(document, path)
        return _add(_remove(document, path) if path else document, path, operation.get("value"))
    if name in ("move", "copy"):
        source = _parts(str(operation.get("from", "")))
        value = copy.deepcopy(_find(document, source))
        return _add(_remove(document, source) if name == "move" else document, path, value)
    raise PatchRefused(f"unknown operation {name!r}")


def _parts(pointer: str) -> list[str]:
    """The steps of a JSON pointer."""
    if not pointer:
        return []
    if not pointer.startswith("/"):
        raise PatchRefused(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")]


def _step(document: Any, step: str) -> Any:  # noqa: ANN401
    if isinstance(document, Mapping):
        return document.get(step, _MISSING)
    if isinstance(document, list) and step.isdecimal() and int(step) < len(document):
        return document[int(step)]
    return _MISSING


def _find(document: Any, path: list[str]) -> Any:  # noqa: ANN401
    for step in path:
        document = _step(document, step)
        if document is _MISSING:
            raise PatchRefused(f"/{'/'.join(path)} does not exist")
    return document


def _test(document: Any, path: list[str], expected: object) -> None:  # noqa: ANN401
    """A missing value equals null, as in the real API server's library."""
    found = _find(document, path[:-1]) if path else document
    value = _step(found, path[-1]) if path else found
    if (None if value is _MISSING else value) != expected:
        raise PatchRefused(f"testing value /{'/'.join(path)} failed")


def _add(document: Any, path: list[str], value: object) -> Any:  # noqa: ANN401
    if not path:
        return value
    parent, last = _find(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list) and last == "-":
        parent.append(value)
    elif isinstance(parent, list) and last.isdecimal() and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise PatchRefused(f"nothing can be added at /{'/'.join(path)}")
    return document


def _remove(document: Any, path: list[str]) -> Any:  # noqa: ANN401
    if not path:
        raise PatchRefused("the whole object can't be removed")
    _find(document, path)
    parent = _find(document, path[:-1])
    if isinstance(parent, list):
        del parent[int(path[-1])]
    else:
        del parent[path[-1]]
    return document
