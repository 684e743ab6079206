"""The chart as a release of Helm, in place of the kustomizations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import yaml

from tests.e2e import parts
from tests.e2e.api import Json
from tests.e2e.assets import NODE_DIR, REPOSITORY
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE, OVERLAY

NAME: Final = "gpu"
CHART: Final = REPOSITORY / "daemonset/chart"
Values = dict[str, Any]
VALUES: Final[Values] = {
    "image": {"registry": "localhost", "repository": "hami-node", "tag": "e2e"}
    | {"pullPolicy": "Never"},
    "global": {"gpuHookPath": str(NODE_DIR / "hook")},
    "limiter": {"source": "host"},
    "devicePlugin": {
        "runtimeClassName": "",
        "extraEnv": [
            {"name": "DEVICE_LIST_STRATEGY", "value": "envvar"},
            {"name": "LD_LIBRARY_PATH", "value": str(NODE_DIR / "nvml")},
            {"name": "NVML_STUB_FILE", "value": str(NODE_DIR / "nvml/cards")},
        ],
        "extraVolumes": [
            {"name": "driver", "hostPath": {"path": str(NODE_DIR / "nvml"), "type": "Directory"}}
        ],
        "extraVolumeMounts": [
            {"name": "driver", "mountPath": str(NODE_DIR / "nvml"), "readOnly": True}
        ],
    },
    "scheduler": {
        "kubeScheduler": {
            "replicas": 1,
            "image": {"registry": "localhost", "tag": "e2e", "pullPolicy": "Never"},
        }
    },
}
"""The overlays' changes for this cluster, as values."""


class Refused(Exception):
    """Helm ended with an error; the text is its own."""


class Release:
    """One release of the chart, in the namespace of the kustomizations."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def install(self, *sets: str, flags: tuple[str, ...] = ()) -> str:
        """Install and wait until every pod is Ready; what Helm prints.

        Raises:
            Refused: with Helm's message.
        """
        return self.run("install", NAME, str(CHART), *_applying(sets), *flags)

    def upgrade(self, *sets: str) -> str:
        """Upgrade in the same way."""
        return self.run("upgrade", NAME, str(CHART), *_applying(sets))

    def preview(self, *sets: str) -> str:
        """What an installation would apply and say in this cluster; nothing is stored."""
        return self.install(*sets, flags=("--dry-run=server",))

    def begin_upgrade(self, *sets: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        return subprocess.Popen(
            (*self._command("upgrade", NAME), str(CHART), *_applying(sets)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(),
            cwd=REPOSITORY,
        )

    def begin_rollback(self) -> subprocess.Popen[str]:
        """Back to the revision before, in a process of its own."""
        return subprocess.Popen(
            (*self._command("rollback", NAME), "--wait", "--timeout=280s"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment(),
            cwd=REPOSITORY,
        )

    def run(self, *words: str) -> str:
        """Any other command of Helm.

        Raises:
            Refused: with Helm's message.
        """
        done = subprocess.run(
            self._command(*words),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=self._environment(),
            cwd=REPOSITORY,
        )
        if done.returncode:
            raise Refused(done.stderr + done.stdout)
        return done.stdout

    def uninstall(self) -> str:
        """Uninstall and wait until the objects are gone; a release that is not there is as good."""
        return self.run("uninstall", NAME, "--wait", "--timeout=280s", "--ignore-not-found")

    def _command(self, *words: str) -> tuple[str, ...]:
        config = parts.kubeconfig(self._cluster.root, parts.ADMIN)
        return (
            str(self._cluster.programs / "helm"),
            *words,
            *("--namespace", NAMESPACE, "--kubeconfig", str(config)),
        )

    def _environment(self) -> dict[str, str]:
        """Helm's own files are the cluster's, too."""
        folder = self._cluster.root / "helm"
        kinds = ("CACHE", "CONFIG", "DATA")
        return os.environ | {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in kinds}


def _applying(sets: tuple[str, ...]) -> tuple[str, ...]:
    file = NODE_DIR / "values.json"
    file.write_text(json.dumps(VALUES))
    return (
        *("--values", str(file), "--wait", "--timeout=280s"),
        *(word for one in sets for word in ("--set", one)),
        *("--post-renderer", sys.executable),
        *("--post-renderer-args", "-m", "--post-renderer-args", "tests.e2e.chart_patches"),
    )


def remove_kustomization(cluster: Cluster) -> None:
    """Delete what the overlay applied, but for the namespace, as who changes to the chart does."""
    found: list[Json] = [
        one for one in yaml.safe_load_all(cluster.kubectl("kustomize", str(OVERLAY))) if one
    ]
    ours = [one for one in found if one["kind"] != "Namespace"]
    text = yaml.safe_dump_all(ours)
    cluster.kubectl("delete", "--ignore-not-found", "--wait", "-f", "-", stdin=text)
