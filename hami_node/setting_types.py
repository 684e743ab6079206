"""The kinds of values that settings take, each with its range or pattern and words for people."""

from __future__ import annotations

from typing import Annotated

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
