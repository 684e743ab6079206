"""The way over from HAMi, step by step: node by node, then the scheduler. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami_node.migrate.found.findings import some
from hami_node.migrate.seen.objects import WebhookSeen
from hami_node.migrate.seen.parts import OWN_LABEL, Maker, Part
from hami_node.migrate.seen.picture import Picture, Scheduler, hami_objects, in_json
from hami_node.migrate.steps.steps import (
    MAX_IN_LOOP,
    VALUES_FILE,
    Step,
    count_pods,
    freeze_again,
    freeze_commands,
    hand_back,
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
    pull_image,
    sh,
    thaw_commands,
    verify,
    wait_and_uncordon,
)

_SAVED: Final = "hami-webhook.yaml"
_NO_SCHEDULER: Final = ("--set", "scheduler.enabled=false")
_SELECTORS: Final = ("devicePlugin.nvidiaNodeSelector", "devicePlugin.nvidianodeSelector")
"""Its plugin's nodes in HAMi's values; the second before 2.8. Each takes no notice of the other."""
_IDLE: Final = ("--set", "scheduler.kubeScheduler.replicas=0")
_PAUSE: Final = [{"name": "replaced-by-hami-node", "expression": "false"}]


def hami_steps(picture: Picture, hami: Part) -> Iterator[Step]:
    """All of them, with what is done already."""
    yield _read(picture, hami)
    yield _install(picture)
    yield _freeze(picture, hami)
    yield from _nodes(picture, hami)
    if picture.hami_scheduler is not None:
        yield _scheduler(picture, hami, picture.hami_scheduler)
    yield _remove(picture, hami)


def _read(picture: Picture, hami: Part) -> Step:
    space = hami.workload.namespace
    release = hami.release.rpartition("/")[2] or "hami"
    objects = [work.shown for work in hami_objects(picture)]
    maps = sorted({name for work in hami_objects(picture) for name in work.config_maps})
    objects += [f"configmap/{name}" for name in maps]
    save = kubectl(space, "get", *objects, "-o", "yaml")
    commands = [
        sh("helm", "get", "values", release, "-n", space, "-o", "yaml") + " > hami-values.yaml",
        f"{save} > hami-objects.yaml",
        "hami-node migrate plan --from-hami-values hami-values.yaml -o " + VALUES_FILE,
    ]
    if picture.hami_webhook is not None:
        hook = picture.hami_webhook.configuration
        commands.insert(
            2,
            sh("kubectl", "get", "mutatingwebhookconfiguration", hook, "-o", "yaml")
            + f" > {_SAVED}",
        )
    return Step(
        name="Read",
        what="Keep what HAMi is set to, and make our values from it.",
        commands=tuple(commands),
        see=(
            f"read what the last command left out, and put your registry into {VALUES_FILE}, "
            "where it says REGISTRY",
        ),
        undo=("nothing was changed",),
        is_done=picture.daemon is not None,
    )


def _install(picture: Picture) -> Step:
    settings = ("--set", "devicePlugin.nodeSelection=own-label", *_NO_SCHEDULER)
    return Step(
        name="Install",
        what=f"hami-node beside HAMi, on no node: it starts only where {OWN_LABEL}=true is set. "
        f"The image is image.registry and so on in {VALUES_FILE}: a checkout's chart names none.",
        commands=install_commands(picture, *settings),
        see=(
            f"{kubectl(own_namespace(picture), 'get', 'daemonset')}: DESIRED is 0",
            f"{pull_image(picture)}: prints the version if the image can be pulled",
        ),
        undo=(sh("helm", "uninstall", own_release(picture), "-n", own_namespace(picture)),),
        is_done=picture.daemon is not None,
    )


def _freeze(picture: Picture, hami: Part) -> Step:
    space = hami.workload.namespace
    return Step(
        name="Freeze",
        what="HAMi's DaemonSet restarts no pod any more, and leaves nodes with our label. A `helm "
        "upgrade` of HAMi would take that back.",
        commands=freeze_commands(hami),
        see=(
            f"{kubectl(space, 'get', hami.workload.shown)}: as many READY, and as old, as before",
        ),
        undo=(
            *thaw_commands(hami),
            "then HAMi's DaemonSet may restart the pods that it made in between",
        ),
        is_done=picture.daemon is not None and is_frozen(hami),
    )


def _nodes(picture: Picture, hami: Part) -> Iterator[Step]:
    """One node first, then the others."""
    taken = [one.name for one in picture.nodes if one.is_ours and one.served_by == (Maker.OURS,)]
    theirs = [one for one in picture.nodes if Maker.HAMI in one.served_by and not one.is_ours]
    movable = [one for one in theirs if not one.mode]
    kept = [one.name for one in theirs if one.mode]
    first = next_node(movable)
    name = first.name if first is not None else (taken[0] if taken else "NODE")
    yield _canary(picture, hami, name, is_done=bool(taken))
    rest = [one.name for one in movable if one.name != name or taken]
    yield _waves(picture, hami, rest, kept, is_done=bool(taken) and not movable)


def _canary(picture: Picture, hami: Part, name: str, *, is_done: bool) -> Step:
    return Step(
        name="Canary",
        what="Hand over one node. Its running pods go on; nothing of theirs is touched.",
        commands=(
            sh("kubectl", "cordon", name),
            sh("kubectl", "label", "node", name, f"{OWN_LABEL}=true"),
            wait_and_uncordon(picture, name),
        ),
        see=(
            if_it_fails(picture),
            verify(picture, "--node", name, "--probe"),
            f"{sh('hami-node', 'inspect', '--node', name)}: the same pods with the same slices",
            "hami-node migrate check: no node served twice or by nobody",
        ),
        undo=(
            *hand_back(picture, hami.workload, name),
            f"HAMi's pod is back there: {kubectl(hami.workload.namespace, 'get', 'pods')}",
        ),
        gap="For some seconds the node offers no cards: leave its kubelet alone meanwhile.",
        nodes=(name,),
        is_done=is_done,
    )


def _waves(
    picture: Picture, hami: Part, rest: list[str], kept: list[str], *, is_done: bool
) -> Step:
    stays = f" Left with HAMi (mig or mps): {some(kept)}." if kept else ""
    more = f" {len(rest)} nodes, {MAX_IN_LOOP} at a time." if len(rest) > MAX_IN_LOOP else ""
    return Step(
        name="Nodes",
        what=f"The other nodes, one after the other.{more}{stays}",
        commands=loop(
            rest,
            'kubectl cordon "$node"',
            f'kubectl label node "$node" {OWN_LABEL}=true',
            wait_and_uncordon(picture, "$node"),
        ),
        see=(if_it_fails(picture), count_pods(picture), "hami-node migrate check"),
        undo=(
            *(f"each node: {command}" for command in hand_back(picture, hami.workload, "NODE")),
            f"{kubectl(hami.workload.namespace, 'get', hami.workload.shown)}: READY grows again",
        ),
        gap="As before, node by node.",
        nodes=tuple(rest),
        is_done=is_done,
    )


def _writers(picture: Picture, hami: Part) -> tuple[str, ...]:
    """HAMi's accounts, which write reservations as long as they work."""
    parts = [hami, picture.hami_scheduler.part if picture.hami_scheduler else None]
    accounts = [
        f"system:serviceaccount:{part.workload.namespace}:{part.workload.account or 'default'}"
        for part in parts
        if part is not None
    ]
    return ("--set-json", f"admissionPolicies.reservationWriters={in_json(accounts)}")


def _scheduler(picture: Picture, hami: Part, theirs: Scheduler) -> Step:
    space, work = own_namespace(picture), theirs.part.workload
    ours = picture.scheduler.part.workload.shown if picture.scheduler else _named("scheduler")
    extender = picture.extender.workload.shown if picture.extender else _named("extender")
    writers = _writers(picture, hami)
    hook = picture.hami_webhook
    selector = ",".join(f"{key}={value}" for key, value in work.selector.items())
    off = kubectl(work.namespace, "scale", work.shown, "--replicas=0")
    on = kubectl(work.namespace, "scale", work.shown, f"--replicas={max(work.wanted, 1)}")
    gone = ("wait", "--for=delete", "pod", "-l", selector, "--timeout=120s")
    return Step(
        name="Scheduler",
        what="Extender and webhook first, our kube-scheduler with no replica; then HAMi's "
        "scheduler ends and ours begins. Never both: they would give out the same cards.",
        commands=(
            helm(picture, *_IDLE, *writers),
            kubectl(space, "rollout", "status", extender),
            *((_pause(hook),) if hook is not None and not hook.is_paused else ()),
            off,
            kubectl(work.namespace, *gone),
            helm(picture, *writers),
            kubectl(space, "rollout", "status", ours),
        ),
        see=(
            f"a new pod with a card runs: {verify(picture, '--probe')}",
            "hami-node migrate check: one scheduler, a webhook with a backend",
        ),
        undo=(
            kubectl(space, "scale", ours, "--replicas=0"),
            on,
            *((_resume(hook),) if hook is not None else ()),
            helm(picture, *_NO_SCHEDULER),
        ),
        gap="For some seconds new pods with cards wait; none is lost, running ones go on.",
        is_done=picture.scheduler is not None and picture.scheduler.is_on and not theirs.is_on,
    )


def _named(part: str) -> str:
    return f"deployment/hami-node-{part}"


def _pause(hook: WebhookSeen) -> str:
    """Keep HAMi's webhook from every request; its certificate stays where it is."""
    return _hook_patch(
        hook, {"op": "add", "path": f"/webhooks/{hook.position}/matchConditions", "value": _PAUSE}
    )


def _resume(hook: WebhookSeen) -> str:
    path = f"/webhooks/{hook.position}/matchConditions"
    return _hook_patch(hook, {"op": "remove", "path": path})


def _hook_patch(hook: WebhookSeen, operation: dict[str, object]) -> str:
    words = ("patch", "mutatingwebhookconfiguration", hook.configuration)
    return kubectl("", *words, "--type=json", "-p", in_json([operation]))


def _remove(picture: Picture, hami: Part) -> Step:
    space = hami.workload.namespace
    release = hami.release.rpartition("/")[2] or "hami"
    classes = [
        one.name for one in picture.listed.classes if hami.release and one.release == hami.release
    ]
    base = picture.hami_scheduler.part.workload.name if picture.hami_scheduler else "hami-scheduler"
    return Step(
        name="Remove",
        what="Uninstall HAMi, and what Helm leaves. Files on nodes stay until no pod has them "
        "mounted.",
        commands=(
            *(
                sh("kubectl", "get", "runtimeclass", name, "-o", "yaml") + f" > {name}.yaml"
                for name in classes
            ),
            sh("helm", "uninstall", release, "-n", space),
            helm(
                picture,
                *(("--set", "devicePlugin.createRuntimeClass=true") if classes else ()),
            ),
            kubectl(space, "delete", "--ignore-not-found", f"secret/{base}-tls", f"lease/{base}"),
        ),
        see=(
            f"{sh('helm', 'list', '-n', space)}: {release} is gone",
            "hami-node migrate check; running pods go on",
        ),
        undo=_install_again(picture, hami, release),
        gap="None, if no node is left with HAMi.",
        is_done=False,
    )


def _install_again(picture: Picture, hami: Part, release: str) -> tuple[str, ...]:
    """HAMi's scheduler starts at once: ours has to be gone. Its plugin starts on no node first."""
    space = own_namespace(picture)
    selector = picture.scheduler.part.workload.selector if picture.scheduler is not None else {}
    ours = ",".join(f"{key}={value}" for key, value in selector.items())
    gone = ("wait", "--for=delete", "pod", "-l", ours or "app=hami-node-scheduler")
    where = ("-n", hami.workload.namespace, "-f", "hami-values.yaml")
    version = ("--version", hami.version or "VERSION")
    return (
        helm(picture, *_IDLE, *_writers(picture, hami)),
        kubectl(space, *gone, "--timeout=120s"),
        sh("helm", "install", release, "HAMI-CHART", *where, *version, *on_no_node(*_SELECTORS)),
        *freeze_again(hami),
        "HAMi's scheduler decides again; what is left is the undo of the step Scheduler",
    )
