"""The settings as the node's parts need them."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node import settings as config
from hami_node.engine.compat import COMPATS, Compat
from hami_node.node.inventory import Sharing
from hami_node.node.response import ResponseStyle
from hami_node.request_rules import request_config_of, resource_names_of
from hami_node.settings import Settings
from hami_node.wire.requests import RequestConfig, ResourceNames


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Settings of Allocate. They change with the configuration, as a whole."""

    resource: str
    resource_names: ResourceNames
    request_config: RequestConfig
    compat: Compat
    style: ResponseStyle


def sharing_of(settings: Settings) -> Sharing:
    """How cards are offered."""
    return Sharing(
        split_count=settings.split_count,
        memory_scaling=settings.memory_scaling,
        core_scaling=settings.core_scaling,
        mode=settings.operating_mode,
        hidden_uuids=frozenset(settings.filter_uuids),
        hidden_indexes=frozenset(settings.filter_indexes),
    )


def rules_of(settings: Settings) -> Rules:
    """How Allocate decides and answers."""
    is_core_limit_off = (
        settings.disable_core_limit or settings.core_policy is config.CorePolicy.DISABLE
    )
    return Rules(
        resource=settings.resource_count,
        resource_names=resource_names_of(settings),
        request_config=request_config_of(settings),
        compat=COMPATS[settings.compat.value],
        style=ResponseStyle(
            hook_path=settings.hook_path,
            is_oversubscribed=settings.memory_scaling > 1,
            log_level=str(settings.lib_cuda_log_level),
            is_core_limit_disabled=is_core_limit_off,
            is_limiter_required=settings.limiter is config.LimiterMode.REQUIRED,
            uses_cdi=settings.device_list_strategy is config.DeviceListStrategy.CDI_CRI,
        ),
    )
