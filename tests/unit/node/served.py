"""Resources of a daemon on backends that a test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hami_node.config.settings import Settings, make_settings
from hami_node.node.vendor_cards import VendorCards
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor
from tests.acme.spec import ACME_SPEC
from tests.fakes.backend import FakeBackend
from tests.fakes.clock import FakeClock

ALL: tuple[AnyVendor, ...] = (*VENDORS, ACME_SPEC)


def settings_of(plugin_dir: Path) -> Settings:
    """The defaults of all vendors."""
    blocks = tuple(vendor.settings for vendor in ALL)
    return make_settings({"plugin_dir": plugin_dir, "hook_path": plugin_dir}, blocks)


def cards_of(
    vendor: AnyVendor, backend: FakeBackend, settings: Callable[[], Settings]
) -> VendorCards:
    """A vendor's cards with this backend."""
    assert vendor.served is not None
    return VendorCards(
        vendor,
        replace(vendor.served, make_backend=lambda settings, clock, records: backend),
        settings,
        clock=FakeClock(),
        stop=threading.Event(),
    )


class Served:
    """NVIDIA's and ACME's cards on one node, NVIDIA's first."""

    def __init__(self, plugin_dir: Path) -> None:
        self.settings = settings_of(plugin_dir)
        self.gpu_backend, self.card_backend = FakeBackend(), FakeBackend()
        self.both = (
            cards_of(NVIDIA_SPEC, self.gpu_backend, lambda: self.settings),
            cards_of(ACME_SPEC, self.card_backend, lambda: self.settings),
        )
        for owner in self.both:
            owner.offer()
        (self.gpu,), (self.card,) = (owner.resources for owner in self.both)
