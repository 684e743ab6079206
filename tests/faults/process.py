"""What a test asks of the daemon's own process: kubelet's view, the annotation, the metrics."""

from __future__ import annotations

import http.client
import re

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from tests.bench.daemon_rig import NODE, RESOURCE, DaemonRig
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS

LIMIT_S = 20.0


def listed(rig: DaemonRig) -> dict[int, bool]:
    """Health by card as kubelet has it: a card is well if all its slots are."""
    states: dict[int, bool] = {}
    for device_id, state in rig.kubelet.devices(RESOURCE).items():
        card = UUIDS.index(device_id.rsplit("-", 1)[0])
        states[card] = states.get(card, True) and state == "Healthy"
    return states


def registered(rig: DaemonRig) -> dict[int, bool]:
    """Health by card as the node's annotation has it."""
    text = rig.api.read("nodes", NODE)["metadata"].get("annotations", {})
    found = decode_register(text.get(nvidia_names.NODE_REGISTER, "[]"))
    return {UUIDS.index(card.uuid): card.healthy for card in found}


def wait_health(rig: DaemonRig, wanted: dict[int, bool]) -> None:
    """Wait until kubelet and the annotation show exactly this."""
    eventually(lambda: listed(rig) == registered(rig) == wanted, LIMIT_S)


def page(port: int, path: str = "/metrics") -> tuple[int, str]:
    """An answer of the daemon's own HTTP server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def measured(port: int) -> dict[int, bool]:
    """Health by card as the metrics have it."""
    _, text = page(port)
    found = re.findall(r'^hami_node_card_healthy\{[^}]*uuid="([^"]+)"[^}]*\} (\S+)', text, re.M)
    return {UUIDS.index(uuid): float(value) == 1.0 for uuid, value in found}


def port_of(rig: DaemonRig) -> int:
    """The port of its metrics and probes, from its log."""
    eventually(lambda: "event=metrics_served" in rig.log, LIMIT_S)
    found = re.search(r"event=metrics_served port=(\d+)", rig.log)
    assert found, rig.log
    return int(found[1])
