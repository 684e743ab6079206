"""The settings as the extender's parts need them, and a pod's request under them."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.engine.compat import COMPATS
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.errors import WireError
from hami_node.model import Container, Pod
from hami_node.request_rules import request_config_of, resource_names_of
from hami_node.settings import Settings
from hami_node.wire.requests import RequestConfig, ResourceNames, checked_asks_of
from hami_node.wire.wishes import decode_wishes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderRules:
    """Settings of Filter and Bind. They change with the configuration, as a whole."""

    names: ResourceNames
    config: RequestConfig
    engine: Rules


def rules_of(settings: Settings) -> ExtenderRules:
    """How decisions are made."""
    return ExtenderRules(
        names=resource_names_of(settings),
        config=request_config_of(settings),
        engine=Rules(
            compat=COMPATS[settings.compat.value],
            node_policy=settings.node_scheduler_policy.value,
            gpu_policy=settings.gpu_scheduler_policy,
        ),
    )


def request_of(pod: Pod, rules: ExtenderRules) -> PodRequest:
    """What the pod asks for.

    Raises:
        WireError: a quantity nobody can serve; `key` names container and resource.
    """
    containers = []
    for one in pod.containers:
        try:
            asks = checked_asks_of(one, rules.names, rules.config)
            _refuse_share_of_nothing(one, rules.names)
        except WireError as e:
            raise WireError(f"container {one.name}: {e.key}", e.excerpt, e.why) from e
        containers.append(ContainerAsks(kind=one.kind, asks=asks))
    return PodRequest(
        namespace=pod.namespace,
        containers=tuple(containers),
        wishes=decode_wishes(pod.annotations),
    )


def _refuse_share_of_nothing(container: Container, names: ResourceNames) -> None:
    """Refuse a share of cards without a number of cards: it would run without any limit.

    The webhook writes the number in; such a pod came past it.

    Raises:
        WireError: it names the resource and what to add.
    """
    named = {**container.requests, **container.limits}
    if names.gpu in named:
        return
    for resource in (names.gpu_memory, names.gpu_memory_percent, names.gpu_cores):
        if named.get(resource, "0") not in ("", "0"):
            cure = f"is a share of no card: add {names.gpu}: 1 (the webhook would have)"
            raise WireError(resource, named[resource], cure)
