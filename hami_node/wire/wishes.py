"""A pod's wishes and a node's cordon list, read from their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami_node.model import PodWishes, Uuid, UuidWish
from hami_node.wire import names

TRUE_WORDS: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""What switches numa-bind on. Source: HAMi nvidia/device.go:482, Go's ParseBool."""


def decode_wishes(annotations: Mapping[str, str]) -> PodWishes:
    """Read every wish that stands in a pod's annotations; never raises.

    Lists are separated by commas; blanks around and between words are ignored, and a list without
    a word is no wish. Source: HAMi device/devices.go:693-738.
    """
    modes = _words(annotations.get(names.VGPU_MODE))
    return PodWishes(
        use_types=tuple(word.lower() for word in _words(annotations.get(names.USE_GPU_TYPE))),
        nouse_types=tuple(word.lower() for word in _words(annotations.get(names.NOUSE_GPU_TYPE))),
        modes=frozenset(modes) if modes else None,
        nvidia=_uuid_wish(annotations, names.USE_GPU_UUID, names.NOUSE_GPU_UUID),
        neuron=_uuid_wish(annotations, names.USE_NEURON_UUID, names.NOUSE_NEURON_UUID),
        is_numa_bound=annotations.get(names.NUMA_BIND) in TRUE_WORDS,
        gpu_policy=annotations.get(names.POD_GPU_POLICY),
        node_policy=annotations.get(names.POD_NODE_POLICY),
        scoring_weights=annotations.get(names.POD_SCORING_WEIGHTS),
    )


def decode_cordon(annotations: Mapping[str, str]) -> frozenset[Uuid]:
    """The cards that people took out of scheduling on this node; never raises."""
    return frozenset(Uuid(word) for word in _words(annotations.get(names.NODE_CORDON)))


def _uuid_wish(annotations: Mapping[str, str], use: str, nouse: str) -> UuidWish:
    wanted = _words(annotations.get(use))
    return UuidWish(
        use=frozenset(wanted) if wanted else None, nouse=frozenset(_words(annotations.get(nouse)))
    )


def _words(text: str | None) -> tuple[str, ...]:
    parts = (part.strip() for part in (text or "").split(","))
    return tuple(part for part in parts if part)
