"""The settings in the form that the extender's parts need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hami_node.config.settings import Settings
from hami_node.engine.compat import COMPATS
from hami_node.engine.place import Rules
from hami_node.vendors.offer import ANY_LABELS
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.spec import AnyVendor, protocols_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderRules:
    """Settings of Filter and Bind. They change with the configuration, all at once.

    Attributes:
        vendors: whose cards are given out.
        engine: how nodes and cards are chosen.
        node_labels: labels without which a node is not used.
        can_resize: running pods may be resized.
    """

    vendors: tuple[VendorProtocol, ...]
    engine: Rules
    node_labels: Mapping[str, str] = field(default_factory=lambda: ANY_LABELS)
    can_resize: bool = True

    @property
    def limited(self) -> VendorProtocol | None:
        """The vendor whose cards a namespace's quota limits; None if there is none."""
        return next((vendor for vendor in self.vendors if vendor.cards.has_quota), None)


def rules_of(settings: Settings, vendors: Sequence[AnyVendor]) -> ExtenderRules:
    """How decisions about these vendors' cards are made."""
    return ExtenderRules(
        vendors=protocols_of(vendors, settings),
        engine=Rules(
            compat=COMPATS[settings.compat.value],
            node_policy=settings.node_scheduler_policy.value,
            gpu_policy=settings.gpu_scheduler_policy,
        ),
        node_labels=dict(pair.split("=", 1) for pair in settings.node_label_selector),
        can_resize=settings.resize,
    )
