"""Texts of Kubernetes objects, kept once where many objects have the same.

A scheduler extender holds every pod of a cluster: what its pods have in common is most of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from hami_node.wire import names

Items = tuple[tuple[str, str], ...]

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MOST_SHARED: Final = 16
"""Larger mappings are seldom equal, and would keep memory that nobody uses."""

MOST_CHARS_SHARED: Final = 1_000
"""In all of a mapping. A webhook is shown labels of any length, before they are refused."""

MOST_CHARS: Final = 40
"""Longer texts are no times."""

_DROPPED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_REPEATED: Final = frozenset((names.POD_NODE, names.POD_BIND_PHASE))
"""Annotations with a few values, which thousands of pods have."""
_OF_A_MOMENT: Final = frozenset((names.POD_TIME, names.POD_BIND_TIME))
"""Annotations that are equal on pods that were bound together."""


def one_text(text: str) -> str:
    """One object for texts that often follow each other: the pods of an owner are made together.

    Whoever may edit a pod can write 256 KiB there, which must not outlive the pod: only what is as
    short as a time is remembered.
    """
    return _remembered(text) if len(text) <= MOST_CHARS else text


@lru_cache(maxsize=1024)  # three more each second, on a busy cluster: more would be kept for hours
def _remembered(text: str) -> str:
    return text


def shared(found: Mapping[str, str | None]) -> Mapping[str, str]:
    """One mapping for all objects with equal ones: the pods of a Deployment differ in little."""
    if not found:
        return NOTHING
    kept = {sys.intern(name): value or "" for name, value in found.items()}
    return one_of(tuple(kept.items())) if is_worth_sharing(kept) else kept


def is_worth_sharing(kept: Mapping[str, str]) -> bool:
    """True for a mapping that may be remembered after the object is gone: it is small."""
    if len(kept) > MOST_SHARED:
        return False
    return sum(map(len, kept)) + sum(map(len, kept.values())) <= MOST_CHARS_SHARED


@lru_cache(maxsize=8192)
def one_of(items: Items) -> Mapping[str, str]:
    """One mapping for all objects with these entries."""
    return MappingProxyType(dict(items))


def annotations_of(raw: Mapping[str, str | None] | None) -> Mapping[str, str]:
    """An object's annotations: most have an entry that no other object has."""
    kept: dict[str, str] = {}
    texts: dict[str, str] = {}
    for name, value in (raw or {}).items():
        if name == _DROPPED:
            continue
        if not value:
            text = ""
        elif name in _REPEATED:
            text = sys.intern(value)
        elif name in _OF_A_MOMENT:
            text = one_text(value)
        else:  # what is reserved and what is still to be served are equal at first
            text = texts.setdefault(value, value)
        kept[sys.intern(name)] = text
    return kept or NOTHING
