"""Steps of the demo on the AWS Neuron node."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from hami_node.model import Container
from hami_node.simulate import demo_pods as pods
from hami_node.simulate.demo_stage import (
    NEURON_CORES,
    NEURON_DEVICES,
    NEURON_NODE,
    NEURON_TYPE,
)
from hami_node.simulate.demo_tour import Seen, Tour, check
from hami_node.wire import names
from hami_node.wire.handshake import HandshakeKind, decode_handshake
from hami_node.wire.neuron_codec import (
    decode_neuron_ids,
    decode_neuron_register,
    encode_neuron_ids,
)

JOB: Final = "neuron-job"
JOB_DEVICES: Final = 4
APART: Final = 3
"""Devices with numbers so far apart are no set that a job could use."""
GRANT_INVALID: Final = "NeuronGrantInvalid"


def report_neuron(tour: Tour) -> Seen:
    """A Neuron node is reported; kubelet's side stays with AWS's own plugin."""
    stage = tour.stage
    annotations = stage.until(NEURON_NODE, "the node object names them", lambda: _told(tour))
    devices = decode_neuron_register(annotations[names.NODE_NEURON_REGISTER])
    cores = sum(device.cores.bit_count() for device in devices)
    counts = (len(devices), cores)
    check(counts == (NEURON_DEVICES, NEURON_CORES), f"it reported {counts} devices and cores")
    topology: dict[str, Any] = msgspec.json.decode(annotations[names.NODE_NEURON_TOPOLOGY])
    check(topology["instanceType"] == NEURON_TYPE, f"it reported {topology['instanceType']}")
    check(len(topology.get("adj", ())) == NEURON_DEVICES, "links are missing")
    handshake = decode_handshake(
        annotations[names.NODE_NEURON_HANDSHAKE], names.NODE_NEURON_HANDSHAKE
    )
    check(handshake.kind is HandshakeKind.REPORTED, f"the handshake is {handshake.kind}")
    check(not stage.neuron.kubelet.registrations, "it registered with kubelet, which is AWS's part")
    near = ", ".join(str(index) for index in sorted(topology["adj"][0]))
    return Seen(
        lines=(
            f"{NEURON_TYPE}: {NEURON_DEVICES} devices, {NEURON_CORES} cores, "
            f"{topology['topology']}; device 0 is linked to {near}",
            "nothing registered with kubelet: AWS's plugin serves the devices",
        )
    )


def _told(tour: Tour) -> dict[str, str] | None:
    annotations = dict(tour.stage.read_node(tour.stage.neuron).annotations)
    keys = (names.NODE_NEURON_REGISTER, names.NODE_NEURON_TOPOLOGY, names.NODE_NEURON_HANDSHAKE)
    return annotations if all(key in annotations for key in keys) else None


def place_neuron(tour: Tour) -> Seen:
    """A Neuron pod comes in unscheduled and is given devices that are linked."""
    stage = tour.stage
    limits = {names.RESOURCE_NEURON: str(JOB_DEVICES)}
    pods.create(stage, pods.body_of(JOB, (Container(name="main", limits=limits),), {}))
    node = pods.place(stage, JOB)
    check(node == NEURON_NODE, f"it was bound to {node}")
    annotations = pods.read(stage, JOB).annotations
    ids = decode_neuron_ids(annotations[names.NEURON_IDS])
    check(len(set(ids)) == JOB_DEVICES, f"it was given devices {ids}")
    text = stage.read_node(stage.neuron).annotations[names.NODE_NEURON_TOPOLOGY]
    links: list[list[int]] = msgspec.json.decode(text)["adj"]
    check(_are_linked(ids, links), f"it was given devices {ids}, which are not linked")
    return Seen(
        lines=(
            f"pod {JOB} asks {names.RESOURCE_NEURON}: {JOB_DEVICES}; it is bound to {node} with "
            f"{names.NEURON_IDS} {annotations[names.NEURON_IDS]}, which are linked",
        )
    )


def _are_linked(ids: tuple[int, ...], links: list[list[int]]) -> bool:
    """True when every device can be reached from the first over devices of the set alone."""
    reached, edge = {ids[0]}, [ids[0]]
    while edge:
        fresh = {near for near in links[edge.pop()] if near in ids} - reached
        reached |= fresh
        edge += fresh
    return reached == set(ids)


def check_neuron(tour: Tour) -> Seen:
    """Device ids that no Neuron job could use are told to the pod's owner."""
    stage = tour.stage
    scattered = _scattered(decode_neuron_ids(pods.read(stage, JOB).annotations[names.NEURON_IDS]))
    job = Container(name="main", limits={names.RESOURCE_NEURON: str(len(scattered))})
    written = {
        names.NEURON_IDS: encode_neuron_ids(scattered),
        names.NEURON_PREDICATE_NODE: NEURON_NODE,
    }
    pods.write_bound(stage, "scattered", NEURON_NODE, job, written)
    event = stage.until(
        NEURON_NODE,
        "an Event tells pod scattered what is wrong",
        lambda: pods.event_of(stage, "scattered", GRANT_INVALID),
    )
    complaint = pods.event_of(stage, JOB, GRANT_INVALID)
    check(complaint is None, f"the daemon finds fault with what the extender gave: {complaint}")
    return Seen(
        lines=(
            f"somebody gave pod scattered devices {written[names.NEURON_IDS]} past webhook and "
            f"extender; its Event says (pod {JOB} has none):",
        ),
        quote=event,
    )


def _scattered(taken: tuple[int, ...]) -> list[int]:
    """Devices of nobody that are no set: their numbers are not consecutive."""
    free = [index for index in range(NEURON_DEVICES) if index not in taken]
    return free[::APART][:JOB_DEVICES]
