"""What a vendor provides for `hami-node demo`: data, and checks of plain values.

`hami_node.demo` runs it on simulated nodes. A vendor may have no demo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from hami_node.vendors.protocol import VendorProtocol

Annotations = Mapping[str, str]


class StepFailed(Exception):
    """A step of the demo failed; the text describes what was observed."""


def check(is_true: object, otherwise: str) -> None:
    """Raise StepFailed with this text unless the value is true."""
    if not is_true:
        raise StepFailed(otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCards:
    """Simulated cards that our daemon serves, for the steps in which pods share them.

    Attributes:
        protocol: the names of its resources and annotations.
        cards: (model, MiB) of the simulated cards, by index.
        wish: an annotation, and the word of a model's name that it requires.
        config: the text of device-config.yaml that gives every card this many slots.
        limits_env: what a container gets in its environment for MiB and percent of cores.
        visible_env: the variable with the UUIDs of a container's cards.
        limiter_files: stand-ins of the files that enforcing limits needs, by their names below
            this hook path.
    """

    protocol: VendorProtocol
    cards: tuple[tuple[str, int], ...]
    wish: tuple[str, str]
    config: Callable[[int], str]
    limits_env: Callable[[int, int], Mapping[str, str]]
    visible_env: str
    limiter_files: Callable[[Path], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPod:
    """A pod with one container; `given` are the devices that its annotations name, for people."""

    name: str
    limits: Mapping[str, str]
    annotations: Annotations = field(default_factory=lambda: MappingProxyType({}))
    given: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignDevices:
    """Simulated devices that the vendor's own plugin serves: we report, place and check them.

    Attributes:
        protocol: the names of its resources and annotations.
        node: the name of the simulated node.
        model: what people call the node's devices.
        labels: of the node.
        quantities: what kubelet offers there.
        plugin: the name of the plugin that serves the devices to kubelet.
        titles: of the three steps: the node is reported, a pod placed, an impossible pod found.
        announced: the annotations of the node that our daemon writes.
        reported: checks those annotations and describes them. Raises StepFailed.
        job: a pod to be scheduled.
        placed: checks the annotations of the placed job and of the node, and describes what the
            job got. Raises StepFailed.
        impossible: from the annotations of the job, a pod that our scheduler would never place.
        complaint: the reason of the Event about such a pod.
    """

    protocol: VendorProtocol
    node: str
    model: str
    labels: Mapping[str, str]
    quantities: Mapping[str, str]
    plugin: str
    titles: tuple[str, str, str]
    announced: tuple[str, ...]
    reported: Callable[[Annotations], str]
    job: DemoPod
    placed: Callable[[Annotations, Annotations], str]
    impossible: Callable[[Annotations], DemoPod]
    complaint: str


VendorDemo = SharedCards | ForeignDevices
