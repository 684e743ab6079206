"""What a container gets: the response to kubelet's Allocate as plain values, and its builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hami_node.model import Container, ContainerGrants, Device, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of a host path into the container."""

    container_path: str
    host_path: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResponse:
    """The response to kubelet for one container, sorted so that equal slices give equal bytes.

    `limiter_version` is not part of what kubelet gets; "" for a container without a limiter.
    """

    envs: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    limiter_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One container's grants on this node's cards."""

    pod_uid: str
    container: Container
    grants: ContainerGrants
    cards: Mapping[Uuid, Device] = field(default_factory=dict)

    @property
    def folder_name(self) -> str:
        """`<pod uid>_<container>`: neither can contain an underscore."""
        return f"{self.pod_uid}_{self.container.name}"


class Responder(Protocol):
    """Builds the responses to Allocate for one vendor's cards on this node."""

    def respond(self, granted: Slice) -> ContainerResponse:
        """Prepare what the container needs on the node and return its response. Idempotent.

        Raises:
            AllocationError: the container can't be served as its limits ask.
        """

    def warning(self, granted: Slice) -> str:
        """What people should know about this container, for an Event; "" for nothing."""

    def is_incomplete(self) -> bool:
        """True while files that limit containers are missing or unusable on the node."""

    def is_defective(self) -> bool:
        """True while what limits containers here is known to leave some programs unlimited."""
