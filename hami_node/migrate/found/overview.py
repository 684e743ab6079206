"""What runs, in rows for a table. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami_node.cluster.objects import Workload
from hami_node.migrate.seen.parts import OWN_LABEL, Maker, Part
from hami_node.migrate.seen.picture import NodeState, Picture, Scheduler
from hami_node.migrate.seen.reading import policy_text, switch
from hami_node.text import some
from hami_node.vendors.nvidia import names as nvidia_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A thing that runs: what, where, and how it is."""

    what: str
    where: str
    state: str


def overview(picture: Picture) -> tuple[Row, ...]:
    """Everything that plays a part."""
    return tuple(_rows(picture))


def _rows(picture: Picture) -> Iterator[Row]:
    for part in picture.listed.plugins:
        yield Row(what=_title(part), where=_where(part.workload), state=_plugin(picture, part))
    for one in (picture.hami_scheduler, picture.scheduler):
        if one is not None:
            yield Row(
                what=f"{one.part.maker} scheduler",
                where=_where(one.part.workload),
                state=_scheduler(picture, one),
            )
    if picture.extender is not None:
        work = picture.extender.workload
        yield Row(what="hami-node extender", where=_where(work), state=_replicas(work))
    yield from _hooks(picture)
    yield from _operator(picture)
    for name, states in _groups(picture).items():
        yield Row(
            what=f"nodes: {name}", where=some([one.name for one in states]), state=_nodes(states)
        )


def _title(part: Part) -> str:
    version = f" {part.running or part.version}" if part.running or part.version else ""
    names = {Maker.OPERATOR: "GPU Operator's plugin"}
    return f"{names.get(part.maker, part.maker)}{version}"


def _where(work: Workload) -> str:
    return f"{work.shown} in {work.namespace}"


def _plugin(picture: Picture, part: Part) -> str:
    work = part.workload
    said = [f"{work.ready} of {work.wanted} ready"]
    if part.release:
        said.append(f"release {part.release.rpartition('/')[2]}{_revision(picture, part.release)}")
    if work.update:
        said.append(work.update)
    if chosen := work.pod.node_selector:
        said.append("on " + ",".join(f"{k}={v}" for k, v in sorted(chosen.items())))
    if part.maker is Maker.OTHER:
        said.append("not about these cards, as far as we know")
    return ", ".join(said)


def _revision(picture: Picture, release: str) -> str:
    found = [
        one
        for one in picture.listed.revisions
        if f"{one.namespace}/{one.name}" == release and one.status != "superseded"
    ]
    return f" revision {found[-1].revision} {found[-1].status}" if found else ""


def _replicas(work: Workload) -> str:
    return f"{work.ready} of {work.wanted} ready"


def _scheduler(picture: Picture, one: Scheduler) -> str:
    held = next(
        (
            lease.holder
            for lease in picture.listed.leases
            if lease.key == one.lease and lease.holder
        ),
        "nobody",
    )
    said = (
        _replicas(one.part.workload),
        f"schedulerName {one.name}",
        f"lease {one.lease} of {held}",
    )
    return ", ".join(said)


def _hooks(picture: Picture) -> Iterator[Row]:
    for title, hook in (("HAMi", picture.hami_webhook), ("hami-node", picture.webhook)):
        if hook is None:
            continue
        ready = picture.listed.backends.get(hook.webhook.service)
        said = ["paused"] if hook.webhook.is_paused else []
        said += [
            "backend not known" if ready is None else f"{ready} ready behind {hook.webhook.service}"
        ]
        said += [f"failurePolicy {hook.webhook.failure_policy}"]
        yield Row(what=f"{title} webhook", where=hook.configuration.name, state=", ".join(said))


def _operator(picture: Picture) -> Iterator[Row]:
    policy = picture.listed.policy
    if policy is not None:
        switches = {
            "devicePlugin": switch(policy, "devicePlugin", "enabled"),
            "migManager": switch(policy, "migManager", "enabled"),
            "toolkit": switch(policy, "toolkit", "enabled"),
            "driver": switch(policy, "driver", "enabled"),
            "cdi": switch(policy, "cdi", "enabled"),
            "nri": switch(policy, "cdi", "nriPluginEnabled"),
        }
        said = [
            f"{name} {'on' if is_on else 'off'}"
            for name, is_on in switches.items()
            if is_on is not None
        ]
        if strategy := policy_text(policy, "mig", "strategy"):
            said.append(f"mig.strategy {strategy}")
        yield Row(what="GPU Operator", where="clusterpolicy", state=", ".join(said) or "-")
    for work in picture.listed.mig_managers:
        yield Row(what="MIG manager", where=_where(work), state=_replicas(work))
    if picture.listed.classes:
        names = [one.name for one in picture.listed.classes]
        yield Row(what="RuntimeClasses", where=", ".join(names[:8]), state=str(len(names)))


def _groups(picture: Picture) -> dict[str, list[NodeState]]:
    """Nodes by who serves them."""
    found: dict[str, list[NodeState]] = {}
    for one in picture.nodes:
        name = " and ".join(sorted(one.served_by)) or "nobody"
        found.setdefault(name, []).append(one)
    return dict(sorted(found.items()))


def _nodes(states: list[NodeState]) -> str:
    counts = {
        "with our label": sum(one.is_ours for one in states),
        f"{OWN_LABEL}=false": sum(one.node.labels.get(OWN_LABEL) == "false" for one in states),
        "mig": sum(one.mode == "mig" for one in states),
        "mps": sum(one.mode == "mps" for one in states),
        "DRA driver": sum(
            one.node.labels.get(nvidia_names.LABEL_DRA_DRIVER) == "true" for one in states
        ),
        "locked": sum(bool(one.lock) for one in states),
        "cordoned": sum(one.node.is_unschedulable for one in states),
    }
    pods = sum(one.holders for one in states)
    allocating = sum(len(one.allocating) for one in states)
    said = [f"nodes: {len(states)}", f"pods with cards: {pods}"]
    said += [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join(said + ([f"{allocating} allocating"] if allocating else []))
