"""Whether daemon, extender and kube-scheduler are configured alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.cluster.reading import Gap
from hami_node.config.settings import Settings, declarations, plain_value
from hami_node.setting_types import Group
from hami_node.verify.checks.leading import SchedulerConfig, scheduler_config
from hami_node.verify.checks.subject import Subject, gap_of
from hami_node.verify.findings import Finding, ok, several, warning, words, wrong
from hami_node.verify.installation import Part, Runs

_CHECK: Final = "settings"
_SHARED: Final = (Group.REQUESTS, Group.RULES)
"""What daemon and extender have to see alike: else one refuses what the other has decided."""
_MOST: Final = 5


def check_settings(subject: Subject) -> Iterator[Finding]:
    """The settings of every part, alone and compared."""
    installed = subject.installed
    for name, gap in installed.gaps.items():
        if not name.startswith("configmap "):
            continue
        if gap.is_absent:
            yield wrong(_CHECK, f"{name} does not exist", "apply the manifests again")
        else:
            yield gap_of(_CHECK, gap)
    problems = [*_errors(subject), *_differences(subject), *_schedulers(subject)]
    yield from problems
    if not problems and installed.settings:
        schedulers = (part.name for part in installed.running(Runs.SCHEDULER))
        parts = (*installed.settings, *schedulers)
        yield ok(_CHECK, f"{several(parts)} " + ("agree" if len(parts) > 1 else "is in order"))


def _errors(subject: Subject) -> Iterator[Finding]:
    for name, found in subject.installed.settings.items():
        for error in found.errors[:_MOST]:
            yield wrong(
                _CHECK,
                f"{name} refuses its settings: {words(str(error))}",
                "correct it; hami-node check-config checks a file before it is applied",
            )


def _differences(subject: Subject) -> Iterator[Finding]:
    """Shared settings that differ between a daemon and the extender."""
    installed = subject.installed
    extender = installed.settings_of(Runs.EXTENDER)
    if extender is None:
        return
    for part in installed.running(Runs.DAEMON):
        found = installed.settings.get(part.name)
        if found is None:
            continue
        for flag, ours, theirs in _differing(found.settings, extender):
            yield wrong(
                _CHECK,
                words(f"{flag} is {ours!r} in {part.name} and {theirs!r} in the extender"),
                "give both the same ConfigMap, and no flag that differs from it",
            )


def _differing(one: Settings, other: Settings) -> Iterator[tuple[str, object, object]]:
    for setting in declarations(one.declared).values():
        if setting.group in _SHARED:
            ours, theirs = setting.value_in(one), setting.value_in(other)
            if ours != theirs:
                yield setting.flag, plain_value(ours), plain_value(theirs)


def _schedulers(subject: Subject) -> Iterator[Finding]:
    """What kube-scheduler is told about the extender."""
    extender = subject.installed.settings_of(Runs.EXTENDER)
    for part in subject.installed.running(Runs.SCHEDULER):
        config = scheduler_config(subject, part)
        if isinstance(config, Gap):
            yield gap_of(_CHECK, config)
        elif config is not None:
            yield from _scheduler(subject, part, config, extender)


def _scheduler(
    subject: Subject, part: Part, config: SchedulerConfig, extender: Settings | None
) -> Iterator[Finding]:
    restart = f"kubectl -n {subject.namespace} rollout restart deployment/{part.name}"
    again = f"correct it, then {restart}"
    profiles = {profile.scheduler_name for profile in config.profiles or ()}
    if extender is not None and extender.scheduler_name not in profiles:
        yield wrong(
            _CHECK,
            f"{part.name} serves {several(profiles) or 'no profile'}, and the webhook gives pods "
            f"the scheduler {extender.scheduler_name}: they would wait for ever",
            again,
        )
    managed = {each.name for one in config.extenders or () for each in one.managed_resources or ()}
    resources = {each for vendor in subject.vendors for each in vendor.resources}
    if managed and (unnamed := resources - managed):
        yield wrong(
            _CHECK,
            f"{part.name} does not name {several(unnamed)} in managedResources: the extender is "
            "not asked about pods that request it",
            again,
        )
    if not config.extenders:
        yield wrong(_CHECK, f"{part.name} calls no extender", again)
    elif not any(one.preempt_verb for one in config.extenders):
        yield warning(
            _CHECK,
            f"{part.name} does not ask the extender whom to evict (preemptVerb): pods may be "
            "evicted for one with a higher priority that their cards have no room for",
            f"add preemptVerb: preempt to its extender, then {restart}",
        )
