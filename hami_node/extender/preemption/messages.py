"""kube-scheduler's preemption call: which victims it proposes, and which are left. Pure.

Source: k8s.io/kube-scheduler/extender/v1, ExtenderPreemptionArgs and ExtenderPreemptionResult. The
result has no member for an error: a call that can't be answered is refused by its HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.extender.caller_limits import MAX_NODES, check_count
from hami_node.extender.http.messages import NULL, decoded, members_of, pod_of
from hami_node.model import Pod
from hami_node.wire.objects import decode_pod

MAX_VICTIMS: Final = 10_000
"""Of one node; kubelet admits some hundred pods."""

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The pods that shall leave one node, and how many of them violate a disruption budget."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionArgs:
    """A pod that fits nowhere, and the victims that kube-scheduler proposes by node."""

    pod: Pod
    nodes: Mapping[str, Victims]


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID", default="")


class _MetaVictims(msgspec.Struct):
    pods: list[_MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(msgspec.Struct):
    pods: list[msgspec.Raw] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """Read the call's body: victims by UID, or as whole pods where nodes are not cached.

    Raises:
        WireError: not such an object; the text names the member.
    """
    members = members_of(body)
    pod = pod_of(members)
    key, shown = "nodenametometavictims", "NodeNameToMetaVictims"
    if members.get(key, NULL) != NULL:
        by_uid = decoded(members[key], dict[str, _MetaVictims | None], shown) or {}
        check_count(shown, by_uid, MAX_NODES)
        return PreemptionArgs(
            pod=pod,
            nodes={
                node: _victims(node, (each.uid for each in given.pods or ()), given.violations)
                for node, given in by_uid.items()
                if given is not None
            },
        )
    key, shown = "nodenametovictims", "NodeNameToVictims"
    whole = decoded(members.get(key, NULL), dict[str, _Victims | None], shown) or {}
    check_count(shown, whole, MAX_NODES)
    return PreemptionArgs(
        pod=pod,
        nodes={
            node: _victims(
                node, (decode_pod(bytes(raw)).uid for raw in given.pods or ()), given.violations
            )
            for node, given in whole.items()
            if given is not None
        },
    )


def encode_preemption_result(nodes: Mapping[str, Victims]) -> bytes:
    """Write the answer: always victims by UID, whatever was asked."""
    return _ENCODER.encode(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in victims.uids],
                    "NumPDBViolations": victims.violations,
                }
                for node, victims in nodes.items()
            }
        }
    )


def _victims(node: str, uids: Iterable[str], violations: int) -> Victims:
    known = tuple(dict.fromkeys(uids))
    check_count(f"victims of {node}", known, MAX_VICTIMS)
    if not all(known):
        raise WireError("victims", node, "a victim has no UID")
    return Victims(uids=known, violations=violations)
