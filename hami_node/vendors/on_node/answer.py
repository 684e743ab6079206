"""What a container gets: the response to kubelet's Allocate as plain values, and its builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hami_node.model import Container, ContainerGrants, Device, Node, Uuid
from hami_node.vendors.on_node.limiter import LimiterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A bind mount of a host path into the container."""

    container_path: str
    host_path: str
    is_read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node of the host that the container gets; `permissions`: letters of `rwm`."""

    container_path: str
    host_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerResponse:
    """The response to kubelet for one container, sorted so that equal slices give equal bytes.

    `limiter_version` is not part of what kubelet gets; "" for a container without a limiter.
    """

    envs: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    limiter_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePart:
    """A part of a divided card that exists.

    Attributes:
        uuid: the part's own.
        numbers: the driver's numbers for it, in the vendor's order.
    """

    uuid: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One container's grants on this node's cards.

    `made` are the parts of divided cards that its grants name, grant by grant, once they exist.
    """

    pod_uid: str
    container: Container
    grants: ContainerGrants
    cards: Mapping[Uuid, Device] = field(default_factory=dict)
    made: tuple[MadePart | None, ...] = ()

    @property
    def folder_name(self) -> str:
        """`<pod uid>_<container>`: neither can contain an underscore."""
        return f"{self.pod_uid}_{self.container.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSituation:
    """What a responder should know of its node.

    Attributes:
        node: None while the API server has not shown it yet.
        cards: all cards of the vendor on this node.
        answers: what containers on record were given; None while the record is not read yet.
    """

    node: Node | None = None
    cards: tuple[Device, ...] = ()
    answers: tuple[ContainerResponse, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOverState:
    """How containers get their cards on this node, for people.

    Attributes:
        summary: in a few words; "" where there is nothing to say.
        problem: why none can be given any, and what to do; "" where they can.
        details: by name, for the page with the settings in force.
    """

    summary: str = ""
    problem: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


class Responder(Protocol):
    """Builds the responses to Allocate for one vendor's cards on this node."""

    def respond(self, granted: Slice) -> ContainerResponse:
        """Prepare what the container needs on the node and return its response. Idempotent.

        Raises:
            AllocationError: the container can't be served as its limits ask.
        """

    def warning(self, granted: Slice) -> str:
        """What people should know about this container, for an Event; "" for nothing."""

    def limiter(self) -> LimiterState:
        """What limits the containers that start now."""

    def keep(self, situation: NodeSituation) -> None:
        """Bring up to date what containers need on the node; called at every change."""

    def hand_over(self) -> HandOverState:
        """How containers get their cards now. Never waits."""

    def close(self) -> None:
        """The daemon ends: remove what no container needs any more."""
