"""The type of a setting that names an extended resource, for every vendor's settings."""

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
