"""How a setting is declared, and the kinds of values: ranges and patterns with words for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from msgspec import Meta

ResourceName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z",
        description="an extended resource such as nvidia.com/gpu",
    ),
]
Address = Annotated[
    str,
    Meta(
        pattern=r"^(off|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]*):[0-9]{1,5})\Z",
        description="HOST:PORT, :PORT, or off",
    ),
]
ObjectName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z",
        description="a Kubernetes name: lower-case letters, digits, - and .",
    ),
]
GpuPolicy = Annotated[
    str,
    Meta(
        pattern=r"^(binpack|spread|topology-aware|mutex|numa)(,(binpack|spread|topology-aware|mutex|numa))*\Z",
        description="binpack, spread, topology-aware, mutex, numa, or several with commas",
    ),
]
Scaling = Annotated[float, Meta(gt=0, le=100)]
Percent = Annotated[int, Meta(ge=0, le=100)]
Mebibytes = Annotated[int, Meta(ge=0, le=2**31)]
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=100_000)]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a setting is called outside, and what it means.

    Attributes:
        doc: one sentence for people, with the unit.
        flags: other spellings of its flag, without the leading dashes.
        env: other environment variables, in order of weight, after ours.
        yaml: its key below `nvidia:` (or the full path) in device-config.yaml.
        node: its key in an entry of config.json's `nodeconfig`.
    """

    doc: str
    flags: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    yaml: str = ""
    node: str = ""


def setting(
    default: T,
    doc: str,
    *,
    flags: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    yaml: str = "",
    node: str = "",
) -> T:
    """Declare a field of `Settings` with its default and its names."""
    said = Names(doc=doc, flags=flags, env=env, yaml=yaml, node=node)
    return field(default=default, metadata={"names": said})
