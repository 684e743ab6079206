"""Write the dashboards and the PrometheusRule: `python -m tests.monitoring.write`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.monitoring.cluster_board import cluster_board
from tests.monitoring.files import COMPONENT, DASHBOARDS, rule_files
from tests.monitoring.node_board import node_board
from tests.monitoring.pod_board import pod_board
from tests.monitoring.scheduler_board import scheduler_board

BOARDS: Final = (cluster_board, node_board, pod_board, scheduler_board)
HEAD: Final = "# Made from daemonset/chart/rules by `python -m tests.monitoring.write`.\n"


def pages() -> Mapping[Path, str]:
    """Every file that is made from others, with its content."""
    boards = [board() for board in BOARDS]
    return {
        **{
            DASHBOARDS / f"{board['uid']}.json": f"{json.dumps(board, indent=1)}\n"
            for board in boards
        },
        **{COMPONENT / f"rules-{path.stem}.yaml": rule_object(path) for path in rule_files()},
    }


def rule_object(path: Path) -> str:
    """A file with rules as an object of the Prometheus operator."""
    body: dict[str, Any] = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": f"hami-node-{path.stem}", "namespace": "hami-system"},
        "spec": yaml.safe_load(path.read_text()),
    }
    return HEAD + yaml.safe_dump(body, sort_keys=False, width=1000)


def main() -> None:
    """Write them all."""
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
