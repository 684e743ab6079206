"""Turn one outside value into one setting: strict types, ranges, errors that name the allowed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from hami_node.errors import ConfigError
from hami_node.model import Mode
from hami_node.settings import SERVED_MODES, Settings

_TRUE_WORDS: Final = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
_EXCERPT_CHARS: Final = 80


@cache
def _types() -> Mapping[str, object]:
    return get_type_hints(Settings, include_extras=True)


def value_from_file(name: str, value: object, source: str, label: str) -> object:
    """Check a value that a YAML or JSON file holds for the setting `name`.

    `source` (the file) and `label` (the key as the file spells it) are for the error.

    Raises:
        ConfigError: wrong type or out of range.
    """
    return _checked(name, value, value, source, label)


def value_from_text(name: str, text: str, source: str, label: str) -> object:
    """Check a value that came as text: a flag or an environment variable. Lists use commas.

    Raises:
        ConfigError: not understood or out of range.
    """
    kind = _core(_types()[name])
    value: object = text.strip()
    if kind is bool:
        value = _TRUE_WORDS.get(text.strip().lower(), text)
    elif get_origin(kind) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    return _checked(name, value, text, source, label, is_text=True)


def _checked(  # the raw value is what the person wrote; `value` may be split already
    name: str, value: object, raw: object, source: str, label: str, *, is_text: bool = False
) -> object:
    if name == "lib_cuda_log_level" and isinstance(value, str):
        is_text = True  # device-config.yaml writes this number in quotes
    kind = _types()[name]
    try:
        made = msgspec.convert(value, kind, strict=not is_text, dec_hook=_path)
    except (msgspec.ValidationError, ValueError) as e:
        raise ConfigError(source, label, excerpt(raw), f"allowed is {allowed(name)}") from e
    if isinstance(made, Mode) and made not in SERVED_MODES:
        cure = f"this mode is not served yet; allowed is {allowed(name)}"
        raise ConfigError(source, label, excerpt(raw), cure)
    return made


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value.startswith("/") and "\0" not in value:
        return Path(value)
    raise ValueError


def excerpt(value: object) -> object:
    """A value fit for an error line: cut when long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _EXCERPT_CHARS else text[: _EXCERPT_CHARS - 3] + "..."


def allowed(name: str) -> str:
    """What a setting accepts, in words: `a whole number from 1 to 100000`."""
    return _in_words(_types()[name])


def _core(kind: object) -> object:
    if get_origin(kind) is Annotated:
        return _core(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return _core(next(one for one in get_args(kind) if one is not NoneType))
    return kind


def _in_words(kind: object) -> str:
    if get_origin(kind) is Annotated:
        meta = get_args(kind)[1]
        return meta.description or _in_words(get_args(kind)[0]) + _range(meta)
    kind = _core(kind)
    if get_origin(kind) is tuple:
        return f"a list, each {_in_words(get_args(kind)[0])}"
    if kind is Mode:
        return "one of " + ", ".join(SERVED_MODES)
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
