"""The cast of the demo: the simulated devices that the vendors provide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hami_node.errors import HamiError
from hami_node.setting_types import Blocks
from hami_node.vendors.demo import ForeignDevices, SharedCards
from hami_node.vendors.spec import AnyVendor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """The devices that the vendors provide.

    Attributes:
        shared: the cards that pods share.
        foreign: devices that other plugins serve, each on its own node.
        blocks: every vendor's settings.
    """

    shared: SharedCards
    foreign: tuple[ForeignDevices, ...]
    blocks: Blocks


def cast_of(vendors: Iterable[AnyVendor]) -> Cast:
    """The devices of these vendors; of several shared cards the first.

    Raises:
        HamiError: no vendor provides cards to share.
    """
    vendors = tuple(vendors)
    parts = [vendor.demo() for vendor in vendors if vendor.demo is not None]
    shared = next((part for part in parts if isinstance(part, SharedCards)), None)
    if shared is None:
        raise HamiError("no vendor brings cards that the demo could share")
    return Cast(
        shared=shared,
        foreign=tuple(part for part in parts if isinstance(part, ForeignDevices)),
        blocks=tuple(vendor.settings for vendor in vendors),
    )
