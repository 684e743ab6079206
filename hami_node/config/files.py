"""Read HAMi's own device-config.yaml and node config.json into settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
import yaml.constructor

from hami_node.config.settings import Declaration, declarations
from hami_node.config.unknown_keys import (
    NOT_FROM_FILES,
    OWN_SECTION,
    Place,
    document,
    judged,
    node_entry,
    own_section,
    vendor_section,
)
from hami_node.config.values import excerpt, value_from_file
from hami_node.errors import ConfigError
from hami_node.setting_types import Blocks
from hami_node.text import shown

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: slower, otherwise equal
    from yaml import SafeLoader as _Loader  # type: ignore[assignment] # same methods

MAX_FILE_BYTES: Final = 1024 * 1024
"""The limit of Kubernetes for a ConfigMap."""
_MAX_DEPTH: Final = 32
_MAX_ALIASED: Final = 10_000
"""Values that the aliases of a document may stand for: a few lines of them can mean billions."""
_MAX_NUMBER_CHARS: Final = 64
"""Python refuses to write a longer number in an error's text."""
_SCALAR_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What PyYAML raises besides its own errors for a malformed date or number."""
DEVICE_CONFIG: Final = "device-config.yaml"
NODE_CONFIG: Final = "config.json"
ReadValue = Callable[[Declaration, Any, str, str], object]
_MAX_GUESSES: Final = 50
"""Further unknown keys of a file are counted: to compare a mebibyte of them would take minutes."""


@dataclass(slots=True)
class FileValues:
    """What a source sets, and what is wrong with it.

    Attributes:
        source: for messages: the file, or another source.
        values: setting to checked value.
        ignored: names without effect here, spelled as there; those of a file are one text.
        warnings: keys without effect that look misspelt, each a sentence with the file's name.
        errors: everything that is wrong.
    """

    source: str = ""
    values: dict[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()
    _unknown: int = 0
    _more_of_ours: int = 0

    def take(
        self, setting: Declaration, value: object, label: str, read: ReadValue = value_from_file
    ) -> None:
        """Check a value; null sets nothing."""
        if value is None:
            return
        try:
            self.values[setting.name] = read(setting, value, self.source, label)
        except ConfigError as e:
            self.errors += (e,)

    def unknown(self, key: object, label: str, place: Place) -> None:
        """Note a key that no setting has, below `label`; "" for the document."""
        self._unknown += 1
        if self._unknown > _MAX_GUESSES:
            self._more_of_ours += place.is_own
            return
        name = str(excerpt(key))
        named = f"{label}.{shown(name)}" if label else f"section {shown(name)}"
        is_error, why = judged(name, place)
        if is_error:
            self.wrong(label or "document", key, why)
        elif why:
            self.warnings += (f"{Path(self.source).name}: {named}: {why}",)
        else:
            self.ignored += (named,)

    def wrong(self, label: str, value: object, hint: str) -> None:
        """Note an error in the file's structure."""
        self.errors += (ConfigError(self.source, label, excerpt(value), hint),)

    def done(self) -> FileValues:
        """The same with all ignored keys of the file in one text."""
        more = self._unknown - _MAX_GUESSES
        if self._more_of_ours:
            self.wrong("document", f"{more} more", "unknown keys; correct those above first")
        elif more > 0:
            self.ignored += (f"{more} more keys",)
        if self.ignored:
            self.ignored = (f"{Path(self.source).name}: {', '.join(self.ignored)}",)
        return self


def from_file(path: Path, decode: Callable[[bytes, str], FileValues]) -> FileValues:
    """What a file sets; one that can't be read is an error."""
    try:
        return decode(read_bounded(path), str(path))
    except ConfigError as e:
        return FileValues(str(path), errors=(e,))


NO_VALUES: Final = FileValues()
"""What a missing source sets. Not to be changed."""


def read_bounded(path: Path) -> bytes:
    """The bytes of a configuration file, at most `MAX_FILE_BYTES`.

    Raises:
        ConfigError: missing, unreadable or too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        hint = "give the path of a readable file"
        raise ConfigError(str(path), "file", e.strerror or str(e), hint) from e
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), "file", "too large", f"at most {MAX_FILE_BYTES} bytes")
    return data


def parse_yaml(data: bytes, source: str) -> object:
    """Decode a YAML document; a key given twice is an error.

    Raises:
        ConfigError: not YAML; names line and column.
    """
    try:
        _refuse_too_much(data, source)
        return yaml.load(data, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, *_SCALAR_ERRORS) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(source, where, excerpt(problem), "correct the YAML there") from e


def _refuse_too_much(data: bytes, source: str) -> None:
    """Check the events first: libyaml builds its tree by recursion and would crash the process."""
    sizes: dict[str, int] = {}  # values at and below an anchor
    inside: list[tuple[str | None, int]] = []  # anchor and values so far of each open collection
    aliased = 0
    for event in yaml.parse(data, Loader=_StrictLoader):
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append((anchor, 1))
            sizes.pop(anchor or "", None)
            if len(inside) > _MAX_DEPTH:
                raise ConfigError(source, "file", "deep nesting", f"at most {_MAX_DEPTH} levels")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(anchor or "", _MAX_ALIASED + 1)  # unknown where it is within itself
            aliased += size
            if aliased > _MAX_ALIASED:
                mark = event.start_mark
                where = f"line {mark.line + 1}" if mark else "file"
                hint = f"aliases may stand for {_MAX_ALIASED} values; write these out"
                raise ConfigError(source, where, f"*{shown(anchor or '')}", hint)
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        if anchor and not isinstance(event, yaml.AliasEvent):
            sizes[anchor] = size
        if inside:
            inside[-1] = (inside[-1][0], inside[-1][1] + size)


class _StrictLoader(_Loader):
    """The safe loader, except that repeated keys are errors."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT - PyYAML's signature
        """Refuse a mapping with the same key twice."""
        seen: set[str] = set()
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value[:60]!r} occurs twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> Any:  # noqa: ANN401 - PyYAML's signature
        """Refuse a number that no message can show."""
        if len(node.value) > _MAX_NUMBER_CHARS:
            problem = f"a number of {len(node.value)} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_yaml_int(node)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


def read_device_config(data: bytes, source: str, blocks: Blocks) -> FileValues:
    """Decode device-config.yaml: the vendors' sections and ours.

    Unknown keys of ours are errors; unknown keys of HAMi's, whose versions differ, are not.

    Source: HAMi's chart 2.10, ConfigMap of device settings.
    """
    found = FileValues(source)
    try:
        content = parse_yaml(data, source)
    except ConfigError as e:
        found.errors = (e,)
        return found
    every = declarations(blocks).values()
    sections = [block.section for block in blocks if block.section]
    if not isinstance(content, Mapping) or not content:
        named = " or ".join(f"{section}:" for section in sections or [OWN_SECTION])
        found.wrong("document", content, f"needs a section {named}")
        return found.done()
    of_document = document(blocks)
    for section, keys in content.items():
        if section == OWN_SECTION:
            known = {one.flag: one for one in every if one.name not in NOT_FROM_FILES}
            _read_keys(found, keys, section, known, own_section(blocks))
        elif section in sections:
            known = {one.names.yaml: one for one in every if one.section == section}
            known.pop("", None)
            _read_keys(found, keys, section, known, vendor_section(blocks, known))
        else:
            found.unknown(section, "", of_document)
    return found.done()


def _read_keys(
    found: FileValues,
    content: object,
    label: str,
    known: Mapping[str, Declaration],
    place: Place,
    form: str = "needs keys with values below it",
) -> None:
    """Take the known keys of an object and note the others; `form` describes a valid object."""
    if content is None:
        return
    if not isinstance(content, Mapping):
        found.wrong(label, content, form)
        return
    for key, value in content.items():
        if key in known:
            found.take(known[key], value, f"{label}.{key}")
        else:
            found.unknown(key, label, place)


def read_node_config(data: bytes, source: str, node_name: str | None, blocks: Blocks) -> FileValues:
    """Decode config.json: the entries for `node_name`, or (None) check every entry.

    An entry's `name` is the node's name or a pattern (`gpu-pool-*`); the exact name wins over
    patterns, a later entry over an earlier.
    Source: HAMi's chart 2.10, ConfigMap of node settings.
    """
    found = FileValues(source)
    try:
        content = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        found.wrong("file", str(e), "correct the JSON there")
        return found.done()
    entries = content.get("nodeconfig") if isinstance(content, dict) else None
    if not isinstance(entries, list):
        found.wrong("nodeconfig", entries, 'needs {"nodeconfig": [...]}')
        return found.done()
    found.ignored = tuple(str(excerpt(key)) for key in content if key != "nodeconfig")
    for label, entry in _entries_for(found, entries, node_name):
        _read_entry(found, entry, label, blocks)
    return found.done()


def _entries_for(
    found: FileValues, entries: list[object], node_name: str | None
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The entries that apply, weakest first; entries without a valid name are errors."""
    exact = []
    for i, entry in enumerate(entries):
        label = f"nodeconfig[{i}]"
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(name, str) or not name:
            found.wrong(f"{label}.name", name, "needs the node's name as kubectl get node shows it")
        elif name == node_name:
            exact.append((label, entry))
        elif node_name is None or fnmatchcase(node_name, name):
            yield label, entry
    yield from exact


def _read_entry(found: FileValues, entry: Mapping[str, object], label: str, blocks: Blocks) -> None:
    known: dict[str, Declaration] = {}
    objects: dict[str, dict[str, Declaration]] = {}
    for setting in declarations(blocks).values():
        key, _, inner = setting.names.node.partition(".")
        if inner:
            objects.setdefault(key, {})[inner] = setting
        elif key:
            known[key] = setting
    idle = {key: values for block in blocks for key, values in block.idle_node_keys.items()}
    place = node_entry(blocks, ("name", *known, *objects))
    for key, value in entry.items():
        if key == "name" or (key in idle and (value is None or value in idle[key])):
            continue
        if key in objects:
            keys = objects[key]
            example = {name: "[...]" if _is_list(keys[name]) else "..." for name in keys}
            form = "needs {" + ", ".join(f'"{name}": {it}' for name, it in example.items()) + "}"
            inner_place = Place(known={name: name for name in keys}, elsewhere={})
            _read_keys(found, value, f"{label}.{key}", keys, inner_place, form)
        elif key in known:
            found.take(known[key], value, f"{label}.{key}")
        else:
            found.unknown(key, label, place)


def _is_list(setting: Declaration) -> bool:
    return isinstance(setting.default, tuple)
