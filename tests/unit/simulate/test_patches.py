"""Merge patch and JSON patch, by the examples of RFC 7396 and RFC 6902."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami_node.simulate.patches import PatchRefused, json_patch, merge_patch

MERGES: dict[str, tuple[Any, Any, Any]] = {
    "replace": ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    "add": ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    "remove": ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    "remove what is absent": ({"a": "b"}, {"z": None}, {"a": "b"}),
    "list is replaced": ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
    "nested": ({"a": {"b": "c", "d": "e"}}, {"a": {"b": "x", "d": None}}, {"a": {"b": "x"}}),
    "object over text": ({"a": "b"}, {"a": {"c": 1, "d": None}}, {"a": {"c": 1}}),
    "object over nothing": ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    "text over object": ({"a": {"b": 1}}, {"a": "c"}, {"a": "c"}),
}


@pytest.mark.parametrize(("target", "patch", "result"), MERGES.values(), ids=MERGES)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge_patch(target, patch) == result
    assert target == before


OPERATIONS: dict[str, tuple[Any, list[dict[str, Any]], Any]] = {
    "add key": ({"a": 1}, [{"op": "add", "path": "/b", "value": 2}], {"a": 1, "b": 2}),
    "add over key": ({"a": 1}, [{"op": "add", "path": "/a", "value": 2}], {"a": 2}),
    "add into list": ({"a": [1, 3]}, [{"op": "add", "path": "/a/1", "value": 2}], {"a": [1, 2, 3]}),
    "append": ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
    "remove key": ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
    "remove from list": ({"a": [1, 2]}, [{"op": "remove", "path": "/a/0"}], {"a": [2]}),
    "replace": ({"a": {"b": 1}}, [{"op": "replace", "path": "/a/b", "value": 2}], {"a": {"b": 2}}),
    "replace all": ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    "move": ({"a": 1, "b": {}}, [{"op": "move", "from": "/a", "path": "/b/c"}], {"b": {"c": 1}}),
    "copy": ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}], {"a": [1], "b": [1]}),
    "escapes": (
        {"x/y": 1, "x~y": 2},
        [{"op": "remove", "path": "/x~1y"}, {"op": "remove", "path": "/x~0y"}],
        {},
    ),
    "tests": (
        {"a": {"b": [1, {"c": None}]}},
        [
            {"op": "test", "path": "/a/b/0", "value": 1},
            {"op": "test", "path": "/a/b/1/c", "value": None},
            {"op": "test", "path": "/a/absent", "value": None},
            {"op": "test", "path": "", "value": {"a": {"b": [1, {"c": None}]}}},
        ],
        {"a": {"b": [1, {"c": None}]}},
    ),
}


@pytest.mark.parametrize(("target", "patch", "result"), OPERATIONS.values(), ids=OPERATIONS)
def test_json_patch(target: Any, patch: list[dict[str, Any]], result: Any) -> None:
    before = copy.deepcopy(target)
    assert json_patch(target, patch) == result
    assert target == before


REFUSED: dict[str, list[dict[str, Any]]] = {
    "false test": [{"op": "test", "path": "/a", "value": 2}],
    "test below what is absent": [{"op": "test", "path": "/z/y", "value": None}],
    "remove what is absent": [{"op": "remove", "path": "/z"}],
    "remove everything": [{"op": "remove", "path": ""}],
    "replace what is absent": [{"op": "replace", "path": "/z", "value": 1}],
    "add below what is absent": [{"op": "add", "path": "/z/y", "value": 1}],
    "add below a text": [{"op": "add", "path": "/t/y", "value": 1}],
    "add past the list": [{"op": "add", "path": "/l/5", "value": 1}],
    "move what is absent": [{"op": "move", "from": "/z", "path": "/y"}],
    "no pointer": [{"op": "remove", "path": "a"}],
    "no operation": [{"op": "increase", "path": "/a"}],
    "nothing": [{}],
}


@pytest.mark.parametrize("patch", REFUSED.values(), ids=REFUSED)
def test_json_patch_refuses_and_changes_nothing(patch: list[dict[str, Any]]) -> None:
    target = {"a": 1, "t": "text", "l": [1]}
    with pytest.raises(PatchRefused):
        json_patch(target, [{"op": "add", "path": "/new", "value": 1}, *patch])
    assert target == {"a": 1, "t": "text", "l": [1]}
