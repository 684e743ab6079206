"""What the CDI specification says about a spec file, as a JSON schema and as rules beside it.

Written after the specification (0.3.0 to 1.0.0) and what its library checks, as far as our specs
use it: a field that is not named here must not occur.
"""

from __future__ import annotations

from typing import Any, Final

_PATH: Final = {"type": "string", "pattern": "^/"}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_HOOKS: Final = (
    *("prestart", "createRuntime", "createContainer"),
    *("startContainer", "poststart", "poststop"),
)


def _object(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


def _list(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item}


_EDITS: Final = _object(
    [],
    {
        "env": _list({"type": "string", "pattern": "^[^=]+="}),
        "deviceNodes": _list(
            _object(
                ["path"],
                {
                    "path": _PATH,
                    "hostPath": _PATH,
                    "type": {"enum": ["b", "c", "u", "p"]},
                    "major": {"type": "integer", "minimum": 1},
                    "minor": {"type": "integer", "minimum": 0},
                    "fileMode": {"type": "integer", "minimum": 1, "maximum": 0o777},
                    "permissions": {"type": "string", "pattern": "^[rwm]+$"},
                },
            )
        ),
        "mounts": _list(
            _object(
                ["hostPath", "containerPath"],
                {"hostPath": _PATH, "containerPath": _PATH, "options": _TEXTS},
            )
        ),
        "hooks": _list(
            _object(
                ["hookName", "path"],
                {"hookName": {"enum": list(_HOOKS)}, "path": _PATH, "args": _TEXTS, "env": _TEXTS},
            )
        ),
    },
)
SCHEMA: Final = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        ["cdiVersion", "kind", "devices"],
        {
            "cdiVersion": {"enum": ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0"]},
            "kind": {
                "type": "string",
                "pattern": r"^[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
                r"/[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?$",
            },
            "devices": {
                "type": "array",
                "minItems": 1,
                "items": _object(
                    ["name", "containerEdits"],
                    {
                        "name": {
                            "type": "string",
                            "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$",
                        },
                        "containerEdits": _EDITS,
                    },
                ),
            },
            "containerEdits": _EDITS,
        },
    ),
}


def check(spec: Any) -> None:
    """Raises ValidationError or AssertionError: an engine would not take the file."""
    import jsonschema  # only here: its import builds 39 parsers

    jsonschema.validate(spec, SCHEMA)
    names = [device["name"] for device in spec["devices"]]
    assert len(set(names)) == len(names)
    every = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    assert all(device["containerEdits"] for device in spec["devices"]), "empty edits are refused"
    has_host_path = any("hostPath" in node for e in every for node in e.get("deviceNodes", ()))
    has_digit = any(not name[0].isalpha() for name in names)
    assert spec["cdiVersion"] == ("0.5.0" if has_host_path or has_digit else "0.3.0")
