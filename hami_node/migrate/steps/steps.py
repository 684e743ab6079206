"""The form of a step, and the commands that several of them need. Pure.

Names come from the cluster: everything in a command is quoted for a shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from hami_node.migrate.seen.objects import Term, Workload
from hami_node.migrate.seen.parts import OWN_LABEL, Part
from hami_node.migrate.seen.picture import NodeState, Picture, in_json
from hami_node.migrate.seen.reading import switch

CHART: Final = "./daemonset/chart"
DEFAULT_NAMESPACE: Final = "hami-system"
VALUES_FILE: Final = "hami-node-values.yaml"
MAX_IN_LOOP: Final = 20
"""Nodes of a wave: so many commands name; the rest comes with the next run of `plan`."""
_AFFINITY: Final = ("spec", "template", "spec", "affinity", "nodeAffinity")
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NOWHERE: Final = "hami-node.io/nowhere"
"""A label that no node has."""
_OUR_TERM: Final = Term(key=OWN_LABEL, operator="NotIn", values=("true",))


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


def ordered(steps: Iterable[Step]) -> tuple[Step, ...]:
    """With their states: the first that is not done is the next."""
    found: list[Step] = []
    is_next = True
    for step in steps:
        state = State.DONE if step.is_done else State.NEXT if is_next else State.LATER
        is_next = is_next and step.is_done
        found.append(replace(step, state=state))
    return tuple(found)


def sh(*words: str) -> str:
    """A command for a shell."""
    return shlex.join(words)


def kubectl(namespace: str, *words: str) -> str:
    """A kubectl command; "" for what has no namespace."""
    return sh("kubectl", *(("-n", namespace) if namespace else ()), *words)


def patch(work: Workload, body: Mapping[str, object]) -> str:
    """A merge patch of a workload."""
    return kubectl(work.namespace, "patch", work.shown, "--type=merge", "-p", in_json(body))


# -- ours ------------------------------------------------------------------------------------------


def own_namespace(picture: Picture) -> str:
    """Where we are installed, or are to be."""
    return picture.daemon.workload.namespace if picture.daemon is not None else DEFAULT_NAMESPACE


def own_release(picture: Picture) -> str:
    """The name of our Helm release."""
    release = picture.daemon.release if picture.daemon is not None else ""
    return release.rpartition("/")[2] or "hami-node"


def helm(picture: Picture, *settings: str) -> str:
    """Install or upgrade ours with these settings."""
    where = ("-n", own_namespace(picture), "-f", VALUES_FILE)
    words = ("helm", "upgrade", "--install", own_release(picture), CHART, *where)
    return sh(*words, *_beside_the_operator(picture), *settings)


def _beside_the_operator(picture: Picture) -> tuple[str, ...]:
    """What our chart has to know of the GPU Operator."""
    policy = picture.listed.policy
    if switch(policy, "cdi", "nriPluginEnabled"):
        return ("--set", "devicePlugin.driver=nri")
    if picture.has_operator and switch(policy, "toolkit", "enabled") is not False:
        return ("--set", "devicePlugin.gpuOperatorToolkitReady.enabled=true")
    return ()


def install_commands(picture: Picture, *settings: str) -> tuple[str, ...]:
    """Namespace, its labels, and the first installation."""
    space = own_namespace(picture)
    return (
        sh("kubectl", "create", "namespace", space),
        sh("kubectl", "label", "namespace", space)
        + " pod-security.kubernetes.io/enforce=privileged hami.io/webhook=ignore",
        helm(picture, *settings),
    )


def wait_and_uncordon(picture: Picture, node: str) -> str:
    """Open the node once our pod is Ready there; it fails after about five minutes.

    The pod does not exist yet when the node is labelled, and `kubectl wait` ends at once then.
    """
    where = "spec.nodeName=$node" if node == "$node" else f"spec.nodeName={node}"
    words = ("wait", "--for=condition=Ready", "pod", "-l", _selector(picture), "--timeout=10s")
    waiting = kubectl(own_namespace(picture), *words)
    quoted = f'"{where}"' if node == "$node" else shlex.quote(where)
    name = '"$node"' if node == "$node" else shlex.quote(node)
    tries = f"for try in $(seq 30); do sleep 1; {waiting} --field-selector {quoted} && break; done"
    return f"{tries} && kubectl uncordon {name}"


def hand_back(picture: Picture, plugin: Workload, node: str) -> tuple[str, ...]:
    """Take our label off a node, and let the other plugin register after ours has ended.

    When the older of two plugins of a resource ends, kubelet drops the newer one, which may not
    notice: the node would offer nothing.
    """
    on_node = ("--field-selector", f"spec.nodeName={node}")
    ours = ("wait", "--for=delete", "pod", "-l", _selector(picture), *on_node, "--timeout=60s")
    labels = ",".join(f"{key}={value}" for key, value in plugin.selector.items())
    return (
        sh("kubectl", "label", "node", node, f"{OWN_LABEL}-"),
        kubectl(own_namespace(picture), *ours),
        kubectl(plugin.namespace, "delete", "pod", "-l", labels, *on_node),
        sh("kubectl", "uncordon", node),
    )


def if_it_fails(picture: Picture) -> str:
    """What to do where our pod does not become Ready."""
    described = kubectl(own_namespace(picture), "describe", "pods", "-l", _selector(picture))
    return f"{described}: why, if the wait failed (often the image); then undo"


def _selector(picture: Picture) -> str:
    labels = picture.daemon.workload.selector if picture.daemon is not None else {}
    return ",".join(f"{key}={value}" for key, value in labels.items()) or "app=hami-node"


def pull_image(picture: Picture) -> str:
    """Shows that nodes can pull our image, before a node depends on it."""
    space = own_namespace(picture)
    image = kubectl(
        space,
        *("get", daemon_name(picture), "-o"),
        "jsonpath={.spec.template.spec.containers[0].image}",
    )
    words = ("run", "pull-test", "--rm", "-i", "--restart=Never", "--pod-running-timeout=5m")
    return f'{kubectl(space, *words)} --image="$({image})" -- --version'


def verify(picture: Picture, *words: str) -> str:
    """The check of an installation, in our namespace."""
    space = own_namespace(picture)
    where = () if space == DEFAULT_NAMESPACE else ("--namespace", space)
    return sh("hami-node", "verify", *where, *words)


def daemon_name(picture: Picture) -> str:
    """Our DaemonSet, as kubectl takes it."""
    return picture.daemon.workload.shown if picture.daemon is not None else "daemonset/hami-node"


def count_pods(picture: Picture) -> str:
    """Shows how many nodes we serve."""
    return f"{kubectl(own_namespace(picture), 'get', daemon_name(picture))}: DESIRED is READY"


# -- keeping another plugin off our nodes ----------------------------------------------------------


def keeps_off(part: Part) -> bool:
    """Whether the DaemonSet avoids nodes with our label."""
    choice = part.workload.choice
    return bool(choice.alternatives) and all(
        any(not term.holds_for({OWN_LABEL: "true"}) and term.key == OWN_LABEL for term in one)
        for one in choice.alternatives
    )


def freeze_commands(part: Part) -> tuple[str, ...]:
    """No restarts any more, then no pods on our nodes."""
    update = {"spec": {"updateStrategy": {"type": "OnDelete", "rollingUpdate": None}}}
    choice = part.workload.choice
    terms = choice.alternatives or ((),)
    wanted = tuple((*one, *(() if _OUR_TERM in one else (_OUR_TERM,))) for one in terms)
    return (patch(part.workload, update), patch(part.workload, _affinity(wanted)))


def thaw_commands(part: Part) -> tuple[str, ...]:
    """As it was: first its nodes, then its updates, if they were not by hand before."""
    rest = tuple(
        tuple(term for term in one if term.key != OWN_LABEL)
        for one in part.workload.choice.alternatives
    )
    update = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    before = tuple(one for one in rest if one)
    was_by_hand = part.workload.update == "OnDelete" and not keeps_off(part)
    return (
        patch(part.workload, _affinity(before)),
        *(() if was_by_hand else (patch(part.workload, update),)),
    )


def _affinity(terms: Sequence[tuple[Term, ...]]) -> Mapping[str, object]:
    wanted = {
        "nodeSelectorTerms": [{"matchExpressions": [_plain(t) for t in one]} for one in terms]
    }
    body: Any = {_REQUIRED: wanted if terms else None}
    for key in reversed(_AFFINITY):
        body = {key: body}
    found: Mapping[str, object] = body
    return found


def _plain(term: Term) -> Mapping[str, object]:
    plain: dict[str, object] = {"key": term.key, "operator": term.operator}
    return plain | ({"values": list(term.values)} if term.values else {})


def on_no_node(*paths: str) -> tuple[str, ...]:
    """Settings of its chart with which it starts nowhere; a node selector is at each path."""
    key = _NOWHERE.replace(".", "\\.")
    return tuple(word for path in paths for word in ("--set-string", f"{path}.{key}=true"))


def freeze_again(part: Part) -> tuple[str, ...]:
    """Freeze what was installed on no node, then let it run on the nodes that are not ours."""
    body: Any = {_NOWHERE: None}
    for key in ("nodeSelector", "spec", "template", "spec"):
        body = {key: body}
    return (
        f"{kubectl(part.workload.namespace, 'get', part.workload.shown)}: go on if DESIRED is 0",
        *freeze_commands(part),
        patch(part.workload, body),
    )


def is_frozen(part: Part) -> bool:
    """It neither rolls nor runs on our nodes."""
    return part.workload.update == "OnDelete" and keeps_off(part)


# -- nodes -----------------------------------------------------------------------------------------


def next_node(candidates: Iterable[NodeState]) -> NodeState | None:
    """The one to begin with: Ready, free of locks, with the fewest pods on cards."""
    free = [one for one in candidates if one.node.is_ready and not one.lock and not one.allocating]
    return min(free, key=lambda one: (one.holders, one.name), default=None)


def loop(nodes: Sequence[str], *commands: str) -> tuple[str, ...]:
    """The commands for each node, `$node`, until the last of them fails for one."""
    named = " ".join(shlex.quote(name) for name in nodes[:MAX_IN_LOOP])
    body = "; ".join(commands)
    return (f"for node in {named}; do {body} || break; done",) if nodes else ()
