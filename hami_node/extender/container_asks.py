"""What one container asks for when its pod is created: values checked, defaults written out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.errors import WireError
from hami_node.extender.pod_form import ContainerForm, shown
from hami_node.extender.webhook_rules import WebhookRules
from hami_node.model import Ask, Container, Vendor
from hami_node.wire.quantity import parse_whole_quantity
from hami_node.wire.requests import (
    ResourceNames,
    check_percentage,
    checked_asks_of,
    rounded_neuron_cores,
)

WHOLE_CARD_CORES: Final = "100"
NO_CARD_HAS_MIB: Final = 16 * 1024 * 1024
"""16 TiB: more can only be a unit that was mistaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One container's request as the webhook understands it.

    Attributes:
        named: which of our resources it names.
        gpu: its cards, None for none.
        neuron: its Neuron devices, None for none.
        added: quantities to write into it, by resource.
        priority: what the limiter is told, "" when it names none.
        problem: why the request can't be served, "" when it can.
        warnings: what its author should know.
    """

    form: ContainerForm
    named: tuple[str, ...] = ()
    gpu: Ask | None = None
    neuron: Ask | None = None
    added: dict[str, str] = field(default_factory=dict)
    priority: str = ""
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_asking(self) -> bool:
        """True when it wants devices, or wants them in a way that can't be read."""
        return bool(self.gpu or self.neuron or self.problem)


def read_container(form: ContainerForm, rules: WebhookRules) -> Reading:
    """Check the container's values and work out what has to be written into it."""
    resources, container = rules.resources, form.container
    named = _named(container, resources)
    if not named:
        return Reading(form=form)
    added = _default_count(named, rules)
    whole = replace(container, limits={**container.limits, **added})
    try:
        check_percentage(whole, resources)
        asks = {ask.vendor: ask for ask in checked_asks_of(whole, resources, rules.requests)}
        priority = _priority(container, resources)
    except WireError as error:
        cure = _cure(error.key, rules)
        text = f"{form.title}: {error.key} is {shown(error.excerpt)}: {error.why} ({cure})"
        return Reading(form=form, named=named, problem=text)
    gpu, neuron = asks.get(Vendor.NVIDIA), asks.get(Vendor.AWS_NEURON)
    if gpu and resources.gpu_cores not in named and _is_whole_card(gpu):
        added[resources.gpu_cores] = WHOLE_CARD_CORES
    return Reading(
        form=form,
        named=named,
        gpu=gpu,
        neuron=neuron,
        added=added,
        priority=priority,
        warnings=_warnings(form, named, gpu, rules),
    )


def _named(container: Container, names: ResourceNames) -> tuple[str, ...]:
    ours = (
        names.gpu,
        names.gpu_memory,
        names.gpu_memory_percent,
        names.gpu_cores,
        names.gpu_priority,
        names.neuron,
        names.neuron_core,
    )
    return tuple(one for one in ours if one in container.limits or one in container.requests)


def _default_count(named: tuple[str, ...], rules: WebhookRules) -> dict[str, str]:
    """The count of a container that names a part of a card but no card."""
    names, count = rules.resources, rules.requests.default_count
    parts = {names.gpu_memory, names.gpu_memory_percent, names.gpu_cores}
    has_part_only = names.gpu not in named and not parts.isdisjoint(named)
    return {names.gpu: str(count)} if has_part_only and count else {}


def _is_whole_card(ask: Ask) -> bool:
    """True when the ask leaves no memory to others and says nothing of cores.

    It is decided from the ask as the scheduler resolves it, defaults included: who has all of a
    card's memory has its cores too. Source: HAMi nvidia/device.go:417, which looks at the names.
    """
    return ask.memory_mib is None and ask.memory_percent == 100 and not ask.cores


def _priority(container: Container, names: ResourceNames) -> str:
    text = container.limits.get(names.gpu_priority, container.requests.get(names.gpu_priority))
    if text is None:
        return ""
    value = parse_whole_quantity(text, names.gpu_priority)
    if value not in (0, 1):
        raise WireError(names.gpu_priority, text, "has to be 0 or 1")
    return str(value)


def _cure(resource: str, rules: WebhookRules) -> str:
    names = rules.resources
    factor = rules.requests.memory_factor
    unit = "MiB" if factor <= 1 else f"pieces of {factor} MiB"
    cures = {
        names.gpu: "write a whole number of cards, such as 1",
        names.gpu_memory: f"write {unit} as a plain whole number, such as 3000",
        names.gpu_memory_percent: "write percent of a card's memory, such as 50 for one half",
        names.gpu_cores: "write percent of one card as a whole number, such as 30",
        names.gpu_priority: "write 0 for high or 1 for low",
        names.neuron: "write a whole number of devices, such as 1",
        names.neuron_core: (
            f"write 1 or a multiple of {rules.requests.neuron_cores_per_device} cores"
        ),
    }
    return cures[resource]


def _warnings(
    form: ContainerForm, named: tuple[str, ...], gpu: Ask | None, rules: WebhookRules
) -> tuple[str, ...]:
    names = rules.resources
    found = []
    cards = [one for one in named if one not in (names.neuron, names.neuron_core)]
    if gpu is None and cards and cards != [names.gpu]:
        others = ", ".join(one for one in cards if one != names.gpu)
        found.append(f"names {others} without {names.gpu} above 0: it gets no card")
    if gpu and gpu.cores > 100:
        found.append(f"{names.gpu_cores} is {gpu.cores} percent of one card: it counts as 100")
    if gpu and (gpu.memory_mib or 0) >= NO_CARD_HAS_MIB:
        found.append(
            f"{names.gpu_memory} means {gpu.memory_mib} MiB on each card, more than any card has; "
            f"{_cure(names.gpu_memory, rules)}"
        )
    if lost := rounded_neuron_cores(form.container, names, rules.requests):
        found.append(f"{names.neuron_core} is rounded down to whole devices: {lost} less")
    return tuple(f"{form.title}: {text}" for text in found)
