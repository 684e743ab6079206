"""Pure: which pods come when, and what becomes of each."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.bench.extender_rig import held_by

Json = dict[str, Any]
LIFE_S: Final = (10.0, 50.0)
IMPOSSIBLE_MIB: Final = 2_000_000
_USED: Final = {
    "hami_node_extender_card_slots_used",
    "hami_node_extender_card_memory_granted_bytes",
}
_MIB: Final = 1 << 20


class Fate(StrEnum):
    """What happens to a pod."""

    LIVES = "lives"
    EDITED = "is edited while it lives"
    UNBOUND = "is deleted at once"
    FAILS = "fails"
    NEVER_FITS = "never fits"


_SHARES: Final = {
    Fate.LIVES: 70,
    Fate.EDITED: 10,
    Fate.UNBOUND: 8,
    Fate.FAILS: 8,
    Fate.NEVER_FITS: 4,
}


class Act(StrEnum):
    """What the cluster does to a pod."""

    CREATE = "create"
    EDIT = "edit"
    FAIL = "fail"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """At that second something happens to a pod."""

    at_s: float
    name: str
    act: Act
    fate: Fate
    memory_mib: int


def churn(rate: float, for_s: float, seed: int = 1) -> Iterator[tuple[Step, ...]]:
    """The steps of each pod, pod by pod in the order in which they are created."""
    draw = random.Random(seed)
    for number in range(round(rate * for_s)):
        fate = draw.choices(list(_SHARES), list(_SHARES.values()))[0]
        born_s, name = number / rate, f"churn-{number:06d}"
        memory = IMPOSSIBLE_MIB if fate is Fate.NEVER_FITS else draw.choice((500, 1000, 2000, 4000))
        life_s = draw.uniform(0.0, 0.1) if fate is Fate.UNBOUND else draw.uniform(*LIFE_S)
        steps = [Step(born_s, name, Act.CREATE, fate, memory)]
        middle_s = born_s + life_s / 2
        if fate is Fate.EDITED:
            steps.append(Step(middle_s, name, Act.EDIT, fate, memory))
        if fate is Fate.FAILS:
            steps.append(Step(middle_s, name, Act.FAIL, fate, memory))
        yield (*steps, Step(born_s + life_s, name, Act.DELETE, fate, memory))


def shown_use(page: str) -> dict[tuple[str, str], int]:
    """(card, "slots" | "memory") -> how much of it is used, by the extender's own metrics."""
    found: dict[tuple[str, str], int] = {}
    for line in page.splitlines():
        family, _, rest = line.partition("{")
        if family not in _USED:
            continue
        uuid = rest.partition('uuid="')[2].partition('"')[0]
        value = float(line.rsplit(" ", 1)[1])
        is_memory = family.endswith("bytes")
        if value:
            kind = "memory" if is_memory else "slots"
            found[uuid, kind] = round(value / _MIB) if is_memory else round(value)
    return found


def held_use(pods: Iterable[Json]) -> dict[tuple[str, str], int]:
    """The same from the pods themselves: those that are bound and have not ended."""
    living = [
        pod
        for pod in pods
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Failed", "Succeeded")
    ]
    held = held_by(living)
    return {key: much for key, much in held.items() if much and key[1] != "cores"}


def differences(shown: dict[tuple[str, str], int], held: dict[tuple[str, str], int]) -> list[str]:
    """Where the extender's state is not what the pods say."""
    return [
        f"{uuid}: {kind} {shown.get((uuid, kind), 0)} in the extender, "
        f"{held.get((uuid, kind), 0)} by the pods"
        for uuid, kind in sorted(shown.keys() | held.keys())
        if shown.get((uuid, kind), 0) != held.get((uuid, kind), 0)
    ]


def left_behind(pods: Iterable[Json]) -> list[str]:
    """Pods that are not placed and carry a reservation."""
    keys = (nvidia_names.POD_ALLOCATED, nvidia_names.POD_TO_ALLOCATE, names.POD_NODE)
    return [
        f"{pod['metadata']['name']}: {', '.join(sorted(found))}"
        for pod in pods
        if not pod["spec"].get("nodeName")
        and (found := [key for key in keys if key in (pod["metadata"].get("annotations") or {})])
    ]


def counted(fates: Iterable[Fate]) -> str:
    """How many pods met which fate, for people."""
    return ", ".join(f"{fate.value} {count}" for fate, count in sorted(Counter(fates).items()))
