"""A node in standalone mode: fixed shares, without any scheduler part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hami_node.model import ContainerKind
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.shares import share_resource
from tests.fakes.pods import NODE, Box, pod_body
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, Rig

QUARTER: Final = share_resource(GPU, 4)
HALF: Final = share_resource(GPU, 2)
WHOLE: Final = share_resource(GPU, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A container that asks for so many shares."""

    name: str = "main"
    resource: str = QUARTER
    count: int = 1
    kind: ContainerKind = ContainerKind.APP
    beside: Mapping[str, str] | None = None
    env: Sequence[Mapping[str, object]] = ()

    def limits(self) -> dict[str, str]:
        """The limits of the container."""
        return {self.resource: str(self.count), **(self.beside or {})}


class ShareRig(Rig):
    """As `Rig`, for a daemon that runs with `--standalone true`."""

    def start_shares(self, shares: str = "4", **flags: str) -> None:
        """Start the daemon and wait until kubelet counts its shares and the node shows them."""
        self._start(standalone="true", standalone_shares=shares, **flags)
        daemon = self.daemon
        assert daemon is not None
        eventually(
            lambda: (
                all(self.kubelet.devices(each.name) for each in daemon.resources)
                and self.is_steady()
            ),
            LIMIT_S,
        )
        eventually(lambda: nvidia_names.NODE_STANDALONE in self.notes, LIMIT_S)

    def start_again(self, shares: str = "4", **flags: str) -> None:
        """As an upgrade does, or a change of settings that need it."""
        self.stop()
        self.start_shares(shares, **flags)

    def run(
        self,
        name: str,
        *containers: Shares,
        annotations: Mapping[str, str] | None = None,
        phase: str = "Running",
    ) -> Admission:
        """Create a pod on this node and let kubelet admit it; () is one quarter."""
        self.create(name, containers, annotations)
        return self.admit_shares(name, phase)

    def create(
        self,
        name: str,
        containers: Sequence[Shares] = (),
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """Create a pod that is bound to this node; the daemon has seen it afterwards."""
        wanted = containers or (Shares(),)
        boxes = [Box(name=each.name, cards=0, kind=each.kind) for each in wanted]
        body: dict[str, Any] = pod_body(name, boxes, dict(annotations or {}), node=NODE)
        by_name = {each.name: each for each in wanted}
        for container in (*body["spec"].get("initContainers", ()), *body["spec"]["containers"]):
            container["resources"]["limits"] = by_name[container["name"]].limits()
            container["env"] = list(by_name[container["name"]].env)
        self.api.create("pods", body)
        self.wait_seen(name)

    def admit_shares(self, name: str, phase: str = "Running") -> Admission:
        """Let kubelet admit the pod; a refused one is Failed, as kubelet leaves it."""
        pod = self.pod(name)
        resources = sorted({key for item in pod.containers for key in item.limits})
        answer = self.kubelet.admit(pod, *resources)
        self.wait_followed_up(name)
        self.set_phase(name, phase if answer.is_admitted else "Failed")
        return answer

    def offered(self, resource: str = QUARTER) -> int:
        """How many shares kubelet counts as healthy, those of running pods included."""
        return self.kubelet.allocatable(resource)


def cards_of(answer: Admission, container: str = "main") -> list[tuple[str, str]]:
    """The cards that a container sees, each with its memory limit."""
    env = dict(answer.responses[container].envs)
    uuids = env[nvidia_names.ENV_VISIBLE_DEVICES].split(",")
    limits = [env[f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}"] for i in range(len(uuids))]
    return list(zip(uuids, limits, strict=True))


def cores_of(answer: Admission, container: str = "main") -> str:
    """The core limit of a container."""
    return dict(answer.responses[container].envs)[nvidia_names.ENV_CORE_LIMIT]
