"""What the webhook goes by: the settings that it reads, in its own words."""

from __future__ import annotations

from dataclasses import dataclass, field

from hami_node.request_rules import request_config_of, resource_names_of
from hami_node.settings import CorePolicy, Settings
from hami_node.wire.requests import RequestConfig, ResourceNames


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRules:
    """The rules of one review.

    Attributes:
        resources: the extended resources by their configured names.
        requests: defaults of a request.
        scheduler_name: the scheduler that gives out devices.
        takes_default_scheduler: pods that name `default-scheduler` are taken over.
        core_policy: written into containers with cards unless it is the limiter's default.
        hides_cards: containers that ask for no card are kept from seeing any.
        runtime_class_name: of pods with cards that name none; "" leaves them alone.
    """

    resources: ResourceNames = field(default_factory=ResourceNames)
    requests: RequestConfig = field(default_factory=RequestConfig)
    scheduler_name: str = "hami-scheduler"
    takes_default_scheduler: bool = True
    core_policy: CorePolicy = CorePolicy.DEFAULT
    hides_cards: bool = False
    runtime_class_name: str = ""


def webhook_rules_of(settings: Settings) -> WebhookRules:
    """The webhook's part of the settings."""
    return WebhookRules(
        resources=resource_names_of(settings),
        requests=request_config_of(settings),
        scheduler_name=settings.scheduler_name,
        takes_default_scheduler=settings.force_overwrite_default_scheduler,
        core_policy=settings.core_policy,
        hides_cards=settings.overwrite_env,
        runtime_class_name=settings.runtime_class_name,
    )
