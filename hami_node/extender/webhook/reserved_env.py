"""Environment variables that belong to the node: who may set them, and what the webhook sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from hami_node.extender.webhook.container_asks import ContainerRequest
from hami_node.text import shown
from hami_node.vendors.admission import VendorAdmission


def env_problems(
    request: ContainerRequest, asked_vendors: Iterable[VendorAdmission]
) -> Iterator[str]:
    """Sentences about variables that must not be set in a pod with these vendors' cards."""
    if request.problem:
        return  # its request is unknown
    form = request.form
    for vendor in asked_vendors:
        for var in form.env or ():
            why = vendor.objection_to(var, form.container, request.ask_of(vendor))
            if why:
                yield (
                    f"{form.title}: environment variable {shown(var.name)} {why}: "
                    "remove it from env"
                )


def env_wanted(request: ContainerRequest, vendors: Iterable[VendorAdmission]) -> dict[str, str]:
    """The variables to set in the container, by name."""
    form, wanted = request.form, dict[str, str]()
    for vendor in vendors:
        wanted |= vendor.env_of(form.container, form.env or (), request.ask_of(vendor))
    return wanted


def env_unwanted(request: ContainerRequest, vendors: Iterable[VendorAdmission]) -> frozenset[str]:
    """The user's variables to take out of the container, because the node writes them."""
    own = {var.name for var in request.form.env or ()}
    return frozenset(
        name
        for vendor in vendors
        for name in vendor.env_of_the_node(request.ask_of(vendor))
        if name in own
    )


def removed(request: ContainerRequest, unwanted: Iterable[str]) -> Iterator[str]:
    """Warnings about a user's variables that are taken out."""
    for name in sorted(unwanted):
        yield f"{request.form.title}: environment variable {name} is removed: the node writes it"


def overwritten(request: ContainerRequest, wanted: Mapping[str, str]) -> Iterator[str]:
    """Warnings about a user's variables that get another value."""
    for var in request.form.env or ():
        if var.name in wanted and var.value != wanted[var.name]:
            title, value = request.form.title, wanted[var.name]
            yield f"{title}: environment variable {var.name} is set to {value}, as configured here"
