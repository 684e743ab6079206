"""The rules of the webhook: the settings that it reads, and the vendors' own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hami_node.config.settings import Settings
from hami_node.vendors.admission import VendorAdmission
from hami_node.vendors.spec import AnyVendor, admissions_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """The rules of one review.

    Attributes:
        vendors: what is checked and written for each vendor's cards.
        scheduler_name: the scheduler that assigns devices.
        takes_default_scheduler: pods that name `default-scheduler` are taken over.
    """

    vendors: tuple[VendorAdmission, ...]
    scheduler_name: str = "hami-scheduler"
    takes_default_scheduler: bool = True


def webhook_rules_of(settings: Settings, vendors: Sequence[AnyVendor]) -> WebhookRules:
    """The webhook's part of the settings."""
    return WebhookRules(
        vendors=admissions_of(vendors, settings),
        scheduler_name=settings.scheduler_name,
        takes_default_scheduler=settings.force_overwrite_default_scheduler,
    )
