"""Neuron's part in the demo: devices of one instance, linked to each other."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hami_node.vendors.demo import Annotations, DemoPod, ForeignDevices, check
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.codec import (
    decode_neuron_ids,
    decode_neuron_register,
    encode_neuron_ids,
)
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.wire.handshake import HandshakeKind, decode_handshake

NODE: Final = "neuron-node"
INSTANCE: Final = "trn1.32xlarge"
DEVICES: Final = 16
CORES: Final = 32
JOB: Final = DemoPod(name="neuron-job", limits={names.RESOURCE_NEURON: "4"})
JOB_DEVICES: Final = 4
APART: Final = 3
"""Devices with numbers this far apart are not a set that a job can use."""


def _reported(annotations: Annotations) -> str:
    devices = decode_neuron_register(annotations[names.NODE_NEURON_REGISTER])
    counts = (len(devices), sum(device.cores.bit_count() for device in devices))
    check(counts == (DEVICES, CORES), f"it reported {counts} devices and cores")
    topology: dict[str, Any] = msgspec.json.decode(annotations[names.NODE_NEURON_TOPOLOGY])
    check(topology["instanceType"] == INSTANCE, f"it reported {topology['instanceType']}")
    check(len(topology.get("adj", ())) == DEVICES, "links are missing")
    key = names.NODE_NEURON_HANDSHAKE
    handshake = decode_handshake(annotations[key], key)
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    near = ", ".join(str(index) for index in sorted(topology["adj"][0]))
    return (
        f"{INSTANCE}: {DEVICES} devices, {CORES} cores, {topology['topology']}; "
        f"device 0 is linked to {near}"
    )


def _placed(job: Annotations, node: Annotations) -> str:
    ids = decode_neuron_ids(job[names.NEURON_IDS])
    check(len(set(ids)) == JOB_DEVICES, f"it was given devices {ids}")
    links: list[list[int]] = msgspec.json.decode(node[names.NODE_NEURON_TOPOLOGY])["adj"]
    check(_are_linked(ids, links), f"it was given devices {ids}, which are not linked")
    return f"{names.NEURON_IDS} {job[names.NEURON_IDS]}, which are linked"


def _are_linked(ids: tuple[int, ...], links: list[list[int]]) -> bool:
    """True when every device can be reached from the first through devices of the set only."""
    reached, edge = {ids[0]}, [ids[0]]
    while edge:
        new = {near for near in links[edge.pop()] if near in ids} - reached
        reached |= new
        edge += new
    return reached == set(ids)


def _impossible(job: Annotations) -> DemoPod:
    """A pod with free devices that are not a valid set: their numbers are not consecutive."""
    taken = decode_neuron_ids(job[names.NEURON_IDS])
    free = [index for index in range(DEVICES) if index not in taken]
    given = encode_neuron_ids(free[::APART][:JOB_DEVICES])
    return DemoPod(
        name="scattered",
        limits=JOB.limits,
        annotations={names.NEURON_IDS: given, names.NEURON_PREDICATE_NODE: NODE},
        given=given,
    )


NEURON_DEMO: Final = ForeignDevices(
    protocol=neuron_protocol(),
    node=NODE,
    model=INSTANCE,
    labels={names.INSTANCE_TYPE: INSTANCE},
    quantities={names.RESOURCE_NEURON: str(DEVICES), names.RESOURCE_NEURON_CORE: str(CORES)},
    plugin="AWS's plugin",
    titles=(
        "A Neuron node is reported",
        "A Neuron pod gets linked devices",
        "Impossible Neuron devices are reported",
    ),
    announced=(
        names.NODE_NEURON_REGISTER,
        names.NODE_NEURON_TOPOLOGY,
        names.NODE_NEURON_HANDSHAKE,
    ),
    reported=_reported,
    job=JOB,
    placed=_placed,
    impossible=_impossible,
    complaint="NeuronGrantInvalid",
)
