"""A node whose MIG instances others have made, on the stand-in for the driver's library."""

from __future__ import annotations

from typing import Final

from hami_node.clock import SystemClock
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S
from tests.integration.share_rig import ShareRig, Shares
from tests.nvml_stub.control import UUIDS, Stub, card
from tests.nvml_stub.mig import Instance

SMALL: Final = "nvidia.com/mig-1g.5gb"
MEDIA: Final = "nvidia.com/mig-1g.5gb.me"
MIDDLE: Final = "nvidia.com/mig-2g.10gb"
LARGE: Final = "nvidia.com/mig-3g.20gb"
CARDS: Final = 3
NO_RIGHTS: Final = "rights none"
"""Of a daemon in a container without capabilities."""


class Ahead(SystemClock):
    """The system's clock, as many seconds ahead as the test says."""

    by_s = 0.0

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back."""
        return super().monotonic() + self.by_s


class InstanceRig(ShareRig):
    """As `Rig`, with real calls of NVML. The first cards are in MIG mode."""

    def __init__(self, driver: Stub, divided: int = 1) -> None:
        super().__init__(cards=CARDS)
        self.clock = SystemClock()  # the driver's calls take as long as ever
        self.driver = driver
        driver.mig.reset()
        self.divide(divided)

    def divide(self, count: int, *lines: str) -> None:
        """So many cards are in MIG mode, each near a NUMA node of its own."""
        modes = ["enabled"] * count + ["disabled"] * (CARDS - count)
        cards = (card(i, mig=mode) for i, mode in enumerate(modes))
        self.driver.write(*cards, NO_RIGHTS, *lines)

    def make(self, profile: str, start: int, number: int = 0) -> Instance:
        """Somebody makes an instance."""
        return self.driver.mig.make(UUIDS[number], profile, start)

    def serve(self, strategy: str = "mixed", **flags: str) -> None:
        """Start the daemon and wait until the node shows its cards."""
        self._start(backend="nvml", mig_strategy=strategy, report_interval_s="0.2", **flags)
        eventually(lambda: self.notes.keys() & SHOWN and self.is_steady(), LIMIT_S)

    def serve_again(self, strategy: str = "mixed", **flags: str) -> None:
        """As a restart of the container does."""
        self.stop()
        self.serve(strategy, **flags)

    def healthy(self, resource: str) -> set[str]:
        """The device IDs that kubelet may hand out."""
        found = self.kubelet.devices(resource)
        return {name for name, health in found.items() if health == "Healthy"}

    def ask(self, name: str, resource: str = SMALL, count: int = 1) -> Admission:
        """A pod with one container that asks for instances."""
        return self.run(name, Shares(resource=resource, count=count))

    def close(self) -> None:
        """Leave nothing of this node's MIG."""
        super().close()
        self.driver.mig.reset()


SHOWN: Final = frozenset({nvidia_names.NODE_REGISTER, nvidia_names.NODE_STANDALONE})


def seen(answer: Admission, container: str = "main") -> str:
    """What a container sees."""
    return dict(answer.responses[container].envs)[nvidia_names.ENV_VISIBLE_DEVICES]
