"""The way over from NVIDIA's device plugin, alone or of the GPU Operator. Pure.

Its pods have whole cards and no reservation, and its nodes are unknown to our scheduler: so nodes
are drained, and pods are ours by choice until every node is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.migrate.found.findings import some
from hami_node.migrate.seen.objects import text
from hami_node.migrate.seen.parts import OPERATOR_PLUGIN_LABEL, OWN_LABEL, Maker, Part
from hami_node.migrate.seen.picture import Picture, in_json
from hami_node.migrate.seen.reading import switch
from hami_node.migrate.steps.steps import (
    MAX_IN_LOOP,
    VALUES_FILE,
    Step,
    count_pods,
    freeze_again,
    freeze_commands,
    helm,
    if_it_fails,
    install_commands,
    is_frozen,
    kubectl,
    loop,
    next_node,
    on_no_node,
    own_namespace,
    own_release,
    sh,
    thaw_commands,
    verify,
    wait_and_uncordon,
)

CANARY: Final = "hami-node.io/canary"
"""Label of namespaces whose pods are ours meanwhile, and taint of nodes that are ours already."""
_PROBED: Final = "canary"
"""A namespace with that label, for the first pods."""
_TAKERS: Final = frozenset({Maker.OPERATOR, Maker.NVIDIA})
_TOLERATIONS: Final = [
    {"key": key, "operator": "Exists"}
    for key in ("nvidia.com/gpu", "aws.amazon.com/neuron", "CriticalAddonsOnly", CANARY)
]
_VALUES: Final = "nvidia-values.yaml"
_FROZEN: Final = "nvidia-plugin-frozen.yaml"
_OWN_ONLY: Final = ("--set", "devicePlugin.nodeSelection=own-label")
_TOLERANT: Final = ("--set-json", f"devicePlugin.tolerations={in_json(_TOLERATIONS)}")
_DRAIN: Final = ("--ignore-daemonsets", "--delete-emptydir-data")


def nvidia_steps(picture: Picture, plugin: Part) -> Iterator[Step]:
    """All of them, with what is done already."""
    is_operator = plugin.maker is Maker.OPERATOR
    yield _read(picture, plugin, is_operator=is_operator)
    yield _install(picture)
    if not is_operator:
        yield _freeze(picture, plugin)
    yield from _nodes(picture, plugin, is_operator=is_operator)
    yield _everybody(picture)
    yield _remove(picture, plugin, is_operator=is_operator)


def _read(picture: Picture, plugin: Part, *, is_operator: bool) -> Step:
    work = plugin.workload
    objects = [work.shown, *(f"configmap/{name}" for name in work.config_maps)]
    commands = [kubectl(work.namespace, "get", *objects, "-o", "yaml") + " > nvidia-plugin.yaml"]
    if is_operator:
        commands.append("kubectl get clusterpolicies.nvidia.com -o yaml > clusterpolicy.yaml")
    if plugin.release:
        release = plugin.release.rpartition("/")[2]
        saved = sh("helm", "get", "values", release, "-n", work.namespace, "-o", "yaml")
        commands.append(f"{saved} > {_VALUES}")
    commands.append(f"printf 'image: {{registry: REGISTRY}}\\n' > {VALUES_FILE}")
    return Step(
        name="Read",
        what="Keep how the cards are given out now. Time slicing with N replicas is our "
        "devicePlugin.deviceSplitCount: N.",
        commands=tuple(commands),
        see=(
            "nvidia-plugin.yaml has the DaemonSet",
            f"put your registry into {VALUES_FILE} in place of REGISTRY, and your other values",
        ),
        undo=("nothing was changed",),
        is_done=picture.daemon is not None,
    )


def _canary_settings() -> tuple[str, ...]:
    chosen = {"matchLabels": {CANARY: "true"}}
    return (
        *_OWN_ONLY,
        *_TOLERANT,
        "--set-json",
        f"scheduler.admissionWebhook.namespaceSelector={in_json(chosen)}",
    )


def _install(picture: Picture) -> Step:
    return Step(
        name="Install",
        what=f"hami-node on no node, and only for pods of namespaces with the label {CANARY}=true. "
        f"The image is image.registry and so on in {VALUES_FILE}: a checkout's chart names none.",
        commands=install_commands(picture, *_canary_settings()),
        see=(
            f"{kubectl(own_namespace(picture), 'get', 'daemonset')}: DESIRED is 0",
            kubectl(
                own_namespace(picture),
                *("rollout", "status", "deployment/hami-node-extender", "--timeout=300s"),
            )
            + ": the image can be pulled",
        ),
        undo=(sh("helm", "uninstall", own_release(picture), "-n", own_namespace(picture)),),
        is_done=picture.daemon is not None,
    )


def _freeze(picture: Picture, plugin: Part) -> Step:
    return Step(
        name="Freeze",
        what="NVIDIA's DaemonSet leaves nodes with our label, and restarts no pod for that.",
        commands=freeze_commands(plugin),
        see=(
            f"{kubectl(plugin.workload.namespace, 'get', plugin.workload.shown)}: READY as before",
        ),
        undo=thaw_commands(plugin),
        is_done=picture.daemon is not None and is_frozen(plugin),
    )


def _nodes(picture: Picture, plugin: Part, *, is_operator: bool) -> Iterator[Step]:
    taken = [one.name for one in picture.nodes if one.is_ours and one.served_by == (Maker.OURS,)]
    theirs = [one for one in picture.nodes if _TAKERS & set(one.served_by) and not one.is_ours]
    first = next_node(theirs)
    name = first.name if first is not None else (taken[0] if taken else "NODE")
    yield Step(
        name="Canary",
        what="Hand over one node. Its pods have whole cards: drain them, or leave them, and their "
        "cards stay closed until they end.",
        commands=(
            sh("kubectl", "cordon", name),
            sh("kubectl", "drain", name, *_DRAIN),
            *_hand_over(picture, plugin, name, is_operator=is_operator),
        ),
        see=(
            if_it_fails(picture),
            sh("kubectl", "create", "namespace", _PROBED),
            sh("kubectl", "label", "namespace", _PROBED, f"{CANARY}=true"),
            verify(picture, "--node", name, "--probe", "--probe-namespace", _PROBED),
            f"a pod that tolerates {CANARY}, in a namespace with {CANARY}=true, gets a slice",
        ),
        undo=_back(name, is_operator=is_operator),
        gap="The drained pods move; the node offers no cards for some seconds.",
        nodes=(name,),
        is_done=bool(taken),
    )
    rest = [one.name for one in theirs if one.name != name or taken]
    more = f" {len(rest)} nodes, {MAX_IN_LOOP} at a time." if len(rest) > MAX_IN_LOOP else ""
    yield Step(
        name="Nodes",
        what=f"The other nodes ({some(rest) or 'none'}).{more} Move pods by labelling their "
        "namespaces, as nodes become ours.",
        commands=loop(
            rest,
            'kubectl cordon "$node"',
            'kubectl drain "$node" ' + " ".join(_DRAIN),
            *_hand_over(picture, plugin, "$node", is_operator=is_operator),
        ),
        see=(if_it_fails(picture), count_pods(picture), "hami-node migrate check"),
        undo=_back("NODE", is_operator=is_operator),
        gap="As before, node by node.",
        nodes=tuple(rest),
        is_done=bool(taken) and not theirs,
    )


def _name(node: str) -> str:
    return '"$node"' if node == "$node" else sh(node)


def _hand_over(picture: Picture, plugin: Part, node: str, *, is_operator: bool) -> tuple[str, ...]:
    """The taint keeps pods off that our webhook has not seen: the node would refuse them."""
    name = _name(node)
    labels = ",".join(f"{key}={value}" for key, value in plugin.workload.selector.items())
    where = "spec.nodeName=$node" if node == "$node" else f"spec.nodeName={node}"
    field = f'"{where}"' if node == "$node" else sh(where)
    gone = kubectl(
        plugin.workload.namespace, "wait", "--for=delete", "pod", "-l", labels, "--timeout=120s"
    )
    off = (
        f"kubectl label --overwrite node {name} {OPERATOR_PLUGIN_LABEL}=false",
        f"{gone} --field-selector {field}",
    )
    return (
        f"kubectl taint --overwrite node {name} {CANARY}=true:NoSchedule",
        *(off if is_operator else ()),
        f"kubectl label node {name} {OWN_LABEL}=true",
        wait_and_uncordon(picture, node),
    )


def _back(node: str, *, is_operator: bool) -> tuple[str, ...]:
    name = _name(node)
    on = (f"kubectl label --overwrite node {name} {OPERATOR_PLUGIN_LABEL}=true",)
    return (
        f"drain {node}: NVIDIA's plugin knows nothing of slices",
        f"kubectl label node {name} {OWN_LABEL}-",
        *(on if is_operator else ()),
        f"kubectl taint node {name} {CANARY}-",
        f"kubectl uncordon {name}",
    )


def _everybody(picture: Picture) -> Step:
    tainted = [one.name for one in picture.nodes if one.is_ours]
    hook = picture.webhook
    return Step(
        name="Everybody",
        what="From now on every pod with cards is ours, and our nodes take every pod.",
        commands=(
            helm(picture, *_OWN_ONLY, *_TOLERANT),
            f"kubectl taint node -l {OWN_LABEL}=true {CANARY}-",
            helm(picture, *_OWN_ONLY),
        ),
        see=(f"a new pod with a card, in any namespace, runs: {verify(picture, '--probe')}",),
        undo=(
            helm(picture, *_OWN_ONLY, *_TOLERANT),
            f"kubectl taint --overwrite node -l {OWN_LABEL}=true {CANARY}=true:NoSchedule",
            helm(picture, *_canary_settings()),
        ),
        gap="Pods that wait with the default scheduler have to be created again.",
        nodes=tuple(tainted),
        is_done=hook is not None and not hook.is_by_choice,
    )


def _remove(picture: Picture, plugin: Part, *, is_operator: bool) -> Step:
    work = plugin.workload
    if is_operator:
        name = text(picture.listed.policy, "metadata", "name") or "cluster-policy"
        words = ("patch", "clusterpolicy", name, "--type=merge", "-p")
        body = {"spec": {"devicePlugin": {"enabled": False}}}
        back = {"spec": {"devicePlugin": {"enabled": True}}}
        commands, undo = [kubectl("", *words, in_json(body))], [kubectl("", *words, in_json(back))]
        what = "Switch the operator's plugin off everywhere; driver, toolkit and the rest stay."
    else:
        commands, undo = _removal(plugin)
        what = "Remove NVIDIA's plugin."
    return Step(
        name="Remove",
        what=what,
        commands=tuple(commands),
        see=(
            f"{kubectl(work.namespace, 'get', 'daemonsets')}: {work.name} is gone",
            "hami-node migrate check",
        ),
        undo=tuple(undo),
        is_done=is_operator and switch(picture.listed.policy, "devicePlugin", "enabled") is False,
    )


def _removal(plugin: Part) -> tuple[list[str], list[str]]:
    """With the way back on which it never starts on nodes of ours."""
    work, release = plugin.workload, plugin.release.rpartition("/")[2]
    if not release:
        save = kubectl(work.namespace, "get", work.shown, "-o", "yaml") + f" > {_FROZEN}"
        return [save, kubectl(work.namespace, "delete", work.shown)], [
            f"kubectl create -f {_FROZEN}"
        ]
    where = ("-n", work.namespace, "-f", _VALUES)
    words = ("helm", "install", release, "NVIDIA-CHART", *where)
    version = ("--version", plugin.version or "VERSION")
    back = sh(*words, *version, *on_no_node("nodeSelector"))
    return [sh("helm", "uninstall", release, "-n", work.namespace)], [back, *freeze_again(plugin)]
