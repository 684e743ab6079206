"""What one container asks for when its pod is created, of every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hami_node.extender.webhook.pod_form import ContainerForm
from hami_node.extender.webhook.rules import WebhookRules
from hami_node.model import Ask, Vendor
from hami_node.vendors.admission import VendorAdmission


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """One container's request as the webhook reads it.

    Attributes:
        named: the vendors' resources that it names.
        asks: what it asks for, by vendor; empty where that can't be read.
        added: quantities to write into it, by resource.
        problem: why the request can't be served, "" when it can.
        warnings: what its author should know.
    """

    form: ContainerForm
    named: tuple[str, ...] = ()
    asks: Mapping[Vendor, Ask] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def is_asking(self) -> bool:
        """True when it asks for devices, also if its request can't be read."""
        return bool(self.asks or self.problem)

    def ask_of(self, vendor: VendorAdmission) -> Ask | None:
        """What it asks for of one vendor."""
        return self.asks.get(vendor.protocol.cards)


def read_container(form: ContainerForm, rules: WebhookRules) -> ContainerRequest:
    """Check the container's values and work out what has to be written into it."""
    read = [(vendor, vendor.read(form.container)) for vendor in rules.vendors]
    named = tuple(name for _, found in read for name in found.named)
    problem = next((found.problem for _, found in read if found.problem), "")
    if problem:
        return ContainerRequest(form=form, named=named, problem=f"{form.title}: {problem}")
    return ContainerRequest(
        form=form,
        named=named,
        asks={vendor.protocol.cards: found.ask for vendor, found in read if found.ask is not None},
        added={name: quantity for _, found in read for name, quantity in found.added.items()},
        warnings=tuple(f"{form.title}: {text}" for _, found in read for text in found.warnings),
    )


def asked_vendors(
    containers: Sequence[ContainerRequest], rules: WebhookRules
) -> tuple[VendorAdmission, ...]:
    """The vendors whose cards some container of the pod asks for."""
    return tuple(
        vendor
        for vendor in rules.vendors
        if any(container.ask_of(vendor) is not None for container in containers)
    )
