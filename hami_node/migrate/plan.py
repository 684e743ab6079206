"""The plan: what runs, what is wrong, and what to do in which order. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.migrate.found.cluster import findings
from hami_node.migrate.found.findings import Finding, Level
from hami_node.migrate.found.overview import Row, overview
from hami_node.migrate.seen.picture import picture_of
from hami_node.migrate.seen.reading import Listed, Unread
from hami_node.migrate.steps import Step, steps_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that the command shows."""

    runs: tuple[Row, ...]
    findings: tuple[Finding, ...]
    gaps: tuple[Unread, ...]
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
        steps=steps_of(picture),
    )
