"""What to try while `hami-node demo --keep` leaves everything running."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Final

from hami_node.simulate import demo_pods as pods
from hami_node.simulate.demo_pods import NAMESPACE, Tenant, Want
from hami_node.simulate.demo_stage import EXTENDER, GPU_NODE, Stage, StepFailed
from hami_node.simulate.kube_scheduler import (
    CallFailed,
    bind_arguments,
    filter_arguments,
    review_of,
)
from hami_node.simulate.store import Json

MINE: Final = Tenant(name="mine", wants=(Want(name="main", memory_mib=3000, cores=5),))
"""A pod that waits to be filtered and bound by hand."""
NEXT: Final = Tenant(name="next", wants=(Want(name="main", memory_mib=2000, cores=5),))
"""A pod that is not created: only reviewed."""

Command = tuple[str, str]
"""Purpose, "" for the same as before; and command."""


def commands(stage: Stage, program: Sequence[str]) -> tuple[Command, ...]:
    """What to try; nothing of a program that does not answer."""
    hami_node = shlex.join(program)
    kubeconfig = shlex.quote(str(stage.kubeconfig))
    cards = shlex.quote(str(stage.card_file(stage.gpu)))
    return (
        ("who holds which slice", f"{hami_node} inspect --kubeconfig {kubeconfig}"),
        ("the same as JSON", f"{hami_node} inspect --kubeconfig {kubeconfig} -o json"),
        *_of_extender(stage),
        *_of_daemon(stage),
        ("what the API server holds", f"curl {stage.api.url}/api/v1/nodes/{GPU_NODE}"),
        ("", f"curl {stage.api.url}/api/v1/namespaces/{NAMESPACE}/pods/{MINE.name}"),
        ("let a card fail: add `healthy: false` to its line", f"${{EDITOR:-vi}} {cards}"),
    )


def _of_daemon(stage: Stage) -> tuple[Command, ...]:
    if GPU_NODE not in stage.programs:
        return ()
    url = f"http://127.0.0.1:{stage.daemon.metrics_port()}"
    return (
        ("the daemon's metrics, health and effective settings", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("", f"curl {url}/config"),
        ("what the daemon says", f"tail -f {shlex.quote(str(stage.daemon.log_file))}"),
    )


def _of_extender(stage: Stage) -> tuple[Command, ...]:
    """Its calls, with bodies in files: a new pod for the webhook, one to filter and to bind."""
    try:
        pods.create(stage, MINE.body())
    except (StepFailed, CallFailed):
        return ()  # it was not started, or has ended: a step has said so
    mine = stage.api.read("pods", MINE.name, NAMESPACE)
    bodies = {
        "webhook": review_of(NEXT.body()),
        "filter": filter_arguments(stage.api, mine),
        "bind": bind_arguments(mine, GPU_NODE),
    }
    url = stage.extender.url
    log = stage.program(EXTENDER).log_file
    return (
        ("be the API server: have a new pod reviewed", _post(stage, url, "webhook", bodies)),
        (f"be kube-scheduler: choose for pod {MINE.name}", _post(stage, url, "filter", bodies)),
        ("... and bind it to that node", _post(stage, url, "bind", bodies)),
        ("the extender's metrics and health", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("what the extender says", f"tail -f {shlex.quote(str(log))}"),
    )


def _post(stage: Stage, url: str, call: str, bodies: dict[str, Json]) -> str:
    """The curl line; its body is written into a file."""
    file = stage.folder / EXTENDER / f"{call}.json"
    file.write_text(json.dumps(bodies[call], indent=2), encoding="utf-8")
    return f"curl {url}/{call} --data-binary @{shlex.quote(str(file))}"
