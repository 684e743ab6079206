"""Faults of an installation: each changes one thing of a cluster where all is right."""

from __future__ import annotations

from collections.abc import Callable

from tests.fakes.installed import SPACE, Installed, Json


def waiting(reason: str, message: str) -> Json:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "hami-node", "ready": False, "state": state}]}


def spec_of(change: Callable[[Json], object]) -> Callable[[Json], object]:
    """A change of the pods that a workload makes."""
    return lambda body: change(body["spec"]["template"]["spec"])


def add_argument(word: str) -> Callable[[Json], object]:
    def change(body: Json) -> None:
        body["spec"]["template"]["spec"]["containers"][0]["args"].append(word)

    return change


def configure(name: str, key: str, old: str, new: str) -> Callable[[Installed], object]:
    def change(body: Json) -> None:
        assert old in body["data"][key]
        body["data"][key] = body["data"][key].replace(old, new)

    return lambda cluster: cluster.edit("configmaps", name, change)


def webhook(**changed: object) -> Callable[[Installed], object]:
    return lambda cluster: cluster.edit(
        "mutatingwebhookconfigurations",
        "hami-node",
        lambda body: body["webhooks"][0].update(changed),
    )


def rewrite_webhook(change: Callable[[Json], object]) -> Callable[[Installed], object]:
    return lambda cluster: cluster.edit(
        "mutatingwebhookconfigurations", "hami-node", lambda body: change(body["webhooks"][0])
    )


def lose(resource: str, name: str, space: str = "") -> Callable[[Installed], object]:
    return lambda cluster: cluster.server.delete(resource, name, space)


def lead(**spec: object) -> Callable[[Installed], object]:
    return lambda cluster: cluster.edit(
        "leases", "hami-node-extender", lambda body: body["spec"].update(spec)
    )


def kubelet(**counts: str) -> Callable[[Installed], object]:
    def change(body: Json) -> None:
        for field, text in counts.items():
            body["status"][field] = {"nvidia.com/gpu": text} if text else {}

    return lambda cluster: cluster.edit("nodes", "gpu-0", change)


def annotated(**annotations: str | None) -> Callable[[Installed], object]:
    names = {
        "register": "hami.io/node-nvidia-register",
        "handshake": "hami.io/node-handshake",
        "limiter": "hami-node.io/limiter",
        "hand_over": "hami-node.io/hand-over",
    }
    return lambda cluster: cluster.annotate(
        "gpu-0", {names[key]: text for key, text in annotations.items()}
    )


def other_plugin(
    image: str, *, key: str = "nvidia.com/gpu.present"
) -> Callable[[Installed], object]:
    template = {
        "spec": {
            "nodeSelector": {key: "true"},
            "containers": [{"name": "p", "image": image}],
            "volumes": [{"name": "d", "hostPath": {"path": "/var/lib/kubelet/device-plugins/"}}],
        }
    }
    meta = {"name": "plugin", "namespace": "gpu-operator"}
    return lambda cluster: cluster.server.create(
        "daemonsets", {"metadata": meta, "spec": {"template": template}}
    )


def forbidden_pod(cluster: Installed) -> None:
    """A pod of the DaemonSet is not created, as its controller reports."""
    cluster.server.delete("pods", "hami-node-gpu-1", SPACE)
    event = {
        "metadata": {"name": "e", "namespace": SPACE},
        "involvedObject": {"kind": "DaemonSet", "name": "hami-node"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": "exceeded quota",
    }
    cluster.server.create("events", event)


def unlabel(cluster: Installed) -> None:
    for name in cluster.node_names:
        cluster.edit("nodes", name, lambda body: body["metadata"].update(labels={}))


def certificates_of_somebody_else(cluster: Installed) -> None:
    """The certificates are made anew, and the webhook still trusts who signed the old ones."""
    old = cluster.server.read("mutatingwebhookconfigurations", "hami-node")["webhooks"]
    for name in ("hami-node-authority", "hami-node-extender-tls", "hami-node-scheduler-client-tls"):
        cluster.edit("secrets", name, lambda body: body.update(data={}))
    cluster.certify()
    cluster.edit(
        "mutatingwebhookconfigurations", "hami-node", lambda body: body.update(webhooks=old)
    )


def expired(cluster: Installed) -> None:
    for name in ("hami-node-authority", "hami-node-extender-tls", "hami-node-scheduler-client-tls"):
        cluster.edit("secrets", name, lambda body: body.update(data={}))
    cluster.certify(30, now_s=cluster.now_s - 400 * 86400)
