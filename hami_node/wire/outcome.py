"""How the serving of a bound pod's cards ended, as its node's plugin and kubelet say it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.model import Pod
from hami_node.wire import names


class Fault(StrEnum):
    """Why a pod's cards were not served; these words are a metric's label."""

    REFUSED = "refused"
    """The pod or the node: nobody said which."""
    UNAVAILABLE = "plugin-unavailable"
    """The node's device plugin does not answer, or says that the node can serve nobody like it."""
    UNHEALTHY = "no-healthy-devices"
    """Kubelet has no healthy device left of those that it had promised."""

    @property
    def is_the_nodes(self) -> bool:
        """True where no pod can have brought it about."""
        return self is not Fault.REFUSED


_BEGIN: Final = r"(?:Pod was rejected: )?Allocate failed due to "
_RPC: Final = re.compile(_BEGIN + r"rpc error: code = (\w+) desc = ")
_UNHEALTHY: Final = re.compile(
    _BEGIN + r"[a-z ]{1,80}; cannot allocate unhealthy devices ([^\s,]+), "
)
"""Kubelet's own words, from their beginning: what follows may repeat what a tenant wrote.

Source: Kubernetes pkg/kubelet/cm/devicemanager/manager.go and pkg/kubelet/kubelet.go, 1.28 to 1.34.
"""
_OF_THE_NODE: Final = frozenset({"Unavailable", "DeadlineExceeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a pod's cards. `fault` is None where every container was served."""

    fault: Fault | None = None
    message: str = ""


SERVED: Final = Outcome()


def outcome_of(pod: Pod, resources: Collection[str]) -> Outcome | None:
    """What became of the cards of a pod that was bound by its reservation; None while that is open.

    Args:
        pod: the pod.
        resources: those that kubelet asks for cards; another plugin's refusal says nothing of them.
    """
    notes = pod.annotations
    phase = notes.get(names.POD_BIND_PHASE)
    if phase is None or not pod.node_name or notes.get(names.POD_NODE) != pod.node_name:
        return None
    if phase == names.PHASE_SUCCESS:
        return SERVED
    is_failed = phase == names.PHASE_FAILED
    if not is_failed and not (pod.refusal and _is_about(pod, resources)):
        return None
    return Outcome(fault=_fault_in(pod, resources), message=pod.refusal)


def bound_at(pod: Pod) -> float:
    """When the pod was bound, Unix seconds, by its reservation; 0 where that is not written."""
    text = pod.annotations.get(names.POD_BIND_TIME, "")
    is_time = text.isascii() and text.isdecimal() and len(text) <= 12
    return float(text) if is_time else 0.0


def _is_about(pod: Pod, resources: Collection[str]) -> bool:
    """Whether kubelet's refusal concerns these resources: it names one, or none other is asked."""
    if not _RPC.match(pod.refusal):
        return any(name in pod.refusal for name in resources)
    asked = {name for container in pod.containers for name in container.limits if "/" in name}
    return asked <= set(resources)


def _fault_in(pod: Pod, resources: Collection[str]) -> Fault:
    found = _UNHEALTHY.match(pod.refusal)
    if found is not None and found.group(1) in resources:
        return Fault.UNHEALTHY
    code = _RPC.match(pod.refusal)
    if code is not None and code.group(1) in _OF_THE_NODE and _is_about(pod, resources):
        return Fault.UNAVAILABLE
    return Fault.REFUSED
