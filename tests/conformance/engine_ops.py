"""Vectors of the engine's parts: scores, orders, fit, MIG accounts, collapse."""

from __future__ import annotations

from hami_node.engine.card_rules import Placement, rules_of
from hami_node.engine.compat import Compat
from hami_node.engine.filters import WHOLE_CARD, Rejection, context, taken_of
from hami_node.engine.place import fit
from hami_node.engine.quota import QuotaTally
from hami_node.engine.ranking import (
    SPREAD,
    Scored,
    Weights,
    device_score,
    node_score,
    visit_order,
)
from hami_node.engine.usage import Charge, PodGrants, Taken, collapse
from hami_node.model import NO_CARD_WISHES, NO_SCORES, Ask, ContainerKind, Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA, has_mig_instance
from hami_node.vendors.nvidia.mig.codec import joined_uuid
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    TemplateSlot,
)
from hami_node.vendors.request import wishes_of
from hami_node.wire.wishes import decode_cordon
from tests.conformance.objects import Json, ask_of, quota_of, usage_of, vendors_of


def answer_device_score(case: Json, compat: Compat) -> Json:
    asks = [ask_of(request) for request in case["requests"]]
    weights = Weights(**case["weights"])
    return {
        "scores": [
            device_score(usage_of(device), asks, compat, weights) for device in case["devices"]
        ]
    }


def answer_node_score(case: Json, _: Compat) -> Json:
    return {"score": node_score(usage_of(device) for device in case["devices"])}


def answer_visit_order(case: Json, compat: Compat) -> Json:
    scored = [
        Scored(usage_of(device), device["score"], place)
        for place, device in enumerate(case["devices"])
    ]
    order = visit_order(scored, case["policy"], compat, is_numa_bound=case["numa_bind"])
    return {"order": [item.card.device.uuid for item in order]}


def answer_fit(case: Json, compat: Compat) -> Json:
    answer, ask = _fit(case, compat), ask_of(case["request"])
    if not isinstance(answer, Placement):
        return {"fit": False, "devices": [], "reason": answer.text()}
    return {
        "fit": True,
        "reason": "",
        "devices": [
            {
                "uuid": taken.device.uuid,
                "index": taken.device.index,
                # of a MIG instance the vectors have what was asked, `account` what it counts
                "memory_mib": ask.memory_mib_on(taken.device.memory_mib),
                "cores": min(ask.cores, WHOLE_CARD),
            }
            for taken in answer.taken
        ],
    }


def answer_neuron_fit(case: Json, compat: Compat) -> Json:
    answer = _fit(case, compat)
    if not isinstance(answer, Placement):
        return {"fit": False, "devices": [], "reason": answer.text()}
    return {
        "fit": True,
        "reason": "",
        "devices": [
            {"index": taken.device.index, "core_mask": taken.cores} for taken in answer.taken
        ],
    }


def _fit(case: Json, compat: Compat) -> Placement | Rejection:
    ask = ask_of(case["request"])
    wishes = wishes_of(case["pod"]["annotations"], vendors_of(compat))
    policy = SPREAD if wishes.gpu_policy is None else wishes.gpu_policy
    ctx = context(
        ask,
        wishes.of(ask.vendor),
        compat,
        policy=policy,
        cordoned=decode_cordon(case["node"]["annotations"]),
        quota=_tally_of(case, compat),
    )
    cards = [usage_of(device) for device in reversed(case["devices"])]
    return fit(cards, ctx, policy=policy, pair_scores=case["node"].get("pair_scores") or NO_SCORES)


def _tally_of(case: Json, compat: Compat) -> QuotaTally | None:
    quota = quota_of(case.get("quota"))
    if quota is None:
        return None
    tally = QuotaTally.start(quota, compat)
    init_containers = case["pod"]["init_containers"]
    allocated = case.get("allocated") or []
    for index, devices in enumerate(allocated):
        tally = tally.at(is_init=index < init_containers)
        for device in devices:
            card = usage_of({**case["devices"][0], "uuid": device["uuid"]}).device
            taken = Taken(device=card, memory_mib=device["memory_mib"], cores=device["cores"])
            tally = tally.with_taken(taken)
    return tally.at(is_init=len(allocated) < init_containers)


def answer_account(case: Json, compat: Compat) -> Json:
    card = usage_of(case["device"])
    results: list[Json] = []
    for memory_mib in case["asks"]:
        ask = Ask(vendor=NVIDIA, count=1, memory_mib=memory_mib)
        ctx = context(ask, NO_CARD_WISHES, compat)
        taken = taken_of(card, ctx) if has_mig_instance(card, ctx) is None else None
        if taken is None:
            results.append({"ok": False})
            continue
        grant, card = rules_of(card.device.vendor).grant(card, taken)
        results.append(_granted(grant))
    return {
        "results": results,
        "slots_used": card.slots_used,
        "memory_used_mib": card.memory_used_mib,
        "cores_used": card.cores_used,
    }


def _granted(grant: Grant) -> Json:
    result: Json = {
        "ok": True,
        "memory_mib": grant.memory_mib,
        "cores": grant.cores,
        "uuid": joined_uuid(grant),
    }
    part = grant.part
    if isinstance(part, TemplateSlot):
        return result | {"template": part.template, "slot": part.slot}
    assert isinstance(part, MigInstance)
    placement = {"start": part.placement.start, "size": part.placement.size}
    return result | {"profile": part.profile, "placement": placement}


def answer_collapse(case: Json, _: Compat) -> Json:
    containers = tuple(
        tuple(
            Grant(
                uuid=Uuid(device["uuid"]),
                vendor=NVIDIA,
                memory_mib=device["memory_mib"],
                cores=device["cores"],
            )
            for device in devices
        )
        for devices in case["allocated"]
    )
    kinds = (ContainerKind.INIT,) * case["init_containers"]
    return {
        "effective": _charges(collapse(PodGrants(containers=containers, kinds=kinds))),
        "app_only": _charges(
            collapse(PodGrants(containers=containers, kinds=kinds, are_inits_over=True))
        ),
    }


def _charges(charges: tuple[Charge, ...]) -> list[Json]:
    return [
        {
            "uuid": charge.uuid,
            "memory_mib": charge.memory_mib,
            "cores": charge.cores,
            "slots": charge.slots,
        }
        for charge in charges
    ]
