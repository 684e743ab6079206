"""What a container requests of NVIDIA cards: extended resources in its limits and requests."""

from __future__ import annotations

from typing import Final

from hami_node.errors import WireError
from hami_node.model import Ask, Container
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.quantities import bounded, count_of, whole_of

UNSET_PERCENT: Final = 101
"""HAMi's memory percentage of a container that gives none."""

RESERVED: Final = (
    (names.ENV_MEMORY_LIMIT, "is the container's memory limit, which the node writes"),
    (names.ENV_CORE_LIMIT, "is the container's core limit, which the node writes"),
    (names.ENV_CACHE, "is where the limiter keeps its state, which the node decides"),
    (names.ENV_OVERSUBSCRIBE, "sets whether memory is oversubscribed, which the node decides"),
    (names.ENV_REDIRECT, "would put another library in the limiter's place"),
    (names.ENV_DRIVER_MEMORY_LIMIT, "is the driver's memory limit, which the node writes"),
    (names.ENV_DRIVER_MEMORY_REQUEST, "would keep memory of the card from other containers"),
    (names.ENV_PRELOAD, "would load other libraries before the limiter"),
    (names.ENV_VISIBLE_DEVICES, "sets which cards the container sees, which the node decides"),
)
"""Prefixes of variables that a container with cards must not set, and why.

In kubelet a container's own variables override those of a device plugin.
"""


def why_reserved(variable: str) -> str:
    """Why a container with cards must not set this variable; "" where it may."""
    return next((why for prefix, why in RESERVED if variable.startswith(prefix)), "")


def gpu_ask_of(
    container: Container, settings: NvidiaSettings, *, is_101_unset: bool = False
) -> Ask | None:
    """What the container requests; None for a count of 0 and for no count.

    Args:
        container: the container.
        settings: the names of the resources, and what a request means that leaves something out.
        is_101_unset: a memory percentage of 101 means that none is given, as in HAMi 2.8; else it
            is one above 100, as in 2.10.

    Raises:
        WireError: a value that can't be served; `key` names the resource.
    """
    count = count_of(container, settings.resource_count)
    if not count:
        return None
    memory_mib = _memory_mib_of(container, settings)
    percent = _percent_of(container, settings)
    if is_101_unset and percent == UNSET_PERCENT:
        percent = None
    if memory_mib is None and percent is None:
        # The default is already in MiB: the factor belongs to what users write.
        memory_mib = settings.default_memory_mib or None
        percent = None if memory_mib else 100
    cores = count_of(container, settings.resource_cores)
    return Ask(
        vendor=NVIDIA,
        count=count,
        memory_mib=memory_mib,
        memory_percent=None if percent is None else min(percent, 100),
        cores=settings.default_cores if cores is None else cores,
    )


def _memory_mib_of(container: Container, settings: NvidiaSettings) -> int | None:
    amount = count_of(container, settings.resource_memory)
    if not amount:
        return None
    return bounded(amount * settings.memory_factor, settings.resource_memory, str(amount))


def _percent_of(container: Container, settings: NvidiaSettings) -> int | None:
    """1 and more; None when absent, 0 or negative: that means "not given", never "no memory"."""
    percent = whole_of(container, settings.resource_memory_percent)
    return percent if percent is not None and percent > 0 else None


def check_percentage(
    container: Container, settings: NvidiaSettings, *, is_101_unset: bool = False
) -> None:
    """Refuse a memory percentage outside 0..100, which a scheduler would clamp silently.

    Args:
        container: the container.
        settings: the names of the resources.
        is_101_unset: 101 passes, see `gpu_ask_of`.

    Raises:
        WireError: it names the resource.
    """
    percent = whole_of(container, settings.resource_memory_percent)
    if is_101_unset and percent == UNSET_PERCENT:
        return
    if percent is not None and not 0 <= percent <= 100:
        raise WireError(
            settings.resource_memory_percent, str(percent), "has to be a whole number from 0 to 100"
        )


def refuse_share_of_nothing(container: Container, settings: NvidiaSettings) -> None:
    """Refuse a share of cards without a number of cards: it would run without any limit.

    The webhook adds the number; such a pod bypassed it.

    Raises:
        WireError: it names the resource and what to add.
    """
    named = {**container.requests, **container.limits}
    if settings.resource_count in named:
        return
    for resource in (
        settings.resource_memory,
        settings.resource_memory_percent,
        settings.resource_cores,
    ):
        if named.get(resource, "0") not in ("", "0"):
            hint = f"is a share of no card: add {settings.resource_count}: 1 (the webhook adds it)"
            raise WireError(resource, named[resource], hint)
