"""The vendors: the only list of them."""

from __future__ import annotations

from typing import Final

from hami_node.setting_types import Blocks
from hami_node.vendors.neuron.spec import NEURON_SPEC
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.spec import AnyVendor

VENDORS: Final[tuple[AnyVendor, ...]] = (NVIDIA_SPEC, NEURON_SPEC)
"""In the order in which they are read and shown."""

SETTINGS_BLOCKS: Final[Blocks] = tuple(vendor.settings for vendor in VENDORS)
"""What the vendors add to the settings."""
