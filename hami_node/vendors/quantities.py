"""Extended resources: their names in settings, and their quantities in containers and nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from hami_node.errors import WireError
from hami_node.model import Container, Node
from hami_node.wire.values import MAX_INT32, parse_whole_quantity

ResourceName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?\Z",
        description="an extended resource such as nvidia.com/gpu",
    ),
]
"""The type of a setting that names an extended resource."""


def text_of(container: Container, resource: str) -> str | None:
    """The quantity as written; limits win over requests."""
    text = container.limits.get(resource)
    return container.requests.get(resource) if text is None else text


def whole_of(container: Container, resource: str) -> int | None:
    """A whole number of any size and sign; None when the resource is not named.

    Raises:
        WireError: not a whole quantity; it names the resource.
    """
    text = text_of(container, resource)
    return None if text is None else parse_whole_quantity(text, resource)


def count_of(container: Container, resource: str) -> int | None:
    """A number from 0 to 2^31-1; None when the resource is not named.

    Raises:
        WireError: anything else; it names the resource.
    """
    text = text_of(container, resource)
    return None if text is None else bounded(parse_whole_quantity(text, resource), resource, text)


def bounded(value: int, resource: str, text: str) -> int:
    """The value, if it is from 0 to 2^31-1.

    Raises:
        WireError: it is not; names the resource and shows the text.
    """
    if value < 0:
        raise WireError(resource, text, "can't be negative")
    if value > MAX_INT32:
        raise WireError(resource, text, f"is too large: at most {MAX_INT32}")
    return value


def check_quantities(container: Container, resources: Iterable[str]) -> None:
    """Refuse a container that names one of these resources with a value that can't be served.

    Raises:
        WireError: not a quantity, negative, fractional or too large; it names the resource.
    """
    resources, limits, requests = tuple(resources), container.limits, container.requests
    for quantities in (limits,) if requests == limits else (limits, requests):
        for resource in resources:
            text = quantities.get(resource)
            if text is not None:
                bounded(parse_whole_quantity(text, resource), resource, text)


def allocatable_of(node: Node, resource: str) -> int:
    """What kubelet offers of a resource; 0 when it offers nothing.

    Raises:
        WireError: not a whole quantity.
    """
    text = node.allocatable.get(resource)
    return 0 if text is None else parse_whole_quantity(text, resource)
