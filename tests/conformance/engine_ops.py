"""Vectors of the engine's parts: scores, orders, fit, MIG accounts, collapse."""

from __future__ import annotations

from hami_node.engine import mig
from hami_node.engine.compat import Compat
from hami_node.engine.filters import context
from hami_node.engine.fit import Placement, fit
from hami_node.engine.neuron import fit_neuron
from hami_node.engine.quota import QuotaTally, Take
from hami_node.engine.ranking import (
    SPREAD,
    Scored,
    Weights,
    device_score,
    node_score,
    visit_order,
)
from hami_node.engine.usage import Charge, PodGrants, collapse
from hami_node.model import ContainerKind, Grant, Uuid, Vendor
from hami_node.wire.wishes import decode_cordon, decode_wishes
from tests.conformance.objects import Json, ask_of, quota_of, usage_of


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
    wishes = decode_wishes(case["pod"]["annotations"])
    policy = SPREAD if wishes.gpu_policy is None else wishes.gpu_policy
    ask = ask_of(case["request"])
    ctx = context(
        ask,
        wishes,
        compat,
        policy=policy,
        cordoned=decode_cordon(case["node"]["annotations"]),
        quota=_tally_of(case, compat),
    )
    cards = [usage_of(device) for device in reversed(case["devices"])]
    answer = fit(cards, ctx, policy=policy, pair_scores=case["node"]["pair_scores"])
    if not isinstance(answer, Placement):
        return {"fit": False, "devices": [], "reason": answer.text()}
    return {
        "fit": True,
        "reason": "",
        "devices": [
            {
                "uuid": taken.device.uuid,
                "index": taken.device.index,
                "memory_mib": taken.memory_mib,
                "cores": taken.cores,
            }
            for taken in answer.taken
        ],
    }


def answer_neuron_fit(case: Json, compat: Compat) -> Json:
    wishes = decode_wishes(case["pod"]["annotations"])
    ctx = context(
        ask_of(case["request"]),
        wishes,
        compat,
        policy=wishes.gpu_policy or "",
        cordoned=decode_cordon(case["node"]["annotations"]),
    )
    answer = fit_neuron([usage_of(device) for device in reversed(case["devices"])], ctx)
    if not isinstance(answer, Placement):
        return {"fit": False, "devices": [], "reason": answer.text()}
    return {
        "fit": True,
        "reason": "",
        "devices": [
            {"index": taken.device.index, "core_mask": taken.cores} for taken in answer.taken
        ],
    }


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
            take = Take(
                uuid=Uuid(device["uuid"]),
                memory_mib=device["memory_mib"],
                cores=device["cores"],
            )
            tally = tally.with_take(take)
    return tally.at(is_init=len(allocated) < init_containers)


def answer_account(case: Json, _: Compat) -> Json:
    card = usage_of(case["device"])
    results: list[Json] = []
    for ask in case["asks"]:
        choice = mig.choose(card, ask)
        if choice is None:
            results.append({"ok": False})
            continue
        card = mig.account(card, choice)
        result: Json = {
            "ok": True,
            "memory_mib": choice.memory_mib,
            "cores": choice.cores,
            "uuid": choice.uuid,
        }
        if choice.placement is None:
            result.update(template=choice.template, slot=choice.slot)
        else:
            result["profile"] = choice.name
            result["placement"] = {
                "start": choice.placement.start,
                "size": choice.placement.size,
            }
        results.append(result)
    return {
        "results": results,
        "slots_used": card.slots_used,
        "memory_used_mib": card.memory_used_mib,
        "cores_used": card.cores_used,
    }


def answer_collapse(case: Json, _: Compat) -> Json:
    containers = tuple(
        tuple(
            Grant(
                uuid=Uuid(device["uuid"]),
                vendor=Vendor.NVIDIA,
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
