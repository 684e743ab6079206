"""The plan: what runs, what is wrong, and what to do in which order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.migrate.found.cluster import findings
from hami_node.migrate.found.findings import Finding, Level
from hami_node.migrate.found.overview import Row, overview
from hami_node.migrate.seen.parts import OWN_LABEL, Maker
from hami_node.migrate.seen.picture import Picture, picture_of
from hami_node.migrate.seen.reading import Gap, Listed
from hami_node.migrate.steps.from_hami import hami_steps
from hami_node.migrate.steps.from_nvidia import nvidia_steps
from hami_node.migrate.steps.steps import (
    CHART,
    Step,
    count_pods,
    kubectl,
    ordered,
    own_namespace,
    own_release,
    sh,
    verify,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the command shows."""

    runs: tuple[Row, ...]
    findings: tuple[Finding, ...]
    gaps: tuple[Gap, ...]
    steps: tuple[Step, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is wrong now."""
        return tuple(one for one in self.findings if one.level is Level.PROBLEM)


def plan_of(listed: Listed) -> Plan:
    """Make it from what was listed."""
    picture = picture_of(listed)
    return Plan(
        runs=overview(picture),
        findings=findings(picture),
        gaps=listed.gaps,
        steps=ordered(_steps(picture)),
    )


def _steps(picture: Picture) -> tuple[Step, ...]:
    if picture.hami is not None:
        return tuple(hami_steps(picture, picture.hami))
    plugins = picture.nvidia_plugins
    if plugins:
        return tuple(nvidia_steps(picture, max(plugins, key=lambda part: part.workload.wanted)))
    return (_fresh(picture),)


def _fresh(picture: Picture) -> Step:
    """Nothing to move: an installation as on a new cluster."""
    space, release = own_namespace(picture), own_release(picture)
    is_served = any(Maker.OURS in one.served_by for one in picture.nodes)
    return Step(
        name="Install",
        what="No other plugin gives out cards here: nothing has to be moved. REGISTRY is "
        "the one that has your image; a checkout's chart names none.",
        commands=(
            sh("kubectl", "create", "namespace", space),
            sh("kubectl", "label", "namespace", space)
            + " pod-security.kubernetes.io/enforce=privileged hami.io/webhook=ignore",
            sh("helm", "upgrade", "--install", release, CHART, "-n", space)
            + " --set image.registry=REGISTRY",
        ),
        see=(
            count_pods(picture),
            verify(picture),
            f"a node without the usual labels: kubectl label node NODE {OWN_LABEL}=true",
        ),
        undo=(sh("helm", "uninstall", release, "-n", space), kubectl(space, "get", "all")),
        is_done=is_served,
    )
