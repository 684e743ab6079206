"""Whether somebody else serves the same cards; `migrate` says what belongs to whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.migrate.seen.parts import Maker, is_plugin, maker_of
from hami_node.text import count
from hami_node.verify.checks.subject import Subject, gaps_in
from hami_node.verify.findings import Finding, ok, several, wrong
from hami_node.verify.installation import Runs

_CHECK: Final = "collision"
_REMEDY: Final = "hami-node migrate check says what belongs to whom, and what to do first"


def check_collisions(subject: Subject) -> Iterator[Finding]:
    """DaemonSets of others that want our nodes, and serve cards of a vendor of ours."""
    yield from gaps_in(subject, _CHECK, "daemonsets of others")
    if set(subject.installed.gaps) & {"daemonsets of others", "daemonsets", "nodes"}:
        return
    served = {
        pod.spec.node_name for part in subject.installed.running(Runs.DAEMON) for pod in part.pods
    }
    nodes = [seen.node for seen in subject.installed.nodes if seen.node.name in served]
    found = False
    for other in subject.installed.others:
        if not is_plugin(other) or maker_of(other) is Maker.OTHER:
            continue
        shared = [node.name for node in nodes if other.pod.wants(node.name, node.labels)]
        if shared:
            found = True
            yield wrong(
                _CHECK,
                f"DaemonSet {other.key} is a device plugin "
                f"for the same cards, on {count(len(shared), 'node')} of ours: {several(shared)}",
                _REMEDY,
            )
    if nodes and not found:
        yield ok(_CHECK, "no other device plugin for these cards is on our nodes")
