"""Whether a new pod may come in, and what is written into it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.engine import ranking
from hami_node.extender.container_asks import Reading, read_container
from hami_node.extender.pod_form import (
    Operation,
    PodForm,
    env_operations,
    quantity_operations,
    shown,
    spec_operation,
)
from hami_node.extender.reserved_env import env_problems, env_wanted, overwritten
from hami_node.extender.webhook_rules import WebhookRules
from hami_node.model import ContainerKind, Mode, Pod
from hami_node.settings import NodePolicy
from hami_node.wire import names
from hami_node.wire.reservation import RESERVATION_KEYS

DEFAULT_SCHEDULER: Final = "default-scheduler"
OPT_OUT: Final = "ignore"

_WORDS: Final = (
    (names.POD_NODE_POLICY, frozenset(NodePolicy)),
    (
        names.POD_GPU_POLICY,
        frozenset({ranking.BINPACK, ranking.SPREAD, ranking.TOPOLOGY, ranking.MUTEX, ranking.NUMA}),
    ),
    (names.VGPU_MODE, frozenset(Mode)),
)
"""The words that a wish may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a pod can't come in; forbidden things and wrong values have different HTTP codes."""

    text: str
    is_forbidden: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A pod with problems is refused; else it gets the patch. Warnings go to its author."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()


def judge_pod(form: PodForm, rules: WebhookRules) -> Verdict:
    """Decide on one pod.

    Source: HAMi scheduler/webhook.go:52-143 (2.10), with the differences of docs/webhook.md.
    """
    pod = form.pod
    if pod.labels.get(names.WEBHOOK_OPT_OUT) == OPT_OUT:
        return Verdict()
    if forged := _forged(pod):
        return Verdict(problems=(Problem(text=forged),))
    if not any(one.kind is ContainerKind.APP for one in pod.containers):
        text = "pod has no containers: add at least one to spec.containers"
        return Verdict(problems=(Problem(text=text, is_forbidden=False),))
    readings = tuple(read_container(one, rules) for one in form.containers)
    if _is_foreign(pod, rules):
        return Verdict(warnings=_foreign_warnings(pod, readings, rules))
    is_asking = any(one.is_asking for one in readings)
    problems = tuple(_problems(pod, readings, rules)) if is_asking else ()
    if problems:
        return Verdict(problems=problems)
    return _admitted(form, readings, rules, is_asking=is_asking)


def _admitted(
    form: PodForm, readings: Sequence[Reading], rules: WebhookRules, *, is_asking: bool
) -> Verdict:
    warnings = [text for one in readings for text in one.warnings]
    patch: list[Operation] = []
    for one in readings:
        wanted = env_wanted(one, rules)
        warnings += overwritten(one, wanted)
        patch += quantity_operations(one.form, one.added)
        patch += env_operations(one.form, wanted)
    if is_asking:
        warnings += _unknown_words(form.pod)
        patch += _spec_operations(form, readings, rules)
    return Verdict(warnings=tuple(warnings), patch=tuple(patch))


def _spec_operations(
    form: PodForm, readings: Sequence[Reading], rules: WebhookRules
) -> Iterator[Operation]:
    if form.pod.scheduler_name != rules.scheduler_name:
        yield spec_operation("schedulerName", rules.scheduler_name)
    has_cards = any(one.gpu for one in readings)
    if has_cards and rules.runtime_class_name and not form.runtime_class_name:
        yield spec_operation("runtimeClassName", rules.runtime_class_name)


def _forged(pod: Pod) -> str:
    """A sentence on annotations that only a scheduler may write; "" when there are none."""
    found = [one for one in RESERVATION_KEYS if one in pod.annotations]
    if not found:
        return ""
    is_one = len(found) == 1
    what = f"annotation {found[0]} is" if is_one else f"annotations {', '.join(found)} are"
    return (
        f"{what} written by the scheduler when it reserves devices, never by a user: remove "
        f"{'it' if is_one else 'them'} from metadata.annotations (a template copied out of a live "
        "pod carries such annotations along)"
    )


def _is_foreign(pod: Pod, rules: WebhookRules) -> bool:
    """True when another scheduler was chosen; the API server has turned "" into the default."""
    if pod.scheduler_name in ("", rules.scheduler_name):
        return False
    return not (pod.scheduler_name == DEFAULT_SCHEDULER and rules.takes_default_scheduler)


def _foreign_warnings(
    pod: Pod, readings: Sequence[Reading], rules: WebhookRules
) -> tuple[str, ...]:
    named = next((one.named[0] for one in readings if one.named), "")
    if not named:
        return ()
    return (
        f"the pod names {named} and the scheduler {shown(pod.scheduler_name)}: devices are given "
        f"out by {rules.scheduler_name} alone, so nodes will refuse it; remove spec.schedulerName",
    )


def _problems(pod: Pod, readings: Sequence[Reading], rules: WebhookRules) -> Iterator[Problem]:
    """Everything wrong with a pod that asks for devices."""
    if pod.node_name:
        yield Problem(
            text=f"pod has node assigned: spec.nodeName is {shown(pod.node_name)}, so no scheduler "
            "can reserve its devices (remove it, and select the node by a nodeSelector on "
            "kubernetes.io/hostname)"
        )
    has_cards = any(one.gpu for one in readings)
    for one in readings:
        if one.problem:
            yield Problem(text=one.problem, is_forbidden=False)
        if one.form.container.is_privileged:
            yield Problem(
                text=f"{one.form.title} is privileged and would see every card of the node: remove "
                "securityContext.privileged, or ask for devices in another pod"
            )
        if has_cards:
            yield from (Problem(text=text) for text in env_problems(one, rules))
    weights = pod.annotations.get(names.POD_SCORING_WEIGHTS)
    if weights is not None and ranking.parse_weights(weights) is None:
        yield Problem(
            text=f"annotation {names.POD_SCORING_WEIGHTS} is {shown(weights)}: write "
            "slot=1,core=1,memory=1 with whole numbers from 0, not all of them 0",
            is_forbidden=False,
        )


def _unknown_words(pod: Pod) -> Iterator[str]:
    for key, known in _WORDS:
        words = ranking.words(pod.annotations.get(key, ""))
        unknown = [word for word in words if word and word not in known]
        if unknown:
            allowed = ", ".join(sorted(known))
            yield f"annotation {key}: {shown(unknown[0])} is not one of {allowed}"
