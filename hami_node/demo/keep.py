"""Commands to try while `hami-node demo --keep` leaves everything running."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Final

from hami_node.demo import pods
from hami_node.demo.pods import NAMESPACE, Tenant, Want
from hami_node.demo.stage import EXTENDER, GPU_NODE, Stage
from hami_node.simulate.kube_scheduler import (
    CallFailed,
    bind_arguments,
    filter_arguments,
    review_of,
)
from hami_node.simulate.store import Json
from hami_node.vendors.demo import StepFailed

MINE: Final = Tenant(name="mine", wants=(Want(name="main", memory_mib=3000, cores=5),))
"""A pod to filter and bind by hand."""
NEXT: Final = Tenant(name="next", wants=(Want(name="main", memory_mib=2000, cores=5),))
"""A pod that is not created: only reviewed."""

Command = tuple[str, str]
"""Purpose, "" for the same as before, and command."""


def commands(stage: Stage, program: Sequence[str]) -> tuple[Command, ...]:
    """Commands to try; none for a program that does not answer."""
    hami_node = shlex.join(program)
    kubeconfig = shlex.quote(str(stage.kubeconfig))
    cards = shlex.quote(str(stage.card_file(stage.gpu)))
    return (
        (
            "nodes, cards and the holders of slices",
            f"{hami_node} inspect --kubeconfig {kubeconfig}",
        ),
        ("the same in the browser", f"{hami_node} view --kubeconfig {kubeconfig}"),
        ("the same as JSON", f"{hami_node} inspect --kubeconfig {kubeconfig} -o json"),
        *_of_extender(stage),
        *_of_daemon(stage),
        ("the objects in the API server", f"curl {stage.api.url}/api/v1/nodes/{GPU_NODE}"),
        ("", f"curl {stage.api.url}/api/v1/namespaces/{NAMESPACE}/pods/{MINE.name}"),
        ("make a card fail: add `healthy: false` to its line", f"${{EDITOR:-vi}} {cards}"),
    )


def _of_daemon(stage: Stage) -> tuple[Command, ...]:
    if GPU_NODE not in stage.programs:
        return ()
    url = f"http://127.0.0.1:{stage.daemon.metrics_port()}"
    return (
        ("the daemon's metrics, health and effective settings", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("", f"curl {url}/config"),
        ("the daemon's log", f"tail -f {shlex.quote(str(stage.daemon.log_file))}"),
    )


def _of_extender(stage: Stage) -> tuple[Command, ...]:
    """Its calls, with bodies in files: a new pod for the webhook, a pod to filter and bind."""
    try:
        pods.create_tenant(stage, MINE)
    except (StepFailed, CallFailed):
        return ()  # it was not started, or has ended: a step has reported that
    pod = stage.api.read("pods", MINE.name, NAMESPACE)
    bodies = {
        "webhook": review_of(NEXT.body(stage.cast.shared.protocol)),
        "filter": filter_arguments(stage.api, pod),
        "bind": bind_arguments(pod, GPU_NODE),
    }
    url = stage.extender.url
    log = stage.program(EXTENDER).log_file
    return (
        ("as the API server: have a new pod reviewed", _post(stage, url, "webhook", bodies)),
        (
            f"as kube-scheduler: filter the nodes for pod {MINE.name}",
            _post(stage, url, "filter", bodies),
        ),
        ("... and bind it to the node", _post(stage, url, "bind", bodies)),
        ("the extender's metrics and health", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("the extender's log", f"tail -f {shlex.quote(str(log))}"),
    )


def _post(stage: Stage, url: str, call: str, bodies: dict[str, Json]) -> str:
    """The curl line; its body is written into a file."""
    file = stage.folder / EXTENDER / f"{call}.json"
    file.write_text(json.dumps(bodies[call], indent=2), encoding="utf-8")
    return f"curl {url}/{call} --data-binary @{shlex.quote(str(file))}"
