"""The steps of the way over: what `steps.yaml` says, for this cluster. Pure.

Names come from the cluster: everything in a command is quoted for a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

from hami_node.cluster.objects import REQUIRED, Requirement, SelectorTerm, Workload, plain
from hami_node.config.files import parse_yaml
from hami_node.migrate.seen.parts import OWN_LABEL, Maker, Part
from hami_node.migrate.seen.picture import NodeState, Picture, hami_objects, in_json
from hami_node.migrate.seen.plain import text
from hami_node.migrate.seen.reading import switch
from hami_node.text import some

MAX_IN_LOOP: Final = 20
"""Nodes of a wave: so many commands name; the rest comes with the next run of `plan`."""
DEFAULT_NAMESPACE: Final = "hami-system"
_FILE: Final = Path(__file__).with_name("steps.yaml")
_CANARY: Final = "hami-node.io/canary"
_AFFINITY: Final = ("spec", "template", "spec", "affinity", "nodeAffinity")
_NOWHERE: Final = "hami-node.io/nowhere"
"""A label that no node has."""
_OUR_TERM: Final = Requirement(key=OWN_LABEL, operator="NotIn", values=["true"])
_TAKERS: Final = frozenset({Maker.OPERATOR, Maker.NVIDIA})
_TOLERATIONS: Final = [
    {"key": key, "operator": "Exists"}
    for key in ("nvidia.com/gpu", "aws.amazon.com/neuron", "CriticalAddonsOnly", _CANARY)
]
_PAUSE: Final = [{"name": "replaced-by-hami-node", "expression": "false"}]
_NAME: Final = re.compile(r"%\{(\w+)\}")
_FLAG: Final = re.compile(r"\[(!?)(\w+)\] ")
_LINES: Final = re.compile(r"([^*]*)\*(\w+)")


class State(StrEnum):
    """Where a step stands."""

    DONE = "done"
    NEXT = "next"
    LATER = "later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing to do, which can be taken back alone.

    Attributes:
        gap: what users notice of it; "" for nothing.
        see: how to see that it worked.
        nodes: the nodes that it is about, where it is about some.
    """

    name: str
    what: str
    commands: tuple[str, ...]
    see: tuple[str, ...]
    undo: tuple[str, ...]
    gap: str = ""
    nodes: tuple[str, ...] = ()
    is_done: bool = False
    state: State = State.LATER


def steps_of(picture: Picture) -> tuple[Step, ...]:
    """The way over for this cluster; the first step that is not done is the next."""
    plugins = picture.nvidia_plugins
    if picture.hami is not None:
        steps = _from_hami(picture, picture.hami)
    elif plugins:
        steps = _from_nvidia(picture, max(plugins, key=lambda part: part.workload.wanted))
    else:
        is_served = any(Maker.OURS in one.served_by for one in picture.nodes)
        steps = _written("fresh", _own(picture), {"Install": is_served})
    found: list[Step] = []
    is_next = True
    for step in steps:
        state = State.DONE if step.is_done else State.NEXT if is_next else State.LATER
        is_next = is_next and step.is_done
        found.append(replace(step, state=state))
    return tuple(found)


# -- what is written -------------------------------------------------------------------------------


@cache
def _ways() -> Mapping[str, Any]:
    found: Any = parse_yaml(_FILE.read_bytes(), _FILE.name)
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Filling:
    """What is filled in.

    Attributes:
        words: texts, quoted where they are words of a command.
        lines: several commands.
        flags: those that are set.
        nodes: by the step's name, the nodes that it is about.
    """

    words: Mapping[str, str]
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def at(self, node: str, field_selector: str) -> _Filling:
        """For commands about a node; both are quoted."""
        return replace(self, words={**self.words, "node": node, "at_node": field_selector})

    def text(self, written: str) -> str:
        """A text with its names filled in."""
        return _NAME.sub(lambda found: self._word(found[1]), written)

    def _word(self, name: str) -> str:
        return self.words[name] if name in self.words else self.text(_ways()["parts"][name])

    def every(self, written: Iterable[str]) -> Iterator[str]:
        """Lines that are there, filled in."""
        for line in written:
            flag = _FLAG.match(line)
            if flag is not None and (flag[2] in self.flags) == bool(flag[1]):
                continue
            rest = line[flag.end() :] if flag is not None else line
            several = _LINES.fullmatch(rest)
            if several is None:
                yield self.text(rest)
            elif several[2] in self.lines:
                yield from (several[1] + each for each in self.lines[several[2]])
            else:
                part = self.every(_ways()["parts"][several[2]])
                yield from (several[1] + each for each in part)


def _written(way: str, filling: _Filling, done: Mapping[str, bool]) -> Iterator[Step]:
    """The steps of a way of which is known whether they are done; the others are left out."""
    for one in _ways()[way]:
        name = one["name"]
        if name not in done:
            continue
        nodes = filling.nodes.get(name, ())
        here, commands = filling, tuple(filling.every(one.get("commands", ())))
        if "loop" in one:
            each = filling.at('"$node"', '"spec.nodeName=$node"').every(one["loop"])
            here, commands = _at(filling, "NODE"), _loop(nodes, each)
        yield Step(
            name=name,
            what=filling.text(one["what"]),
            commands=commands,
            see=tuple(here.every(one["see"])),
            undo=tuple(here.every(one["undo"])),
            gap=one.get("gap", ""),
            nodes=tuple(nodes),
            is_done=done[name],
        )


def _at(filling: _Filling, node: str) -> _Filling:
    return filling.at(shlex.quote(node), shlex.quote(f"spec.nodeName={node}"))


def _loop(nodes: Sequence[str], commands: Iterable[str]) -> tuple[str, ...]:
    """The commands for each node, `$node`, until the last of them fails for one."""
    named = " ".join(shlex.quote(name) for name in nodes[:MAX_IN_LOOP])
    body = "; ".join(commands)
    return (f"for node in {named}; do {body} || break; done",) if nodes else ()


# -- what is filled in -----------------------------------------------------------------------------


def _own(picture: Picture) -> _Filling:
    """What every way has: where we are installed, or are to be."""
    daemon, policy = picture.daemon, picture.listed.policy
    space = daemon.workload.namespace if daemon is not None else DEFAULT_NAMESPACE
    release = daemon.release.rpartition("/")[2] if daemon is not None else ""
    beside = ""
    if switch(policy, "cdi", "nriPluginEnabled"):
        beside = " --set devicePlugin.driver=nri"
    elif picture.has_operator and switch(policy, "toolkit", "enabled") is not False:
        beside = " --set devicePlugin.gpuOperatorToolkitReady.enabled=true"
    scheduler = picture.scheduler.part.workload if picture.scheduler else None
    extender = picture.extender.workload if picture.extender else None
    words = {
        "space": space,
        "release": release or "hami-node",
        "daemon": daemon.workload.shown if daemon is not None else "daemonset/hami-node",
        "selector": _labels(daemon.workload if daemon is not None else None) or "app=hami-node",
        "scheduler": scheduler.shown if scheduler else "deployment/hami-node-scheduler",
        "scheduler_labels": _labels(scheduler) or "app=hami-node-scheduler",
        "extender": extender.shown if extender else "deployment/hami-node-extender",
    }
    where = "" if space == DEFAULT_NAMESPACE else f" --namespace {shlex.quote(space)}"
    plain_words = {"beside_operator": beside, "verify_where": where}
    return _Filling(words=_quoted(words) | plain_words)


def _quoted(words: Mapping[str, str]) -> dict[str, str]:
    return {name: shlex.quote(word) for name, word in words.items()}


def _labels(work: Workload | None) -> str:
    return ",".join(f"{key}={value}" for key, value in (work.selector if work else {}).items())


def _theirs(picture: Picture, plugin: Part, objects: Sequence[str], default: str) -> _Filling:
    """What is there of the plugin that is to go."""
    own, work = _own(picture), plugin.workload
    words = {
        "theirs": plugin.release.rpartition("/")[2] or default,
        "their_space": work.namespace,
        "their_daemon": work.shown,
        "their_labels": _labels(work),
        "version": plugin.version or "VERSION",
    }
    lines = {
        "freeze": _freeze(plugin),
        "thaw": _thaw(plugin),
        "freeze_again": _freeze_again(plugin),
    }
    found = {"their_name": work.name, "their_objects": shlex.join(objects)}
    return replace(own, words={**own.words, **_quoted(words), **found}, lines=lines)


def _nodes(filling: _Filling, theirs: Sequence[NodeState], taken: Sequence[str]) -> _Filling:
    """One node first, then the others."""
    free = [one for one in theirs if one.node.is_ready and not one.lock and not one.allocating]
    first = min(free, key=lambda one: (one.holders, one.name), default=None)
    name = first.name if first is not None else (taken[0] if taken else "NODE")
    rest = [one.name for one in theirs if one.name != name or taken]
    more = f" {len(rest)} nodes, {MAX_IN_LOOP} at a time." if len(rest) > MAX_IN_LOOP else ""
    words = {**filling.words, "more": more, "rest": some(rest) or "none"}
    nodes = {"Canary": (name,), "Nodes": rest}
    return _at(replace(filling, words=words, nodes=nodes), name)


def _taken(picture: Picture) -> list[str]:
    return [one.name for one in picture.nodes if one.is_ours and one.served_by == (Maker.OURS,)]


def _from_hami(picture: Picture, hami: Part) -> Iterator[Step]:
    works = hami_objects(picture)
    maps = sorted({name for work in works for name in work.config_maps})
    objects = [work.shown for work in works] + [f"configmap/{name}" for name in maps]
    filling = _theirs(picture, hami, objects, "hami")
    scheduler, hook = picture.hami_scheduler, picture.hami_webhook
    accounts = [
        f"system:serviceaccount:{one.namespace}:{one.pod.service_account_name or 'default'}"
        for one in works
    ]
    writers = ("--set-json", f"admissionPolicies.reservationWriters={in_json(accounts)}")
    words = {"base": scheduler.part.workload.name if scheduler else "hami-scheduler"}
    if scheduler is not None:
        words |= {
            "their_scheduler": scheduler.part.workload.shown,
            "their_scheduler_space": scheduler.part.workload.namespace,
            "their_scheduler_labels": _labels(scheduler.part.workload),
            "their_replicas": str(max(scheduler.part.workload.wanted, 1)),
        }
    if hook is not None:  # it is kept from every request; its certificate stays where it is
        path = f"/webhooks/{hook.position}/matchConditions"
        words |= {
            "hook": hook.configuration.name,
            "pause": in_json([{"op": "add", "path": path, "value": _PAUSE}]),
            "resume": in_json([{"op": "remove", "path": path}]),
        }
    classes = [
        one.name for one in picture.listed.classes if hami.release and one.release == hami.release
    ]
    flags = {
        "hook": hook is not None,
        "pause": hook is not None and not hook.webhook.is_paused,
        "classes": bool(classes),
    }
    saved = [
        f"kubectl get runtimeclass {(q := shlex.quote(name))} -o yaml > {q}.yaml"
        for name in classes
    ]
    taken = _taken(picture)
    theirs = [one for one in picture.nodes if Maker.HAMI in one.served_by and not one.is_ours]
    kept = [one.name for one in theirs if one.mode]
    movable = [one for one in theirs if not one.mode]
    stays = f" Left with HAMi (mig or mps): {some(kept)}." if kept else ""
    filling = replace(
        filling,
        words={**filling.words, **_quoted(words), "writers": shlex.join(writers), "stays": stays},
        lines={**filling.lines, "saved_classes": saved},
        flags=frozenset(name for name, is_set in flags.items() if is_set),
    )
    ours = picture.scheduler
    is_there = picture.daemon is not None
    done = {
        "Read": is_there,
        "Install": is_there,
        "Freeze": is_there and _is_frozen(hami),
        "Canary": bool(taken),
        "Nodes": bool(taken) and not movable,
    }
    if scheduler is not None:
        done["Scheduler"] = ours is not None and ours.is_on and not scheduler.is_on
    done["Remove"] = False
    yield from _written("hami", _nodes(filling, movable, taken), done)


def _from_nvidia(picture: Picture, plugin: Part) -> Iterator[Step]:
    work, policy = plugin.workload, picture.listed.policy
    objects = [work.shown, *(f"configmap/{name}" for name in work.config_maps)]
    filling = _theirs(picture, plugin, objects, "")
    is_operator = plugin.maker is Maker.OPERATOR
    chosen = {"matchLabels": {_CANARY: "true"}}
    tolerant = ("--set-json", f"devicePlugin.tolerations={in_json(_TOLERATIONS)}")
    by_choice = (
        "--set-json",
        f"scheduler.admissionWebhook.namespaceSelector={in_json(chosen)}",
    )
    flags = {
        "operator": is_operator,
        "release": bool(plugin.release),
        "chart": not is_operator and bool(plugin.release),
        "bare": not is_operator and not plugin.release,
    }
    what = (
        "Switch the operator's plugin off everywhere; driver, toolkit and the rest stay."
        if is_operator
        else "Remove NVIDIA's plugin."
    )
    words = {
        "policy": shlex.quote(text(policy, "metadata", "name") or "cluster-policy"),
        "tolerant": shlex.join(tolerant),
        "by_choice": shlex.join(by_choice),
        "remove_what": what,
    }
    filling = replace(
        filling,
        words={**filling.words, **words},
        flags=frozenset(name for name, is_set in flags.items() if is_set),
    )
    taken, hook = _taken(picture), picture.webhook
    theirs = [one for one in picture.nodes if _TAKERS & set(one.served_by) and not one.is_ours]
    filling = _nodes(filling, theirs, taken)
    ours = [one.name for one in picture.nodes if one.is_ours]
    is_there = picture.daemon is not None
    done = {"Read": is_there, "Install": is_there}
    if not is_operator:
        done["Freeze"] = is_there and _is_frozen(plugin)
    done |= {
        "Canary": bool(taken),
        "Nodes": bool(taken) and not theirs,
        "Everybody": hook is not None and not hook.webhook.is_by_choice,
        "Remove": is_operator and switch(policy, "devicePlugin", "enabled") is False,
    }
    yield from _written(
        "nvidia", replace(filling, nodes={**filling.nodes, "Everybody": ours}), done
    )


# -- keeping another plugin off our nodes ----------------------------------------------------------


def _is_frozen(part: Part) -> bool:
    """It neither rolls nor runs on our nodes."""
    return part.workload.update == "OnDelete" and _keeps_off(part)


def _keeps_off(part: Part) -> bool:
    """Whether the DaemonSet avoids nodes with our label."""
    ours, terms = {OWN_LABEL: "true"}, part.workload.pod.alternatives
    return bool(terms) and all(
        any(one.key == OWN_LABEL and not one.holds(ours) for one in term.match_expressions or ())
        for term in terms or ()
    )


def _freeze(part: Part) -> tuple[str, ...]:
    """No restarts any more, then no pods on our nodes."""
    update = {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}
    wanted = [
        _with(term, [*_others(term), _OUR_TERM])
        for term in part.workload.pod.alternatives or (SelectorTerm(),)
    ]
    return (_patch(part.workload, update), _patch(part.workload, _affinity(wanted)))


def _thaw(part: Part) -> tuple[str, ...]:
    """As it was: first its nodes, then its updates, if they were not by hand before."""
    terms = [_with(term, _others(term)) for term in part.workload.pod.alternatives or ()]
    update = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    before = [term for term in terms if term.match_expressions or term.match_fields]
    was_by_hand = part.workload.update == "OnDelete" and not _keeps_off(part)
    return (
        _patch(part.workload, _affinity(before)),
        *(() if was_by_hand else (_patch(part.workload, update),)),
    )


def _others(term: SelectorTerm) -> list[Requirement]:
    """What a term asks for besides our label."""
    return [one for one in term.match_expressions or () if one.key != OWN_LABEL]


def _with(term: SelectorTerm, expressions: list[Requirement]) -> SelectorTerm:
    return SelectorTerm(match_expressions=expressions, match_fields=term.match_fields)


def _affinity(terms: Sequence[SelectorTerm]) -> Mapping[str, object]:
    body: Any = {REQUIRED: {"nodeSelectorTerms": plain(terms)} if terms else None}
    for key in reversed(_AFFINITY):
        body = {key: body}
    found: Mapping[str, object] = body
    return found


def _freeze_again(part: Part) -> tuple[str, ...]:
    """Freeze what was installed on no node, then let it run on the nodes that are not ours."""
    body: Any = {_NOWHERE: None}
    for key in ("nodeSelector", "spec", "template", "spec"):
        body = {key: body}
    look = shlex.join(("kubectl", "-n", part.workload.namespace, "get", part.workload.shown))
    return (
        f"{look}: go on if DESIRED is 0",
        *_freeze(part),
        _patch(part.workload, body),
    )


def _patch(work: Workload, body: Mapping[str, object]) -> str:
    """A merge patch of a workload."""
    where = ("-n", work.namespace, "patch", work.shown, "--type=merge")
    return shlex.join(("kubectl", *where, "-p", in_json(body)))
