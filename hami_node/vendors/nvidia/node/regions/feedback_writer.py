"""Tells containers on shared cards, pass by pass, to wait or to keep their core limits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from hami_node.errors import RegionError
from hami_node.logs import kv
from hami_node.model import Container
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import CorePolicy
from hami_node.vendors.nvidia.node.regions.region_file import open_region
from hami_node.vendors.nvidia.node.regions.usage_reader import ReadRegion
from hami_node.vendors.nvidia.regions.feedback import WAIT, Feedback, Tenant, new_feedback, released
from hami_node.vendors.nvidia.settings import NvidiaSettings

log = logging.getLogger(__name__)

LOW: Final = 1
"""The priority of a container that names none, as the limiter has it."""


class FeedbackWriter:
    """Takes part in the passes over the region files; see `usage_reader.RegionVisitor`.

    It keeps nothing: what a killed daemon left in a region is read and mended in the next pass.
    """

    def __init__(self, settings: Callable[[], NvidiaSettings], now: Callable[[], float]) -> None:
        """`now`: seconds since the epoch, by the node's clock, which containers share."""
        self._settings, self._now = settings, now

    def visit(self, regions: Sequence[ReadRegion], *, is_last: bool) -> None:
        """Write the feedback that has to change; at the last pass everybody is released."""
        by_key = {read.holder.folder_name: read for read in regions}
        settings = self._settings()
        is_forced = settings.core_policy_here is CorePolicy.FORCE
        if is_last:
            changes = {key: released(_feedback(read)) for key, read in by_key.items()}
        else:
            tenants = [_tenant(read, settings.resource_priority) for read in regions]
            changes = dict(new_feedback(tenants, self._now(), is_forced=is_forced))
        for key, feedback in changes.items():
            self._write(by_key[key], feedback)

    def _write(self, read: ReadRegion, feedback: Feedback) -> None:
        """Write what differs; a region that is no longer one is left alone."""
        holder, before = read.holder, _feedback(read)
        name = f"{holder.namespace}/{holder.pod}/{holder.container}"
        try:
            with open_region(self._settings().hook_path, holder.folder_name) as file:
                if feedback.utilization_switch != before.utilization_switch:
                    file.write_feedback(utilization_switch=feedback.utilization_switch)
                if feedback.recent_kernel != before.recent_kernel:
                    file.write_feedback(recent_kernel=feedback.recent_kernel)
        except RegionError as e:
            log.info("feedback_not_written", extra=kv(container=name, problem=str(e)))
            return
        if (feedback.recent_kernel == WAIT) != (before.recent_kernel < 0):
            event = "container_waits" if feedback.recent_kernel == WAIT else "container_goes_on"
            log.info(event, extra=kv(container=name))


def _tenant(read: ReadRegion, priority_resource: str) -> Tenant:
    return Tenant(
        key=read.holder.folder_name,
        cards=frozenset(card.uuid for card in read.holder.cards),
        priority=_priority(read.holder.spec, priority_resource),
        feedback=_feedback(read),
        last_launch_s=read.region.last_kernel_s,
    )


def _feedback(read: ReadRegion) -> Feedback:
    region = read.region
    return Feedback(
        recent_kernel=region.recent_kernel, utilization_switch=region.utilization_switch
    )


def _priority(spec: Container | None, resource: str) -> int:
    """The priority by the pod's spec, which a running container can't change."""
    if spec is None:
        return LOW
    text = spec.limits.get(resource) or spec.env.get(names.ENV_TASK_PRIORITY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else LOW
