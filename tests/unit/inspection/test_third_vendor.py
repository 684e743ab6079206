"""Inspection shows the cards of a vendor that it was not written for."""

from __future__ import annotations

import json
from dataclasses import replace

from hami_node.inspection.picture import Basis
from hami_node.inspection.pod import PodState, Verdict, explain_pod
from tests.acme import names
from tests.acme.protocol import acme_protocol
from tests.fakes.saved_cluster import NOW_S, card_json, node_json, pending_json, pod_json
from tests.unit.inspection.views import BASIS, SCHEDULER, listed

ACME = replace(acme_protocol(), wish_keys=((names.MIN_FIRMWARE,),))
ALL = Basis(vendors=(*BASIS.vendors, ACME), rules=BASIS.rules)

CARD = card_json("ACME-0", type="ACME-Anvil", firmware=3, devmem=8000, count=4)
NODE = node_json(
    "n1",
    {names.NODE_REGISTER: json.dumps([CARD]), names.NODE_HANDSHAKE: "Reported 2023-11-14 22:12:50"},
)
NODE["status"] = {"allocatable": {names.RESOURCE_CARD: "4"}}
HOLDER = pod_json("holder", {names.POD_ALLOCATED: "ACME-0,ACME,3000,40:;"})
HOLDER["spec"]["containers"][0]["resources"]["limits"] = {  # type: ignore[index]  # JSON
    names.RESOURCE_CARD: "1"
}


def pending(annotations: dict[str, str] | None = None, **limits: str) -> dict[str, object]:
    pod = pending_json("p", annotations)
    wanted = {f"acme.example/{key}": value for key, value in limits.items()}
    pod["spec"]["containers"][0]["resources"]["limits"] = wanted  # type: ignore[index]  # JSON
    return pod


def test_hints_name_its_resources_and_its_wishes() -> None:
    found = listed(NODE, HOLDER, pending(card="1", memory="6000"))
    view = explain_pod(found, found.pods[1], ALL, NOW_S, SCHEDULER)
    assert (view.state, view.nodes[0].verdict) == (PodState.WAITING, Verdict.NO_ROOM)
    assert view.cures == (
        "request at most 5000 of acme.example/memory: that fits on n1 now",
        "or wait: when other pods have ended, it fits on n1",
    )
    wishing = listed(NODE, pending({names.MIN_FIRMWARE: "9"}, card="1", memory="10"))
    view = explain_pod(wishing, wishing.pods[0], ALL, NOW_S, SCHEDULER)
    assert view.cures[0] == "remove acme.example/min-firmware: then it fits on n1 now"
