"""Whether the admission policies are there, in force, and about our accounts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hami_node.cluster.objects import Policy, PolicyBinding
from hami_node.verify.checks.subject import Subject, gap_of
from hami_node.verify.checks.webhook import ADMISSION, is_ours
from hami_node.verify.findings import Finding, ok, several, warning, wrong
from hami_node.verify.installation import Installation, Runs

_CHECK: Final = "policies"
_OF_DAEMON: Final = ("own-node", "own-pods")
_OF_EXTENDER: Final = (
    "extender-nodes",
    "extender-pods",
    "extender-bindings",
    "reservations",
    "reservations-by-binding",
)
_ABOUT_ACCOUNTS: Final = frozenset((*_OF_DAEMON, *_OF_EXTENDER))
_DOCS: Final = "docs/security.md says what each is for"


def check_policies(subject: Subject) -> Iterator[Finding]:
    """All policies of the parts that are installed."""
    policies = subject.reader.every(f"{ADMISSION}/validatingadmissionpolicies", Policy)
    bindings = subject.reader.every(f"{ADMISSION}/validatingadmissionpolicybindings", PolicyBinding)
    for seen in (policies, bindings):
        if seen.gap is not None:
            yield gap_of(_CHECK, seen.gap)
            return
    ours = {one.metadata.name: one for one in policies.items if is_ours(one)}
    wanted = [*_OF_DAEMON] if subject.installed.running(Runs.DAEMON) else []
    wanted += _OF_EXTENDER if subject.installed.running(Runs.EXTENDER) else ()
    missing = [each for each in wanted if not _named(ours, each)]
    if missing:
        yield warning(
            _CHECK,
            "no admission policy " + several(f"...-{name}" for name in missing),
            f"a stolen token can do more without them; they need Kubernetes 1.30; {_DOCS}",
        )
    idle = list(_idle(ours, bindings.items))
    if idle:
        yield wrong(
            _CHECK,
            f"no binding with the action Deny puts {several(idle)} into force",
            "apply the manifests again, or helm upgrade",
        )
    strange = list(_about_others(ours, subject.installed))
    if strange:
        yield wrong(
            _CHECK,
            f"{several(strange)}: no condition names an account of namespace {subject.namespace}",
            "change the user names in their matchConditions",
        )
    if ours and not idle and not strange and not missing:
        yield ok(_CHECK, f"{len(ours)} admission policies are in force")


def _named(ours: Iterable[str], ending: str) -> bool:
    return any(name.endswith(f"-{ending}") for name in ours)


def _idle(ours: Mapping[str, Policy], bindings: Iterable[PolicyBinding]) -> Iterator[str]:
    denied = {
        one.spec.policy_name for one in bindings if "Deny" in (one.spec.validation_actions or ())
    }
    yield from (name for name in ours if name not in denied)


def _about_others(ours: Mapping[str, Policy], installed: Installation) -> Iterator[str]:
    """Policies of each kind, where none of the kind names an account of this installation.

    Another installation, in another namespace, has policies of its own.
    """
    accounts = {
        f"system:serviceaccount:{installed.namespace}:{part.workload.pod.service_account_name}"
        for part in installed.parts
    }
    for ending in _ABOUT_ACCOUNTS:
        texts = {
            name: " ".join(one.expression for one in policy.spec.match_conditions or ())
            for name, policy in ours.items()
            if name.endswith(f"-{ending}")
        }
        named = {name: text for name, text in texts.items() if "system:serviceaccount:" in text}
        if not any(account in text for account in accounts for text in named.values()):
            yield from named
