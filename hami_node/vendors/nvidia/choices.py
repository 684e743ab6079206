"""The words and small structures that NVIDIA's settings are made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from hami_node.setting_types import Mebibytes, Percent

AnnotationPrefix = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/\Z",
        description="a domain and a slash, such as cdi.k8s.io/, which engines read",
    ),
]
"""How the keys of CDI annotations begin. A container whose annotation nobody reads has no card."""


class RegisterFormat(StrEnum):
    """The generation of the node's register annotation."""

    AUTO = "auto"
    JSON = "json"
    CSV9 = "csv9"
    CSV7 = "csv7"


class HandshakeMode(StrEnum):
    """When the handshake annotation is written."""

    ALWAYS = "always"
    ON_REQUEST = "on-request"
    OFF = "off"


class LimiterMode(StrEnum):
    """What happens to a limited container while the node's limiter is missing or broken."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class MemoryLimitBy(StrEnum):
    """What keeps a container within its memory."""

    LIMITER = "limiter"
    DRIVER = "driver"
    BOTH = "both"


class DeviceListStrategy(StrEnum):
    """How the cards of a container are passed to the container runtime."""

    AUTO = "auto"
    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class VisibleDevicesForm(StrEnum):
    """How cards are named in the environment and in volume mounts."""

    AUTO = "auto"
    BARE = "bare"
    RUNTIME = "runtime"


class CorePolicy(StrEnum):
    """When the limiter enforces core limits."""

    DEFAULT = "default"
    FORCE = "force"
    DISABLE = "disable"


class BackendKind(StrEnum):
    """Where the NVIDIA cards come from."""

    NVML = "nvml"
    SIMULATED = "simulated"


Sha256 = Annotated[
    str,
    Meta(
        pattern=r"^((amd64|arm64)=)?[0-9a-f]{64}\Z",
        description="64 hexadecimal digits in lower case, alone or behind amd64= or arm64=",
    ),
]
"""What a file has to have, or has to have where the processor is that one."""


class ListedInstance(Struct, frozen=True, kw_only=True):
    """`count` MIG instances of one size; `memory` in MiB, `core` in percent."""

    name: str
    memory: Mebibytes
    count: Annotated[int, Meta(ge=0, le=100)]
    core: Percent = 0


class ListedGeometries(Struct, frozen=True, kw_only=True, rename="camel"):
    """The geometries of the models whose names contain one of `models`."""

    models: tuple[str, ...]
    allowed_geometries: tuple[tuple[ListedInstance, ...], ...]


ProfileName = Annotated[
    str,
    Meta(
        pattern=r"^[1-9][0-9]?g\.[A-Za-z0-9.+-]{1,60}\Z",
        description="a MIG profile as the driver names it, such as 1g.10gb",
    ),
]


class ListedProfiles(Struct, frozen=True, kw_only=True):
    """The MIG profiles that are offered of the models whose names contain one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[ProfileName, ...]
