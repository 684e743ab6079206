"""Whether the pods of each part are there and Ready, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hami_node.cluster.objects import Condition, Object, Pod, PodSpec, statuses_of
from hami_node.cluster.paths import segment
from hami_node.cluster.reading import Gap
from hami_node.config.settings import plain
from hami_node.text import count
from hami_node.verify.checks.subject import Subject, gap_of, gaps_in
from hami_node.verify.findings import Finding, ok, several, unknown, warning, words, wrong
from hami_node.verify.installation import NodeSeen, Part, Runs, warnings_about

_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
_OF_DAEMON_SETS: Final = frozenset(
    f"node.kubernetes.io/{name}"
    for name in (
        "not-ready",
        "unreachable",
        "disk-pressure",
        "memory-pressure",
        "pid-pressure",
        "unschedulable",
    )
)
"""Taints that pods of DaemonSets tolerate by themselves."""
_GENTLE: Final = "PreferNoSchedule"
_REASONS: Final = frozenset(("ContainerCreating", "PodInitializing"))
"""What kubelet says while it does not say why."""


def check_parts(subject: Subject) -> Iterator[Finding]:
    """Every workload of ours."""
    yield from gaps_in(subject, "parts", "daemonsets", "deployments", "pods", "nodes")
    installed = subject.installed
    if not installed.parts and not {"daemonsets", "deployments"} & set(installed.gaps):
        yield wrong(
            "parts",
            f"nothing of hami-node is in namespace {subject.namespace}",
            "name the namespace with --namespace, or install it: docs/install.md",
        )
        return
    yield from _runtime_classes(subject)
    for part in installed.parts:
        if "pods" in installed.gaps:
            continue
        if part.kind != "DaemonSet":
            yield from _deployment(subject, part)
        elif "nodes" in installed.gaps:
            yield from _readiness(subject, part, part.pods, "an unknown number of nodes")
        else:
            yield from _daemon_set(subject, part)
    if not installed.running(Runs.DAEMON) and "daemonsets" not in installed.gaps:
        yield wrong("daemon", "there is no DaemonSet", "install it: docs/install.md")
    if "deployments" in installed.gaps:
        return
    for runs in (Runs.EXTENDER, Runs.SCHEDULER):
        if not installed.running(runs):
            yield warning(
                str(runs),
                f"none is in namespace {subject.namespace}: another scheduler has to give out "
                "the cards, unless nodes serve fixed shares",
            )


def _runtime_classes(subject: Subject) -> Iterator[Finding]:
    """Those that pods of ours and of users get, without which they are not created."""
    installed = subject.installed
    wanted: dict[str, str] = {}
    for part in installed.parts:
        wanted.setdefault(part.workload.pod.runtime_class_name, f"{part.kind} {part.name}")
    settings = installed.settings_of(Runs.EXTENDER)
    given = str(plain(settings).get("runtime-class-name", "")) if settings is not None else ""
    wanted.setdefault(given, "the webhook, for pods with cards,")
    for name, whose in wanted.items():
        if name:
            yield _runtime_class(subject, name, whose)


def _runtime_class(subject: Subject, name: str, whose: str) -> Finding:
    check = "runtime class"
    found = subject.reader.one(f"{_CLASSES}/{segment(name)}", Object)
    if not isinstance(found, Gap):
        return ok(check, f"{name} of {whose.removesuffix(',')} exists")
    if not found.is_absent:
        return gap_of(check, found)
    return wrong(
        check,
        f"{whose} names the runtime class {name}, which does not exist",
        "install the container toolkit that makes it, or choose another way to the driver: "
        "docs/driver.md",
    )


def _daemon_set(subject: Subject, part: Part) -> Iterator[Finding]:
    """A pod on every node that it wants."""
    check, nodes = str(part.runs), subject.installed.nodes
    wanted = [seen for seen in nodes if part.workload.pod.wants(seen.node.name, seen.node.labels)]
    if not wanted:
        yield _matches_none(subject, part)
        return
    kept_off = [seen.node.name for seen in wanted if _is_kept_off(part.workload.pod, seen)]
    if kept_off:
        yield warning(
            check,
            f"taints keep DaemonSet {part.name} off {count(len(kept_off), 'node')}: "
            f"{several(kept_off)}",
            "add tolerations to the DaemonSet if it is to serve them",
        )
    due = {seen.node.name for seen in wanted} - set(kept_off)
    placed = {
        pod.spec.node_name: pod for pod in part.pods if pod.metadata.deletion_timestamp is None
    }
    missing = sorted(due - set(placed))
    if missing:
        yield wrong(
            check,
            f"DaemonSet {part.name} has no pod on {count(len(missing), 'node')}: "
            f"{several(missing)}{_reported(subject, part.name)}",
            f"kubectl -n {subject.namespace} describe daemonset {part.name}",
        )
    pods = [placed[name] for name in sorted(due & set(placed))]
    yield from _readiness(subject, part, pods, f"{count(len(due), 'node')}")


def _matches_none(subject: Subject, part: Part) -> Finding:
    """A second DaemonSet without nodes may be there for those to come; the only one is not."""
    check, nodes = str(part.runs), subject.installed.nodes
    what = f"DaemonSet {part.name} matches none of {count(len(nodes), 'node')}"
    daemons = subject.installed.running(Runs.DAEMON)
    is_second = any(other.pods for other in daemons if other is not part)
    if is_second:
        return warning(check, what, "fine while there are no nodes for it")
    return wrong(
        check,
        what,
        "label the nodes that it is to serve: kubectl label node NAME hami-node.io/serve=true",
    )


def _is_kept_off(pod: PodSpec, seen: NodeSeen) -> bool:
    tolerations = pod.tolerations or ()
    return any(
        taint.effect != _GENTLE
        and taint.key not in _OF_DAEMON_SETS
        and not any(one.tolerates(taint) for one in tolerations)
        for taint in seen.taints
    )


def _reported(subject: Subject, name: str) -> str:
    """What the controller that makes the pods has said last."""
    told = warnings_about(subject.reader, subject.namespace, name)
    return f" ({told[-1]})" if told else ""


def _deployment(subject: Subject, part: Part) -> Iterator[Finding]:
    wanted = part.workload.spec.replicas
    pods = [pod for pod in part.pods if pod.metadata.deletion_timestamp is None]
    check = _check_of(part)
    if not pods:
        failing = [c for c in part.workload.status.conditions or () if c.type == "ReplicaFailure"]
        why = words(failing[0].message) if failing else f"{count(wanted, 'pod')} wanted"
        yield wrong(
            check,
            f"Deployment {part.name} has no pod: {why}",
            f"kubectl -n {subject.namespace} describe deployment {part.name}",
        )
        return
    yield from _readiness(subject, part, pods, count(wanted, "replica"))
    ready = sum(pod.is_ready for pod in pods)
    if part.runs in (Runs.EXTENDER, Runs.SCHEDULER) and wanted == 1 and ready:
        yield warning(
            check,
            f"Deployment {part.name} has one replica: while it moves, no pod gets a card",
            "run two replicas",
        )


def _check_of(part: Part) -> str:
    return part.name if part.runs is Runs.OTHER else str(part.runs)


def _readiness(subject: Subject, part: Part, pods: Sequence[Pod], wanted: str) -> Iterator[Finding]:
    """Which pods are not Ready, and why; those of one reason together."""
    check = _check_of(part)
    sick = [pod for pod in pods if not pod.is_ready]
    by_reason: dict[str, list[Pod]] = {}
    for pod in sick:
        by_reason.setdefault(why_not_ready(pod), []).append(pod)
    for why, alike in by_reason.items():
        first = min(pod.metadata.name for pod in alike)
        yield wrong(
            check,
            f"{count(len(alike), 'pod')} not Ready "
            f"({several(pod.metadata.name for pod in alike)}): {why}",
            f"kubectl -n {subject.namespace} describe pod {first}; "
            f"kubectl -n {subject.namespace} logs {first} --all-containers",
        )
    if pods and not sick:
        yield ok(check, f"{part.kind} {part.name}: {count(len(pods), 'pod')} Ready of {wanted}")
    if not pods and not sick and part.kind == "DaemonSet":
        yield unknown(check, f"DaemonSet {part.name} has no pod yet")


def why_not_ready(pod: Pod) -> str:
    """The reason in kubelet's words, as far as the pod's status has one."""
    status = pod.status
    for container in statuses_of(pod):
        state = container.state
        if state is None or container.ready:
            continue
        last = container.last_state.terminated if container.last_state else None
        if state.waiting is not None and state.waiting.reason not in _REASONS:
            ended = f", ended with {last.exit_code}: {last.message or last.reason}" if last else ""
            return words(
                f"{container.name}: {state.waiting.reason}: {state.waiting.message}{ended}"
            )
        if state.terminated is not None and state.terminated.exit_code:
            ended = f"{state.terminated.exit_code}: {state.terminated.message}"
            return words(f"{container.name} ended with {ended}")
    if status.message or status.reason:
        return words(f"{status.reason} {status.message}")
    return _by_conditions(status.conditions or ()) or f"it is {status.phase or 'new'}"


def _by_conditions(conditions: Iterable[Condition]) -> str:
    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready"):
        for one in conditions:
            if one.type == kind and one.status == "False":
                return words(f"{one.reason}: {one.message}")
    return ""
