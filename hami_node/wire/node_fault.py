"""Why a node could not serve a pod that was bound to it, whatever the pod, as kubelet says it."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from typing import Final

from hami_node.model import Pod
from hami_node.wire import names


class Fault(StrEnum):
    """What no pod can have brought about; these words are a metric's label."""

    UNAVAILABLE = "plugin-unavailable"
    """The node's device plugin does not answer, or says that the node can serve nobody."""
    UNHEALTHY = "no-healthy-devices"
    """Kubelet has no healthy device left of those that it had promised."""


_BEGIN: Final = r"(?:Pod was rejected: )?Allocate failed due to "
_RPC: Final = re.compile(_BEGIN + r"rpc error: code = (\w+) desc = ")
_DEVICES: Final = re.compile(
    _BEGIN + r"(?:[a-z ]{1,80}; cannot allocate unhealthy devices|"
    r"cannot allocate (unregistered) device) ([^\s,]+), "
)
"""Kubelet's own words, from their beginning: what follows may repeat what a tenant wrote.

Source: Kubernetes pkg/kubelet/cm/devicemanager/manager.go and pkg/kubelet/kubelet.go, 1.28 to 1.36.
"""
_NOBODY_ANSWERS: Final = frozenset({"Unavailable", "DeadlineExceeded", "Canceled"})


def node_fault(pod: Pod, resources: Collection[str]) -> Fault | None:
    """What of its node kept a pod from its cards that was bound by its reservation.

    Args:
        pod: the pod.
        resources: those that kubelet asks for cards; what another plugin fails at is not meant.
    """
    notes = pod.annotations
    if not pod.refusal or not pod.node_name or notes.get(names.POD_NODE) != pod.node_name:
        return None
    if notes.get(names.POD_BIND_PHASE, names.PHASE_SUCCESS) == names.PHASE_SUCCESS:
        return None
    if (found := _DEVICES.match(pod.refusal)) is not None:
        fault = Fault.UNAVAILABLE if found.group(1) else Fault.UNHEALTHY
        return fault if found.group(2) in resources else None
    code = _RPC.match(pod.refusal)
    if code is None or code.group(1) not in _NOBODY_ANSWERS:
        return None
    # kubelet does not say which plugin it asked
    asked = {name for container in pod.containers for name in container.limits if "/" in name}
    return Fault.UNAVAILABLE if asked <= set(resources) else None


def bound_at(pod: Pod) -> float:
    """When the pod was bound, Unix seconds, by its reservation; 0 where that is not written."""
    text = pod.annotations.get(names.POD_BIND_TIME, "")
    is_time = text.isascii() and text.isdecimal() and len(text) <= 12
    return float(text) if is_time else 0.0
