"""Read HAMi's own device-config.yaml and node config.json into settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
import yaml.constructor

from hami_node.config_values import excerpt, value_from_file
from hami_node.errors import ConfigError
from hami_node.settings import names_of

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # PyYAML built without libyaml: slower, otherwise equal
    from yaml import SafeLoader as _Loader  # type: ignore[assignment] # same methods

MAX_FILE_BYTES: Final = 1024 * 1024
"""Kubernetes keeps no larger ConfigMap."""
_MAX_DEPTH: Final = 32
_SCALAR_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What PyYAML lets through from a scalar that looks like a date or a number and is none."""
DEVICE_CONFIG: Final = "device-config.yaml"
NODE_CONFIG: Final = "config.json"
OWN_SECTION: Final = "hami-node"
"""Section of device-config.yaml with our own settings, spelled as their flags."""
_NVIDIA: Final = "nvidia"
_NEURON: Final = "awsneuron"
_NOT_FROM_FILES: Final = frozenset({"node_name", "kubeconfig"})
_WITHOUT_EFFECT: Final = frozenset({"migstrategy", "name"})
"""Known keys of a node entry that mean nothing here (`migstrategy: none` is what we do)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileValues:
    """What one file sets.

    Attributes:
        values: setting to checked value.
        ignored: keys without effect here, spelled as in the file, with the file's name.
        errors: everything that is wrong with it.
    """

    values: Mapping[str, object]
    ignored: tuple[str, ...] = ()
    errors: tuple[ConfigError, ...] = ()


NO_VALUES: Final = FileValues(values={})
"""What a source that is not there sets."""


class _Collector:
    """Gathers values, ignored keys and errors of one file."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.values: dict[str, object] = {}
        self.ignored: list[str] = []
        self.errors: list[ConfigError] = []

    def take(self, name: str, value: object, label: str) -> None:
        """Check one value; an absent one (null) sets nothing."""
        if value is None:
            return
        try:
            self.values[name] = value_from_file(name, value, self.source, label)
        except ConfigError as e:
            self.errors.append(e)

    def wrong(self, label: str, value: object, cure: str) -> None:
        """Note an error of the file's form."""
        self.errors.append(ConfigError(self.source, label, excerpt(value), cure))

    def done(self) -> FileValues:
        """Everything gathered."""
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
        cure = "give the path of a readable file"
        raise ConfigError(str(path), "file", e.strerror or str(e), cure) from e
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), "file", "too large", f"at most {MAX_FILE_BYTES} bytes")
    return data


def parse_yaml(data: bytes, source: str) -> object:
    """Decode one YAML document; a key given twice is an error.

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
    """Look at the events first: libyaml builds its tree by recursion and would end the process."""
    depth = 0
    for event in yaml.parse(data, Loader=_StrictLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise ConfigError(source, "file", "deep nesting", f"at most {_MAX_DEPTH} levels")


class _StrictLoader(_Loader):
    """The safe loader, without silent overwriting by repeated keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT - PyYAML's signature
        """Refuse a mapping that names a key twice."""
        seen: set[str] = set()
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key in keys:
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value[:60]!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_device_config(data: bytes, source: str) -> FileValues:
    """Decode device-config.yaml: sections nvidia, awsneuron and our own; others are ignored.

    Source: HAMi's chart 2.10, ConfigMap of device settings.
    """
    found = _Collector(source)
    try:
        document = parse_yaml(data, source)
    except ConfigError as e:
        return FileValues(values={}, errors=(e,))
    if not isinstance(document, Mapping) or not document:
        found.wrong("document", document, f"needs a section {_NVIDIA}: or {_NEURON}:")
        return found.done()
    for section, content in document.items():
        if section in (_NVIDIA, _NEURON, OWN_SECTION):
            _read_section(found, str(section), content)
        else:
            found.ignored.append(f"section {excerpt(section)}")
    return found.done()


def _read_section(found: _Collector, section: str, content: object) -> None:
    if content is None:
        return
    if not isinstance(content, Mapping):
        found.wrong(section, content, "needs keys with values below it")
        return
    known = _keys_of(section)
    for key, value in content.items():
        if key in known:
            found.take(known[key], value, f"{section}.{key}")
        else:
            found.ignored.append(f"{section}.{excerpt(key)}")


def _keys_of(section: str) -> dict[str, str]:
    """The keys of a section, each with its setting."""
    if section == OWN_SECTION:
        return {one.replace("_", "-"): one for one in names_of() if one not in _NOT_FROM_FILES}
    keys = {}
    for name, names in names_of().items():
        owner, _, key = names.yaml.rpartition(".")
        if key and (owner or _NVIDIA) == section:
            keys[key] = name
    return keys


def read_node_config(data: bytes, source: str, node_name: str | None) -> FileValues:
    """Decode config.json: the entries for `node_name`, or (None) check every entry.

    An entry's `name` is the node's name or a pattern (`gpu-pool-*`); the exact name wins over
    patterns, a later entry over an earlier one.
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
        _read_entry(found, entry, label)
    return found.done()


def _entries_for(
    found: _Collector, entries: list[object], node_name: str | None
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The entries that count, weakest first; a broken one is an error only where it may matter."""
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


def _read_entry(found: _Collector, entry: Mapping[str, object], label: str) -> None:
    known = {names.node: name for name, names in names_of().items() if names.node}
    for key, value in entry.items():
        if key == "filterdevices":
            _read_filter(found, value, f"{label}.{key}")
        elif key in known:
            found.take(known[key], value, f"{label}.{key}")
        elif key not in _WITHOUT_EFFECT or (
            key == "migstrategy" and value not in ("none", "", None)
        ):
            found.ignored.append(f"{label}.{excerpt(key)}")


def _read_filter(found: _Collector, value: object, label: str) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping):
        found.wrong(label, value, 'needs {"uuid": [...], "index": [...]}')
        return
    for key, listed in value.items():
        if key in ("uuid", "index"):
            name = "filter_uuids" if key == "uuid" else "filter_indexes"
            found.take(name, listed, f"{label}.{key}")
        else:
            found.ignored.append(f"{label}.{excerpt(key)}")
