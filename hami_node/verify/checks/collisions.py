"""Whether somebody else serves the same cards. What belongs to whom is a matter of `migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.verify.checks.subject import Subject, gaps_in
from hami_node.verify.findings import Finding, count, ok, several, wrong
from hami_node.verify.read.installation import Runs
from hami_node.verify.read.pod_objects import Workload

_CHECK: Final = "collision"
_PLUGIN_FOLDER: Final = "/device-plugins"
_HAMI: Final = "hami"
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
        if not _serves_cards(other, subject):
            continue
        shared = [node.name for node in nodes if other.pod.wants(node.name, node.labels)]
        if shared:
            found = True
            yield wrong(
                _CHECK,
                f"DaemonSet {other.metadata.namespace}/{other.metadata.name} is a device plugin "
                f"for the same cards, on {count(len(shared), 'node')} of ours: {several(shared)}",
                _REMEDY,
            )
    if nodes and not found:
        yield ok(_CHECK, "no other device plugin for these cards is on our nodes")


def _serves_cards(other: Workload, subject: Subject) -> bool:
    """Whether it has kubelet's folder of plugins, and names the vendor of cards that we serve."""
    folders = [volume.host_path.path for volume in other.pod.volumes or () if volume.host_path]
    if not any(folder.rstrip("/").endswith(_PLUGIN_FOLDER) for folder in folders):
        return False
    words = [other.metadata.name, *(one.image for one in other.pod.containers or ())]
    makers = {
        vendor.cards.word.lower() for vendor in subject.vendors if not vendor.cards.cores_are_mask
    }
    return any(maker in word.lower() for word in words for maker in (*makers, _HAMI))
