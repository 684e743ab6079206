"""Environment variables that belong to the node: who may set them, and what the webhook sets.

kubelet lets a pod's own variables win over those of a device plugin, so a limit that stands in the
pod would replace the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.extender.container_asks import Reading
from hami_node.extender.pod_form import EnvVar, shown
from hami_node.extender.webhook_rules import WebhookRules
from hami_node.settings import CorePolicy
from hami_node.wire import names

HIDDEN: Final = frozenset({"", "none", "void"})
"""Values of the visible devices that show no card. Source: NVIDIA container toolkit."""

_RESERVED: Final = (
    (names.ENV_MEMORY_LIMIT, "is the container's memory limit, which the node writes"),
    (names.ENV_CORE_LIMIT, "is the container's core limit, which the node writes"),
    (names.ENV_CACHE, "is where the limiter keeps its books, which the node decides"),
    (names.ENV_OVERSUBSCRIBE, "says whether memory is over-booked, which the node decides"),
    (names.ENV_PRELOAD, "would load other libraries before the limiter"),
    (names.ENV_VISIBLE_DEVICES, "says which cards the container sees, which the node decides"),
)
"""What begins with one of these is refused in a container with cards, and why."""


def env_problems(reading: Reading, rules: WebhookRules) -> Iterator[str]:
    """Sentences on variables that a container of a pod with cards must not set."""
    if reading.problem:
        return  # what it asks for is not known
    title = reading.form.title
    for var in reading.form.env or ():
        why = _objection(var, reading, rules)
        if why:
            yield f"{title}: environment variable {shown(var.name)} {why}: remove it from env"


def _objection(var: EnvVar, reading: Reading, rules: WebhookRules) -> str:
    if reading.gpu is None:
        is_shown = var.name == names.ENV_VISIBLE_DEVICES and var.value not in HIDDEN
        if is_shown and not rules.hides_cards:
            return "would show it cards that other containers asked for, and it asks for none"
        return ""
    if var.name == names.ENV_TASK_PRIORITY and reading.priority not in ("", var.value):
        return f"contradicts {rules.resources.gpu_priority} {reading.priority}"
    return next((why for prefix, why in _RESERVED if var.name.startswith(prefix)), "")


def env_wanted(reading: Reading, rules: WebhookRules) -> dict[str, str]:
    """The variables that the container has to get, by name."""
    if reading.gpu is None:
        return {names.ENV_VISIBLE_DEVICES: "none"} if _needs_hiding(reading, rules) else {}
    wanted = {}
    if reading.priority:
        wanted[names.ENV_TASK_PRIORITY] = reading.priority
    if rules.core_policy is not CorePolicy.DEFAULT:
        wanted[names.ENV_CORE_POLICY] = rules.core_policy.value
    return wanted


def _needs_hiding(reading: Reading, rules: WebhookRules) -> bool:
    """True unless the container hides the cards itself; the last entry of a name counts."""
    if not rules.hides_cards:
        return False
    own = [var.value for var in reading.form.env or () if var.name == names.ENV_VISIBLE_DEVICES]
    return not own or any(value not in HIDDEN for value in own)


def overwritten(reading: Reading, wanted: dict[str, str]) -> Iterator[str]:
    """Warnings on a user's variables that get another value."""
    for var in reading.form.env or ():
        if var.name in wanted and var.value != wanted[var.name]:
            title, value = reading.form.title, wanted[var.name]
            yield f"{title}: environment variable {var.name} is set to {value}, as configured here"
