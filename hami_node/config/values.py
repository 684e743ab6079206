"""Convert the value of a setting: strict types, ranges, errors that name what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from hami_node.config.settings import Declaration
from hami_node.errors import ConfigError
from hami_node.setting_types import WrittenValue

_TRUE_WORDS: Final = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_EXCERPT_CHARS: Final = 80


@cache
def _types(owner: type) -> Mapping[str, object]:
    return get_type_hints(owner, include_extras=True)


def _kind(setting: Declaration) -> object:
    return _types(setting.owner)[setting.name]


def value_from_file(setting: Declaration, value: object, source: str, label: str) -> object:
    """Check a setting's value from a YAML or JSON file.

    `source` (the file) and `label` (the key as in the file) are for the error. A list may be text
    with commas, too, as flags and variables have it.

    Raises:
        ConfigError: wrong type or out of range.
    """
    if isinstance(value, str) and _is_plain_list(_core(_kind(setting))):
        return value_from_text(setting, value, source, label)
    is_text = setting.names.is_quoted and isinstance(value, str)
    return _checked(setting, value, value, source, label, is_text=is_text)


def value_from_text(setting: Declaration, text: str, source: str, label: str) -> object:
    """Check a value given as text: a flag or an environment variable.

    Lists use commas; lists of objects are JSON.

    Raises:
        ConfigError: not understood or out of range.
    """
    kind = _core(_kind(setting))
    value: object = text.strip()
    if kind is bool:
        value = _TRUE_WORDS.get(text.strip().lower(), text)
    elif _has_objects(kind):
        value = _from_json(text)
    elif _is_plain_list(kind):
        value = [item.strip() for item in text.split(",") if item.strip()]
    return _checked(setting, value, text, source, label, is_text=True)


def _is_plain_list(kind: object) -> bool:
    """True for a list of texts or numbers."""
    return get_origin(kind) is tuple and not _has_objects(kind)


def _has_objects(kind: object) -> bool:
    """True for a list whose items are objects."""
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    return isinstance(item, type) and issubclass(item, msgspec.Struct)


def _from_json(text: str) -> object:
    """The value; what is no JSON stays text, which no list of objects is made from."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return text


def _checked(  # `raw` is the value as written; `value` may be split already
    setting: Declaration, value: object, raw: object, source: str, label: str, *, is_text: bool
) -> object:
    try:
        converted = msgspec.convert(value, _kind(setting), strict=not is_text, dec_hook=_own_form)
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(source, label, excerpt(raw), f"allowed is {allowed(setting)}") from e
    if isinstance(converted, StrEnum) and (why := setting.names.refused.get(converted)):
        hint = f"{why}; allowed is {allowed(setting)}"
        raise ConfigError(source, label, excerpt(raw), hint)
    return converted


def _own_form(kind: type, value: object) -> object:
    if issubclass(kind, WrittenValue):
        return kind.read(value)
    if kind is Path and isinstance(value, str) and value.startswith("/") and "\0" not in value:
        return Path(value)
    raise ValueError


def excerpt(value: object) -> object:
    """A value for an error message: cut when long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _EXCERPT_CHARS else text[: _EXCERPT_CHARS - 3] + "..."


def allowed(setting: Declaration) -> str:
    """What a setting accepts, in words: `a whole number from 1 to 100000`."""
    kind = _core(_kind(setting))
    if setting.names.refused and isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(each for each in kind if each not in setting.names.refused)
    return _in_words(_kind(setting))


def _core(kind: object) -> object:
    if get_origin(kind) is Annotated:
        return _core(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _core(next(part for part in get_args(kind) if part is not NoneType))
    return kind


def _in_words(kind: object) -> str:
    if get_origin(kind) is Annotated:
        meta = get_args(kind)[1]
        return meta.description or _in_words(get_args(kind)[0]) + _range(meta)
    kind = _core(kind)
    if get_origin(kind) is tuple:
        return f"a list, each {_in_words(get_args(kind)[0])}"
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "one of " + ", ".join(kind)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "an absolute path",
    }
    return words.get(kind, "text") if isinstance(kind, type) else "text"


def _range(meta: msgspec.Meta) -> str:
    if meta.gt is not None:
        low = f" above {meta.gt}"
    else:
        low = f" from {meta.ge}" if meta.ge is not None else ""
    return low + (f" to {meta.le}" if meta.le is not None else "")
