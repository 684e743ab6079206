"""What a container asks for: extended resources in its limits and requests, as `Ask`s.

Two readers of the same rules: `asks_of` answers what HAMi's scheduler answers (a bad value asks
for nothing), `checked_asks_of` refuses a bad value with its name and a cure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Ask, Container, Vendor
from hami_node.wire import names as wire_names
from hami_node.wire.quantity import parse_whole_quantity
from hami_node.wire.scalars import MAX_INT32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceNames:
    """The names of the extended resources; device-config.yaml may change NVIDIA's."""

    gpu: str = wire_names.RESOURCE_GPU
    gpu_memory: str = wire_names.RESOURCE_GPU_MEMORY
    gpu_memory_percent: str = wire_names.RESOURCE_GPU_MEMORY_PERCENT
    gpu_cores: str = wire_names.RESOURCE_GPU_CORES
    gpu_priority: str = wire_names.RESOURCE_GPU_PRIORITY
    neuron: str = wire_names.RESOURCE_NEURON
    neuron_core: str = wire_names.RESOURCE_NEURON_CORE


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestConfig:
    """Defaults of a request.

    Attributes:
        default_memory_mib: for a container that names no memory; 0 means the whole card.
        default_cores: percent, for a container that names no cores.
        memory_factor: MiB that one unit of the memory resource means; below 1 counts as 1.
        default_count: cards for a container that names memory or cores but no count; applied
            by the webhook, which writes the count into the pod.
        neuron_cores_per_device: how many cores one device has in a request for cores.
        is_odd_neuron_rejected: 2.10 refuses a number of Neuron cores that is neither 1 nor a
            multiple of a device's; 2.8 rounds it down to whole devices and reads 0 as one core.
    """

    default_memory_mib: int = 0
    default_cores: int = 0
    memory_factor: int = 1
    default_count: int = 1
    neuron_cores_per_device: int = 2
    is_odd_neuron_rejected: bool = False


_NO_CONFIG: Final = RequestConfig()
_NO_NAMES: Final = ResourceNames()


def asks_of(
    container: Container,
    names: ResourceNames = _NO_NAMES,
    config: RequestConfig = _NO_CONFIG,
) -> tuple[Ask, ...]:
    """What the container asks for as HAMi's schedulers read it, at most one ask per vendor.

    Limits win over requests, resource by resource. A count of 0, and a value that can't be used,
    ask for nothing.
    """
    return tuple(
        ask
        for ask in (
            _quietly(_gpu_ask, container, names, config),
            _quietly(_neuron_ask, container, names, config),
        )
        if ask is not None
    )


def checked_asks_of(
    container: Container,
    names: ResourceNames = _NO_NAMES,
    config: RequestConfig = _NO_CONFIG,
) -> tuple[Ask, ...]:
    """What the container asks for, or why it can't be told.

    Raises:
        WireError: a resource we serve has a value that is no quantity, negative, fractional,
            too large, or no number of Neuron cores that devices can give; `key` names the
            resource, the text says what to write instead.
    """
    check_quantities(container, names)
    gpu = _gpu_ask(container, names, config)
    # 2.8 reads 0 cores as one core; kubelet never allocates for them, so nothing is reserved.
    has_neuron = _count_of(container, names.neuron) or _count_of(container, names.neuron_core)
    neuron = _neuron_ask(container, names, config) if has_neuron else None
    return tuple(ask for ask in (gpu, neuron) if ask is not None)


def check_quantities(container: Container, names: ResourceNames = _NO_NAMES) -> None:
    """Refuse a container that names one of our resources with a value nobody can serve.

    Raises:
        WireError: not a quantity, negative, fractional or too large; it names the resource.
    """
    ours = (
        names.gpu,
        names.gpu_memory,
        names.gpu_memory_percent,
        names.gpu_cores,
        names.neuron,
        names.neuron_core,
    )
    for quantities in (container.limits, container.requests):
        for resource in ours:
            text = quantities.get(resource)
            if text is not None:
                _bounded(parse_whole_quantity(text, resource), resource, text)


def check_percentage(container: Container, names: ResourceNames = _NO_NAMES) -> None:
    """Refuse a memory percentage outside 0..100, which a scheduler would silently clamp.

    Raises:
        WireError: it names the resource.
    """
    percent = _whole_of(container, names.gpu_memory_percent)
    if percent is not None and not 0 <= percent <= 100:
        raise WireError(
            names.gpu_memory_percent, str(percent), "has to be a whole number from 0 to 100"
        )


def _bounded(value: int, resource: str, text: str) -> int:
    if value < 0:
        raise WireError(resource, text, "can't be negative")
    if value > MAX_INT32:
        raise WireError(resource, text, f"is too large: at most {MAX_INT32}")
    return value


_Reader = Callable[[Container, ResourceNames, RequestConfig], Ask | None]


def _quietly(
    read: _Reader, container: Container, names: ResourceNames, config: RequestConfig
) -> Ask | None:
    try:
        return read(container, names, config)
    except WireError:
        return None


def _text_of(container: Container, resource: str) -> str | None:
    text = container.limits.get(resource)
    return container.requests.get(resource) if text is None else text


def _whole_of(container: Container, resource: str) -> int | None:
    text = _text_of(container, resource)
    return None if text is None else parse_whole_quantity(text, resource)


def _count_of(container: Container, resource: str) -> int | None:
    """A number of cards or cores; None when the resource is not named."""
    text = _text_of(container, resource)
    if text is None:
        return None
    return _bounded(parse_whole_quantity(text, resource), resource, text)


def _gpu_ask(container: Container, names: ResourceNames, config: RequestConfig) -> Ask | None:
    count = _count_of(container, names.gpu)
    if not count:
        return None
    memory_mib = _memory_mib_of(container, names, config)
    percent = _percent_of(container, names)
    if memory_mib is None and percent is None:
        # The default is already in MiB: the factor belongs to what users write.
        memory_mib = config.default_memory_mib or None
        percent = None if memory_mib else 100
    cores = _count_of(container, names.gpu_cores)
    return Ask(
        vendor=Vendor.NVIDIA,
        count=count,
        memory_mib=memory_mib,
        memory_percent=percent,
        cores=config.default_cores if cores is None else cores,
    )


def _memory_mib_of(container: Container, names: ResourceNames, config: RequestConfig) -> int | None:
    amount = _count_of(container, names.gpu_memory)
    if not amount:
        return None
    return _bounded(amount * max(config.memory_factor, 1), names.gpu_memory, str(amount))


def _percent_of(container: Container, names: ResourceNames) -> int | None:
    """1..100; None when absent, 0 or negative: that is "not given", never "no memory"."""
    percent = _whole_of(container, names.gpu_memory_percent)
    return min(percent, 100) if percent is not None and percent > 0 else None


def _neuron_ask(container: Container, names: ResourceNames, config: RequestConfig) -> Ask | None:
    per_device = config.neuron_cores_per_device
    devices = _count_of(container, names.neuron)
    if devices is not None:
        return _neuron(devices, per_device, is_whole_device=True)
    cores = _count_of(container, names.neuron_core)
    if cores is None:
        return None
    if not config.is_odd_neuron_rejected:
        if cores < per_device:
            return _neuron(1, max(cores, 1))
        return _neuron(cores // per_device, per_device)
    if cores < per_device:
        return _neuron(1, cores) if cores else None
    if cores % per_device:
        text = str(cores)
        raise WireError(names.neuron_core, text, f"has to be 1 or a multiple of {per_device}")
    return _neuron(cores // per_device, per_device)


def _neuron(devices: int, cores_each: int, *, is_whole_device: bool = False) -> Ask | None:
    if not devices:
        return None
    return Ask(
        vendor=Vendor.AWS_NEURON,
        count=devices,
        cores=cores_each,
        is_whole_device=is_whole_device,
    )


def rounded_neuron_cores(container: Container, names: ResourceNames, config: RequestConfig) -> int:
    """How many asked Neuron cores the 2.8 rounding takes away; 0 when none.

    Raises:
        WireError: the container's number of cores can't be read.
    """
    cores = _count_of(container, names.neuron_core) or 0
    if _text_of(container, names.neuron) is not None or config.is_odd_neuron_rejected:
        return 0
    per_device = config.neuron_cores_per_device
    return cores % per_device if cores > per_device else 0
