from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.model import Node, Pod
from hami_node.ports import EventNote
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.node.auditor import NeuronAuditor, claim_of
from hami_node.vendors.neuron.node.reports import NeuronPublication
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.spec import AuditOutlets
from hami_node.wire.objects import decode_pod
from tests.fakes.clock import FakeClock

NOW = 1_800_000_000.0
NAMES = NeuronResources()
RENAMED = NeuronResources(device="example.com/chip", core="example.com/chipcore")
TRN = Node(
    name="n1",
    labels={neuron_names.INSTANCE_TYPE: "trn1.32xlarge"},
    capacity={neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"},
)
RENAMED_TRN = replace(TRN, capacity={RENAMED.device: "16", RENAMED.core: "32"})
PLAIN = Node(name="n1")
KEYS = {
    neuron_names.NODE_NEURON_REGISTER,
    neuron_names.NODE_NEURON_TOPOLOGY,
    neuron_names.NODE_NEURON_HANDSHAKE,
}


def neuron_pod(
    name: str = "p",
    ids: str | None = None,
    *,
    devices: int = 0,
    cores: int = 0,
    unit: str | None = None,
    phase: str = "Running",
    node: str = "n1",
    resources: NeuronResources = NAMES,
) -> Pod:
    notes = {
        neuron_names.NEURON_IDS: ids,
        neuron_names.NEURON_RESOURCE_TYPE: unit,
        neuron_names.NEURON_PREDICATE_NODE: node,
    }
    asked = {resources.device: devices, resources.core: cores}
    limits = {key: str(count) for key, count in asked.items() if count}
    return decode_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "annotations": {key: text for key, text in notes.items() if text is not None},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": phase},
        }
    )


def test_publication_other_nodes_have_none_of_the_keys() -> None:
    assert NeuronPublication(NAMES).desired(PLAIN, NOW) == dict.fromkeys(KEYS)
    assert NeuronPublication(NAMES).heartbeat(PLAIN, NOW) == {}


def test_publication_neuron_node_registers_devices_and_wiring() -> None:
    made = NeuronPublication(NAMES).desired(TRN, NOW)
    register = made[neuron_names.NODE_NEURON_REGISTER] or ""
    assert register.count("n1-AWSNeuron-") == 16
    assert made[neuron_names.NODE_NEURON_TOPOLOGY]
    assert NeuronPublication(NAMES).desired(TRN, NOW + 99) == made, "equal state is equal bytes"


def test_publication_handshake_has_the_time_in_rfc_3339_and_goes_at_the_end() -> None:
    publication = NeuronPublication(NAMES)
    assert publication.heartbeat(TRN, NOW) == {
        neuron_names.NODE_NEURON_HANDSHAKE: "Reported_2027-01-15T08:00:00Z"
    }
    assert publication.shutdown(TRN) == {neuron_names.NODE_NEURON_HANDSHAKE: None}


def an_auditor(
    events: list[EventNote], counted: list[str], resources: NeuronResources = NAMES
) -> NeuronAuditor:
    outlets = AuditOutlets(
        notify=events.append,
        count=counted.append,
        sysfs_root=Path("/nowhere"),
        clock=FakeClock(),
    )
    return NeuronAuditor(neuron_protocol(resources), outlets)


def audit(
    *pods: Pod, node: Node = TRN, times: int = 1, resources: NeuronResources = NAMES
) -> tuple[list[EventNote], list[str]]:
    events, counted = list[EventNote](), list[str]()
    auditor = an_auditor(events, counted, resources)
    for _ in range(times):
        auditor.audit(node, pods, {})
    return events, counted


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ((neuron_pod(ids="99", devices=1),), "99"),
        ((neuron_pod(ids="x,y", devices=2),), "not a list of numbers"),
        ((neuron_pod(devices=2),), "2 devices requested, no ids"),
        ((neuron_pod(ids="1", devices=1, node="n2"),), "scheduled for n2, runs on n1"),
        ((neuron_pod(ids="1", devices=1, unit=neuron_names.RESOURCE_NEURON_CORE),), "written as"),
        ((neuron_pod(ids="1", devices=1, cores=1),), "share one id list"),
        ((neuron_pod("a", "0", devices=1), neuron_pod("b", "0", devices=1)), "default/"),
    ],
    ids=["out-of-range", "unreadable", "missing", "other-node", "other-unit", "mixed", "twice"],
)
def test_audit_grant_against_a_rule_is_an_event_and_a_count(
    pods: tuple[Pod, ...], words: str
) -> None:
    events, counted = audit(*pods)
    assert counted
    assert {event.reason for event in events} == {"NeuronGrantInvalid"}
    assert any(words in event.message for event in events)


def test_audit_same_finding_is_reported_once_until_the_pod_is_gone() -> None:
    bad = neuron_pod(ids="99", devices=1)
    events, counted = list[EventNote](), list[str]()
    auditor = an_auditor(events, counted)
    once = auditor.audit(TRN, (bad,), {})
    assert auditor.audit(TRN, (bad,), {}) == once == len(events)
    auditor.audit(TRN, (), {})
    auditor.audit(TRN, (bad,), {})
    assert len(events) == 2 * once


def test_audit_other_nodes_have_nothing_to_check() -> None:
    assert audit(neuron_pod(ids="99", devices=1), node=PLAIN) == ([], [])


def test_claim_of_init_containers_are_not_counted_with_the_others() -> None:
    limits = {"limits": {neuron_names.RESOURCE_NEURON: "2"}}
    pod = decode_pod(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {
                "initContainers": [{"name": "i", "resources": limits}],
                "containers": [{"name": "a", "resources": limits}],
            },
        }
    )
    claim = claim_of(pod, NAMES)
    assert claim is not None
    assert claim.devices == 2


def test_publication_of_renamed_resources_is_that_of_the_node() -> None:
    publication = NeuronPublication(RENAMED)

    assert publication.desired(RENAMED_TRN, NOW) == NeuronPublication(NAMES).desired(TRN, NOW)
    assert publication.heartbeat(RENAMED_TRN, NOW)
    assert NeuronPublication(NAMES).desired(RENAMED_TRN, NOW) == dict.fromkeys(KEYS)
