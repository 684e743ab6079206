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
    holder = {"": copy.deepcopy(target)}  # so that the document too is a value with a key
    for operation in operations:
        _apply(holder, operation)
    return holder[""]


def _apply(holder: Any, operation: Mapping[str, Any]) -> None:  # noqa: ANN401
    name, path = operation.get("op"), _parts(str(operation.get("path", "")))
    value = operation.get("value")
    if name == "test":
        found = _step(_find(holder, path[:-1]), path[-1])
        # a missing value equals null, as in the real API server's library
        if (None if found is _MISSING else found) != value:
            raise PatchRefused(f"testing value {'/'.join(path)} failed")
    elif name == "add":
        _add(holder, path, value)
    elif name == "remove":
        _remove(holder, path)
    elif name == "replace":
        if len(path) > 1:
            _remove(holder, path)
        _add(holder, path, value)
    elif name in ("move", "copy"):
        source = _parts(str(operation.get("from", "")))
        value = copy.deepcopy(_find(holder, source))
        if name == "move":
            _remove(holder, source)
        _add(holder, path, value)
    else:
        raise PatchRefused(f"unknown operation {name!r}")


def _parts(pointer: str) -> list[str]:
    """The steps of a JSON pointer, the first of which leads to the document."""
    if pointer and not pointer.startswith("/"):
        raise PatchRefused(f"{pointer!r} is no JSON pointer")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")]


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
            raise PatchRefused(f"{'/'.join(path)} does not exist")
    return document


def _add(holder: Any, path: list[str], value: object) -> None:  # noqa: ANN401
    parent, last = _find(holder, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list) and last == "-":
        parent.append(value)
    elif isinstance(parent, list) and last.isdecimal() and int(last) <= len(parent):
        parent.insert(int(last), value)
    else:
        raise PatchRefused(f"nothing can be added at {'/'.join(path)}")


def _remove(holder: Any, path: list[str]) -> None:  # noqa: ANN401
    if len(path) == 1:
        raise PatchRefused("the whole object can't be removed")
    _find(holder, path)
    parent, last = _find(holder, path[:-1]), path[-1]
    del parent[int(last) if isinstance(parent, list) else last]
