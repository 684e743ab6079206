"""Neuron's entry in the list of vendors; each part is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hami_node.ports import CounterSpec
from hami_node.vendors.neuron.settings import NEURON_SETTINGS, NeuronSettings
from hami_node.vendors.spec import AuditOutlets, VendorSpec

if TYPE_CHECKING:
    from hami_node.model import Node
    from hami_node.vendors.demo import ForeignDevices
    from hami_node.vendors.neuron.admission import NeuronAdmission
    from hami_node.vendors.neuron.node.auditor import NeuronAuditor
    from hami_node.vendors.neuron.node.reports import NeuronPublication
    from hami_node.vendors.neuron.protocol import NeuronProtocol
    from hami_node.vendors.neuron.requests import NeuronResources
    from hami_node.vendors.on_node.publication import CardSources


def _resources(settings: NeuronSettings) -> NeuronResources:
    from hami_node.vendors.neuron.requests import NeuronResources

    return NeuronResources(device=settings.neuron_resource, core=settings.neuron_core_resource)


def _protocol(settings: NeuronSettings, compat: str) -> NeuronProtocol:
    from hami_node.vendors.neuron.protocol import neuron_protocol

    return neuron_protocol(_resources(settings), compat)


def _admission(settings: NeuronSettings, compat: str) -> NeuronAdmission:
    from hami_node.vendors.neuron.admission import NeuronAdmission

    return NeuronAdmission(protocol=_protocol(settings, compat))


def _publication(sources: CardSources, settings: Callable[[], NeuronSettings]) -> NeuronPublication:
    from hami_node.vendors.neuron.node.reports import NeuronPublication

    return NeuronPublication(_resources(settings()), sources.closed)


def _auditor(outlets: AuditOutlets, settings: Callable[[], NeuronSettings]) -> NeuronAuditor:
    from hami_node.vendors.neuron.node.auditor import NeuronAuditor

    # Neither names nor masks depend on the generation of rules.
    return NeuronAuditor(_protocol(settings(), "2.8"), outlets)


def _listed(settings: NeuronSettings) -> tuple[str, ...]:
    from hami_node.vendors.neuron.node.check import listed_resources

    return listed_resources(_resources(settings))


def _is_on(node: Node, settings: NeuronSettings) -> bool:
    from hami_node.vendors.neuron.node.devices import devices_of

    return bool(devices_of(node, _resources(settings)))


def _demo() -> ForeignDevices:
    from hami_node.vendors.neuron.demo import NEURON_DEMO

    return NEURON_DEMO


NEURON_SPEC: Final = VendorSpec(
    settings=NEURON_SETTINGS,
    protocol=_protocol,
    demo=_demo,
    admission=_admission,
    publication=_publication,
    auditor=_auditor,
    counter=CounterSpec(
        name="neuron_violations",
        doc="Neuron grants of pods that contradict the rules.",
        label="rule",
    ),
    listed=_listed,
    is_on=_is_on,
)
