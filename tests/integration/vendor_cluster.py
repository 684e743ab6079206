"""A cluster with the real daemon and extender of any vendors; kube-scheduler is played."""

from __future__ import annotations

import base64
import json
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
from prometheus_client.exposition import generate_latest

from hami_node.config.sources import ConfigSources
from hami_node.extender.service import Extender
from hami_node.inspection.cluster import inspect
from hami_node.inspection.views import ClusterView
from hami_node.model import Pod
from hami_node.node.daemon import Daemon
from hami_node.setting_types import Role
from hami_node.simulate.kube_scheduler import bind_arguments, filter_arguments, review_of
from hami_node.simulate.patches import json_patch
from hami_node.vendors.spec import AnyVendor, protocols_of
from hami_node.wire.objects import decode_node, decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.faulty_kubelet import FaultyKubelet
from tests.fakes.settings import load
from tests.fakes.waiting import eventually

Json = dict[str, Any]
LIMIT_S: Final = 15.0


class VendorCluster:
    """One API server, kubelet, the extender, and a daemon on one of the nodes."""

    def __init__(self, vendors: tuple[AnyVendor, ...]) -> None:
        # Short, for a unix socket's path has at most 107 characters.
        self.root = Path(tempfile.mkdtemp(prefix="hv-"))
        self.vendors = vendors
        self.config: Path | None = None
        """The `device-config.yaml` of both programs."""
        self.kubelet = FaultyKubelet(self.root / "plugins", self.root / "pr" / "kubelet.sock")
        self.api = FaultyApiServer()
        self.url = ""
        self._ends = ExitStack()
        self.daemon: Daemon | None = None
        self.extender: Extender | None = None

    def start(self) -> None:
        """The API server, kubelet and the extender; daemons start by `start_daemon`."""
        self._ends.callback(shutil.rmtree, self.root)
        self.kubelet.start()
        self._ends.callback(self.kubelet.stop)
        self.api.start()
        self._ends.callback(self.api.stop)
        sources = self._sources({"http_bind": "127.0.0.1:0"}, Role.EXTENDER)
        self.extender = extender = Extender(load(sources), sources, self.vendors)
        extender.start()
        runner = threading.Thread(target=extender.wait, daemon=True)
        runner.start()
        self._ends.callback(runner.join, 30.0)
        self._ends.callback(extender.stop.set)
        eventually(extender.parts.readiness.is_leading, LIMIT_S)
        self.url = f"http://127.0.0.1:{extender.parts.server.port}"

    def close(self) -> None:
        self._ends.close()

    def _sources(self, flags: Mapping[str, str], role: Role) -> ConfigSources:
        kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        shared = {"kubeconfig": str(kubeconfig), "metrics_address": "off"}
        return ConfigSources(
            blocks=tuple(vendor.settings for vendor in self.vendors),
            flags={**flags, **shared},
            config_file=self.config,
            role=role,
        )

    # -- nodes -------------------------------------------------------------------------------------
    def await_node(self, name: str, devices: int) -> None:
        """The extender knows so many devices of the node."""
        assert self.extender is not None
        state = self.extender.parts.state
        eventually(lambda: len(state.cards_of(name)) == devices, LIMIT_S)

    def start_daemon(self, node: str, **flags: str) -> None:
        """A daemon on that node, whose simulated cards are in `gpus.yaml`."""
        given = {
            "node_name": node,
            "backend": "simulated",
            "simulated_file": str(self.root / "gpus.yaml"),
            "plugin_dir": str(self.root / "plugins"),
            "pod_resources_socket": str(self.root / "pr" / "kubelet.sock"),
            "hook_path": str(self.root),
            "record_dir": str(self.root / "record"),
        }
        sources = self._sources(given | flags, Role.DAEMON)
        self.daemon = daemon = Daemon(load(sources), sources, self.vendors)
        daemon.start()
        self._ends.callback(daemon.wait)
        self._ends.callback(daemon.stop.set)

    def notes_of(self, node: str) -> dict[str, str]:
        return dict(self.api.read("nodes", node)["metadata"].get("annotations") or {})

    def metrics(self) -> str:
        """What the daemon shows to Prometheus."""
        assert self.daemon is not None
        assert self.daemon.cluster is not None
        return generate_latest(self.daemon.metrics.registry).decode()

    def view(self) -> ClusterView:
        """What `inspect` makes of all nodes and pods."""
        assert self.daemon is not None
        nodes = [decode_node(body) for body in self.api.list("nodes")]
        pods = [decode_pod(body) for body in self.api.list("pods")]
        return inspect(nodes, pods, protocols_of(self.vendors, self.daemon.settings()), 0.0)

    # -- pods --------------------------------------------------------------------------------------
    def review(self, body: Json) -> Json:
        """Create a pod through the webhook, unless that denies it; the webhook's answer."""
        body = {"status": {"phase": "Pending"}, **body}
        body["metadata"] = {"namespace": "default", **body["metadata"]}
        answer: Json = self._post("webhook", review_of(body))["response"]
        if answer["allowed"]:
            patch = json.loads(base64.b64decode(answer["patch"])) if "patch" in answer else []
            self.api.create("pods", json_patch(body, patch))
        return answer

    def filter(self, name: str, *nodes: str) -> Json:
        pod = self.api.read("pods", name, "default")
        return self._post("filter", filter_arguments(pod, nodes))

    def bind(self, name: str, node: str) -> str:
        pod = self.api.read("pods", name, "default")
        return str(self._post("bind", bind_arguments(pod, node))["Error"])

    def _post(self, call: str, arguments: Json) -> Json:
        return dict(httpx.post(f"{self.url}/{call}", json=arguments).json())

    def set_phase(self, name: str, phase: str) -> None:
        self.api.edit("pods", name, lambda pod: pod["status"].update(phase=phase), "default")

    def pod(self, name: str) -> Pod:
        return decode_pod(self.api.read("pods", name, "default"))
