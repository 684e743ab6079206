"""HAMi's chart values as ours, and what is left out. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from hami_node.config.files import MAX_FILE_BYTES, parse_yaml
from hami_node.config.unknown_keys import nearest, same
from hami_node.errors import ConfigError
from hami_node.migrate.values.rules import RULES, Rule, rule_for

_MAX_GUESSES: Final = 50
"""Further unknown values are named without what was meant: a guess takes a while."""
_MAX_DEPTH: Final = 12
_ABOUT: Final = """\
# Values of the chart hami-node, made from HAMi's by `hami-node migrate`.
# What was left out, and why, is in that command's other output.
"""
_IMAGE: Final = """\
# Our image, which HAMi's values do not name: put your registry here, as in registry.example/gpu.
# Remove these two lines if your chart comes from a release: that names the image itself.
image:
  registry: REGISTRY
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A value that we have, too; `note` is something to know about it."""

    path: str
    ours: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A value of HAMi's without a counterpart."""

    path: str
    value: object
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """A value that no chart of HAMi's has; `meant` is the known one most like it, or ""."""

    path: str
    value: object
    meant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapped:
    """Our values, and what became of each of HAMi's that is not at its default."""

    values: Mapping[str, object]
    taken: tuple[Taken, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    unknown: tuple[Unknown, ...] = ()


@dataclass(slots=True)
class _Collector:
    values: dict[str, Any] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)


def read_values(content: bytes, source: str) -> Mapping[str, object]:
    """HAMi's values, as `helm get values -o yaml` prints them.

    Raises:
        ConfigError: the text is no YAML mapping, or too long.
    """
    if len(content) > MAX_FILE_BYTES:
        hint = f"at most {MAX_FILE_BYTES}"
        raise ConfigError(source, "file", f"{len(content)} bytes", hint)
    text = content.decode("utf-8", "replace")
    if text.lstrip().startswith("USER-SUPPLIED VALUES:"):
        hint = "save with -o yaml: helm get values RELEASE -n NAMESPACE -o yaml"
        raise ConfigError(source, "file", "USER-SUPPLIED VALUES:", hint)
    found = parse_yaml(content, source)
    if found is None:
        return {}  # helm prints null where nothing was set
    is_mapping = isinstance(found, dict) and all(isinstance(key, str) for key in found)
    if not is_mapping or _has_aliases(content):
        hint = "a YAML mapping without aliases is needed: helm get values RELEASE -o yaml"
        raise ConfigError(source, "file", text[:40], hint)
    values: Mapping[str, object] = found  # type: ignore[assignment] # a dict, as asked
    return values


def _has_aliases(content: bytes) -> bool:
    """With aliases a file of a kilobyte may be gigabytes of values."""
    events = yaml.parse(content, Loader=yaml.SafeLoader)
    return any(isinstance(event, yaml.AliasEvent) for event in events)


def map_values(theirs: Mapping[str, object]) -> Mapped:
    """Ours from theirs. Nodes are taken over one by one, whatever HAMi's values say."""
    found = _Collector()
    _put(found.values, "devicePlugin.nodeSelection", "own-label")
    for path, rule, value in _walk(theirs, "", 0):
        if rule is None:
            meant = _meant(path) if len(found.unknown) < _MAX_GUESSES else ""
            found.unknown.append(Unknown(path=path, value=value, meant=meant))
        elif value is None or _is_default(value, rule):
            continue
        elif rule.puts is None:
            found.left_out.append(LeftOut(path=path, value=value, why=rule.why))
        else:
            puts = rule.puts(value)
            for ours, each in puts:
                _put(found.values, ours, each)
            if puts:
                where = ", ".join(ours for ours, _ in puts)
                found.taken.append(Taken(path=path, ours=where, note=rule.why))
    return Mapped(
        values=found.values,
        taken=tuple(found.taken),
        left_out=tuple(found.left_out),
        unknown=tuple(found.unknown),
    )


def as_yaml(mapped: Mapped) -> str:
    """The file for helm's -f."""
    everywhere = mapped.values.get("global")
    has_registry = isinstance(everywhere, Mapping) and "imageRegistry" in everywhere
    about = _ABOUT if has_registry else _ABOUT + _IMAGE
    return about + yaml.safe_dump(dict(mapped.values), sort_keys=True, width=100)


def _walk(
    value: Mapping[str, object], above: str, depth: int
) -> Iterator[tuple[str, Rule | None, object]]:
    """Each value with its rule; a mapping without one is looked into."""
    for key, each in value.items():
        path = f"{above}.{key}" if above else str(key)
        rule = rule_for(path)
        if rule is not None:
            yield path, rule, each
            if path == "scheduler.customWebhook" and isinstance(each, Mapping):
                below = f"{path}.whitelistNamespaces"
                yield below, RULES[below], each.get("whitelistNamespaces")
        elif isinstance(each, Mapping) and each and depth < _MAX_DEPTH and _has_known_below(path):
            yield from _walk(each, path, depth + 1)
        elif each is not None and not (isinstance(each, Mapping) and not each):
            yield path, None, each


def _has_known_below(path: str) -> bool:
    return any(known.startswith(f"{path}.") for known in (*RULES, "devices."))


def _is_default(value: object, rule: Rule) -> bool:
    """True is 1 in Python, but not in a chart."""
    return any(value == each and type(value) is type(each) for each in rule.defaults)


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for name in parents:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            return  # device-config.content is the whole file
        values = inner
    values[last] = value


def _meant(path: str) -> str:
    """The known path that is most like it: a slip of the pen, or a value at the wrong place."""
    known = {path: path for path in RULES}
    if found := same(path, known):
        return found
    last = path.rpartition(".")[2].lower()
    elsewhere = [one for one in RULES if one.rpartition(".")[2].lower() == last]
    return elsewhere[0] if len(elsewhere) == 1 else nearest(path, known)
