"""Read HAMi's own device-config.yaml and node config.json into settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
import yaml.constructor

from hami_node.config.settings import Declaration, declarations
from hami_node.config.values import excerpt, value_from_file
from hami_node.errors import ConfigError
from hami_node.setting_types import Blocks

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: slower, otherwise equal
    from yaml import SafeLoader as _Loader  # type: ignore[assignment] # same methods

MAX_FILE_BYTES: Final = 1024 * 1024
"""The limit of Kubernetes for a ConfigMap."""
_MAX_DEPTH: Final = 32
_SCALAR_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What PyYAML raises besides its own errors for a malformed date or number."""
DEVICE_CONFIG: Final = "device-config.yaml"
NODE_CONFIG: Final = "config.json"
OWN_SECTION: Final = "hami-node"
"""Section of device-config.yaml with our own settings, spelled as their flags."""
_NOT_FROM_FILES: Final = frozenset({"node_name", "kubeconfig"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValues:
    """What a file sets.

    Attributes:
        values: setting to checked value.
        ignored: keys without effect here, spelled as in the file, with the file's name.
        errors: everything that is wrong with it.
    """

    values: Mapping[str, object]
    ignored: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()


NO_VALUES: Final = FileValues(values={})
"""What a missing source sets."""


class _Collector:
    """Collects values, ignored keys and errors of a file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.values: dict[str, object] = {}
        self.ignored: list[str] = []
        self.errors: list[ConfigError] = []

    def take(self, setting: Declaration, value: object, label: str) -> None:
        """Check a value; null sets nothing."""
        if value is None:
            return
        try:
            self.values[setting.name] = value_from_file(setting, value, self.source, label)
        except ConfigError as e:
            self.errors.append(e)

    def wrong(self, label: str, value: object, hint: str) -> None:
        """Note an error in the file's structure."""
        self.errors.append(ConfigError(self.source, label, excerpt(value), hint))

    def done(self) -> FileValues:
        """Everything collected."""
        shown = f"{Path(self.source).name}: " + ", ".join(self.ignored)
        return FileValues(
            values=self.values,
            ignored=(shown,) if self.ignored else (),
            errors=tuple(self.errors),
        )


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
        _refuse_deep_nesting(data, source)
        return yaml.load(data, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, *_SCALAR_ERRORS) as e:
        mark = getattr(e, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = getattr(e, "problem", None) or str(e).splitlines()[0]
        raise ConfigError(source, where, excerpt(problem), "correct the YAML there") from e


def _refuse_deep_nesting(data: bytes, source: str) -> None:
    """Check the events first: libyaml builds its tree by recursion and would crash the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_StrictLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ConfigError(source, "file", "deep nesting", f"at most {_MAX_DEPTH} levels")


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


def read_device_config(data: bytes, source: str, blocks: Blocks) -> FileValues:
    """Decode device-config.yaml: the vendors' sections and ours; others are ignored.

    Source: HAMi's chart 2.10, ConfigMap of device settings.
    """
    found = _Collector(source)
    try:
        document = parse_yaml(data, source)
    except ConfigError as e:
        return FileValues(values={}, errors=(e,))
    sections = [block.section for block in blocks if block.section]
    if not isinstance(document, Mapping) or not document:
        named = " or ".join(f"{section}:" for section in sections or [OWN_SECTION])
        found.wrong("document", document, f"needs a section {named}")
        return found.done()
    for section, content in document.items():
        if section in (*sections, OWN_SECTION):
            known = _keys_of(section, declarations(blocks).values())
            _read_keys(found, content, section, known, "needs keys with values below it")
        else:
            found.ignored.append(f"section {excerpt(section)}")
    return found.done()


def _keys_of(section: str, settings: Iterable[Declaration]) -> dict[str, Declaration]:
    """The keys of a section, each with its setting."""
    if section == OWN_SECTION:
        return {known.flag: known for known in settings if known.name not in _NOT_FROM_FILES}
    of_section = (known for known in settings if known.section == section)
    return {known.names.yaml: known for known in of_section if known.names.yaml}


def _read_keys(
    found: _Collector,
    content: object,
    label: str,
    known: Mapping[str, Declaration],
    form: str,
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
            found.ignored.append(f"{label}.{excerpt(key)}")


def read_node_config(data: bytes, source: str, node_name: str | None, blocks: Blocks) -> FileValues:
    """Decode config.json: the entries for `node_name`, or (None) check every entry.

    An entry's `name` is the node's name or a pattern (`gpu-pool-*`); the exact name wins over
    patterns, a later entry over an earlier.
    Source: HAMi's chart 2.10, ConfigMap of node settings.
    """
    found = _Collector(source)
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        found.wrong("file", str(e), "correct the JSON there")
        return found.done()
    entries = document.get("nodeconfig") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        found.wrong("nodeconfig", entries, 'needs {"nodeconfig": [...]}')
        return found.done()
    found.ignored += [f"{excerpt(key)}" for key in document if key != "nodeconfig"]
    for label, entry in _entries_for(found, entries, node_name):
        _read_entry(found, entry, label, blocks)
    return found.done()


def _entries_for(
    found: _Collector, entries: list[object], node_name: str | None
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


def _read_entry(found: _Collector, entry: Mapping[str, object], label: str, blocks: Blocks) -> None:
    known, objects = _node_keys(blocks)
    idle = {key: values for block in blocks for key, values in block.idle_node_keys.items()}
    for key, value in entry.items():
        if key == "name" or (key in idle and (value is None or value in idle[key])):
            continue
        if key in objects:
            _read_keys(found, value, f"{label}.{key}", objects[key], _form_of(objects[key]))
        elif key in known:
            found.take(known[key], value, f"{label}.{key}")
        else:
            found.ignored.append(f"{label}.{excerpt(key)}")


def _node_keys(
    blocks: Blocks,
) -> tuple[dict[str, Declaration], dict[str, dict[str, Declaration]]]:
    """The plain keys of a node's entry, and those whose value is an object, with its keys."""
    known: dict[str, Declaration] = {}
    objects: dict[str, dict[str, Declaration]] = {}
    for setting in declarations(blocks).values():
        key, _, inner = setting.names.node.partition(".")
        if inner:
            objects.setdefault(key, {})[inner] = setting
        elif key:
            known[key] = setting
    return known, objects


def _form_of(keys: Mapping[str, Declaration]) -> str:
    """An example of an object with these keys, for messages."""
    shown = {key: "[...]" if isinstance(keys[key].default, tuple) else "..." for key in keys}
    return "needs {" + ", ".join(f'"{key}": {value}' for key, value in shown.items()) + "}"
