from __future__ import annotations

import pytest

from hami_node.model import Node, Pod
from hami_node.node.neuron_reports import NeuronAuditor, NeuronPublication, claim_of
from hami_node.ports import EventNote
from hami_node.wire import names
from hami_node.wire.objects import decode_pod

NOW = 1_800_000_000.0
TRN = Node(
    name="n1",
    labels={names.INSTANCE_TYPE: "trn1.32xlarge"},
    capacity={names.RESOURCE_NEURON: "16", names.RESOURCE_NEURON_CORE: "32"},
)
PLAIN = Node(name="n1")
KEYS = {names.NODE_NEURON_REGISTER, names.NODE_NEURON_TOPOLOGY, names.NODE_NEURON_HANDSHAKE}


def neuron_pod(
    name: str = "p",
    ids: str | None = None,
    *,
    devices: int = 0,
    cores: int = 0,
    unit: str | None = None,
    phase: str = "Running",
    node: str = "n1",
) -> Pod:
    notes = {
        names.NEURON_IDS: ids,
        names.NEURON_RESOURCE_TYPE: unit,
        names.NEURON_PREDICATE_NODE: node,
    }
    asked = {names.RESOURCE_NEURON: devices, names.RESOURCE_NEURON_CORE: cores}
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
    assert NeuronPublication().desired(PLAIN, NOW) == dict.fromkeys(KEYS)
    assert NeuronPublication().heartbeat(PLAIN, NOW) == {}


def test_publication_neuron_node_registers_devices_and_wiring() -> None:
    made = NeuronPublication().desired(TRN, NOW)
    register = made[names.NODE_NEURON_REGISTER] or ""
    assert register.count("n1-AWSNeuron-") == 16
    assert made[names.NODE_NEURON_TOPOLOGY]
    assert NeuronPublication().desired(TRN, NOW + 99) == made, "equal state is equal bytes"


def test_publication_handshake_has_the_time_in_rfc_3339_and_goes_at_the_end() -> None:
    said = NeuronPublication()
    assert said.heartbeat(TRN, NOW) == {
        names.NODE_NEURON_HANDSHAKE: "Reported_2027-01-15T08:00:00Z"
    }
    assert said.farewell(TRN) == {names.NODE_NEURON_HANDSHAKE: None}


def audit(*pods: Pod, node: Node = TRN, times: int = 1) -> tuple[list[EventNote], list[str]]:
    events, counted = list[EventNote](), list[str]()
    auditor = NeuronAuditor(notify=events.append, count=counted.append)
    for _ in range(times):
        auditor.audit(node, pods)
    return events, counted


@pytest.mark.parametrize(
    "pods",
    [
        (),
        (neuron_pod(),),
        (neuron_pod(ids="3", devices=1),),
        (neuron_pod("a", "0", devices=1), neuron_pod("b", "1", devices=1)),
        (neuron_pod("a", "0", devices=1), neuron_pod("b", "0", devices=1, phase="Succeeded")),
        (neuron_pod(ids="5", cores=1, unit=names.RESOURCE_NEURON_CORE),),
    ],
    ids=["none", "asks-nothing", "one", "two-apart", "other-is-over", "core"],
)
def test_audit_grants_that_obey_the_rules_are_silent(pods: tuple[Pod, ...]) -> None:
    assert audit(*pods) == ([], [])


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ((neuron_pod(ids="99", devices=1),), "99"),
        ((neuron_pod(ids="x,y", devices=2),), "not a list of numbers"),
        ((neuron_pod(devices=2),), "2 devices asked, no ids"),
        ((neuron_pod(ids="1", devices=1, node="n2"),), "scheduled for n2, runs on n1"),
        ((neuron_pod(ids="1", devices=1, unit=names.RESOURCE_NEURON_CORE),), "written as"),
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
    assert {one.reason for one in events} == {"NeuronGrantInvalid"}
    assert any(words in one.message for one in events)


def test_audit_same_finding_is_told_once_until_the_pod_is_gone() -> None:
    bad = neuron_pod(ids="99", devices=1)
    events, counted = list[EventNote](), list[str]()
    auditor = NeuronAuditor(notify=events.append, count=counted.append)
    once = auditor.audit(TRN, (bad,))
    assert auditor.audit(TRN, (bad,)) == once == len(events)
    auditor.audit(TRN, ())
    auditor.audit(TRN, (bad,))
    assert len(events) == 2 * once


def test_audit_other_nodes_have_nothing_to_check() -> None:
    assert audit(neuron_pod(ids="99", devices=1), node=PLAIN) == ([], [])


def test_claim_of_init_containers_are_not_counted_with_the_others() -> None:
    limits = {"limits": {names.RESOURCE_NEURON: "2"}}
    pod = decode_pod(
        {
            "metadata": {"name": "p", "namespace": "default", "uid": "u"},
            "spec": {
                "initContainers": [{"name": "i", "resources": limits}],
                "containers": [{"name": "a", "resources": limits}],
            },
        }
    )
    claim = claim_of(pod)
    assert claim is not None
    assert claim.devices == 2
