"""A node with the resources of two vendors, on backends that a test moves."""

from __future__ import annotations

from pathlib import Path

from hami_node.config.settings import make_settings
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor
from tests.acme.spec import ACME_SPEC
from tests.fakes.backend import FakeBackend
from tests.fakes.live_kube import FakeCluster
from tests.fakes.nodes import FakeNode, moved
from tests.fakes.pods import NODE


class Served(FakeNode):
    """NVIDIA's and ACME's cards on one node, NVIDIA's first; Neuron's are served by others."""

    def __init__(self, plugin_dir: Path, cluster: FakeCluster | None = None) -> None:
        self.gpu_backend, self.card_backend = FakeBackend(), FakeBackend()
        backends = {NVIDIA_SPEC: self.gpu_backend, ACME_SPEC: self.card_backend}
        every: tuple[AnyVendor, ...] = (*VENDORS, ACME_SPEC)
        settings = make_settings(
            {"node_name": NODE, "plugin_dir": plugin_dir, "hook_path": plugin_dir},
            tuple(vendor.settings for vendor in every),
        )
        vendors = (
            moved(vendor, backends[vendor]) if vendor in backends else vendor for vendor in every
        )
        super().__init__(settings, *vendors, cluster=cluster)
        for owner in self.vendor_cards:
            owner.offer()
        (self.gpu,), (self.card,) = (owner.resources for owner in self.vendor_cards)

    def scan(self) -> None:
        """Let both find their cards."""
        for owner in self.vendor_cards:
            owner.scan()
