"""The daemon as it is installed: its DaemonSet, its process, its logs, metrics and token."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml

from hami_node.vendors.nvidia.names import RESOURCE_GPU
from tests.e2e import parts
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.assets import IMAGE
from tests.e2e.cards import COUNT, SPLIT
from tests.e2e.cluster import Cluster
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pages import get_page
from tests.e2e.waiting import eventually

NAMESPACE: Final = "hami-system"
NAME: Final = "hami-node"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{NAME}"
CONFIG_MAP: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/hami-node-config"
OVERLAY: Final = Path(__file__).parent / "overlay"
_SET: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{NAME}"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"


class Daemon:
    """One installation on the only node."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster, self.api = cluster, api

    def install(self) -> None:
        """Label the node, apply the manifests and wait until the daemon is ready."""
        labels = {"hami-node.io/serve": "true"}
        self.api.patch(f"/api/v1/nodes/{parts.NODE}", {"metadata": {"labels": labels}})
        self.cluster.kubectl("apply", "-k", str(OVERLAY))
        self.wait_ready()

    def pod(self) -> Json:
        """The daemon's pod, one that is not going away.

        Raises:
            AssertionError: there is none, or more than one.
        """
        pods = [
            p
            for p in self.api.read(_PODS)["items"]
            if "deletionTimestamp" not in p["metadata"]
            and p["metadata"].get("ownerReferences", [{}])[0].get("kind") == "DaemonSet"
        ]
        assert len(pods) == 1, f"{len(pods)} pods of the daemon"
        found: Json = pods[0]
        return found

    def wait_ready(self) -> None:
        """Wait until the pod of the newest generation is Ready."""

        def probe() -> bool:
            wanted = self.api.read(_SET)
            status = wanted["status"]
            assert status.get("observedGeneration") == wanted["metadata"]["generation"], status
            assert status.get("updatedNumberScheduled") == 1, status
            assert status.get("numberReady") == 1, status
            return bool(self._container()["ready"])

        eventually("the daemon is ready", probe)

    def wait_offered(self, slices: int = COUNT * SPLIT) -> None:
        """Wait until kubelet hands out so many slices, and the node object, which lags, says so."""

        def probe() -> bool:
            found = (healthy_slices().total(), self.allocatable(RESOURCE_GPU))
            assert found == (slices, slices), found
            return True

        eventually(f"{slices} slices are offered", probe)

    def restarts(self) -> int:
        """How often kubelet has started the daemon's container again."""
        return int(self._container()["restartCount"])

    def pid(self) -> int:
        """The daemon's process on this machine.

        Raises:
            AssertionError: its container does not run.
        """
        wanted = str(self._container().get("containerID")).removeprefix("containerd://")
        for line in self.cluster.ctr("tasks", "list").splitlines():
            words = line.split()
            if words[0] == wanted and words[2] == "RUNNING":
                return int(words[1])
        raise AssertionError(f"container {wanted} does not run")

    def signal(self, number: int) -> None:
        """Send the process a signal; what the API server says of it may be late."""

        def probe() -> bool:
            os.kill(self.pid(), number)
            return True

        eventually(f"the daemon is sent {number}", probe)

    def kill(self) -> None:
        """End the process at once; kubelet starts it again."""
        self.signal(signal.SIGKILL)

    def forget_crashes(self) -> None:
        """Replace the pod: kubelet's back-off for crashed containers starts from nothing."""
        before = self.pod()["metadata"]
        self.api.delete(f"{_PODS}/{before['name']}", grace_s=5)
        eventually("a new pod", lambda: self.pod()["metadata"]["uid"] != before["uid"])
        self.wait_ready()

    def run_image(self, image: str) -> None:
        """Change the image, as an upgrade does, and wait until the new pod is ready."""
        container = {"name": self._container()["name"], "image": image}
        self.cluster.kubectl(
            *("-n", NAMESPACE, "set", "image", f"daemonset/{NAME}"),
            f"{container['name']}={container['image']}",
        )
        self.wait_ready()

    def run_changed(self, change: Callable[[Json], None], *, is_ready: bool = True) -> None:
        """Go on with the pod's spec changed so; `restore` undoes it.

        `is_ready`: wait until the daemon is ready; else only until it is about to start.
        """
        rendered = self.cluster.kubectl("kustomize", str(OVERLAY))
        before = self.pod()["metadata"]["uid"]
        for found in yaml.safe_load_all(rendered):
            if found["kind"] == "DaemonSet":
                pod = found["spec"]["template"]["spec"]
                change(pod)
                self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(found))
        if is_ready:
            self.wait_ready()
        else:
            eventually("a new pod", lambda: self.pod()["metadata"]["uid"] != before)

    def restore(self) -> None:
        """Go back to what the overlay says."""
        self.install()
        assert self.pod()["spec"]["containers"][0]["image"] == IMAGE

    def log(self, lines: int = 200) -> str:
        """The ends of the logs of this and the container before."""
        try:
            path = f"{_PODS}/{self.pod()['metadata']['name']}/log"
        except (AssertionError, ApiError) as error:
            return f"no log: {error}"
        texts = []
        for previous in ("true", "false"):
            try:
                texts.append(self.api.text(path, previous=previous, tailLines=str(lines)))
            except ApiError as error:
                texts.append(f"(no log with previous={previous}: {error.status})\n")
        return "-- the one before --\n" + "-- now --\n".join(texts)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics; the sum over all that carry those labels.

        Raises:
            AssertionError: there is no such metric.
        """
        samples = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", self.get("/metrics"), re.MULTILINE)
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        found = [float(v) for text, v in samples if wanted <= set(re.findall(r'\w+="[^"]*"', text))]
        assert found, f"no sample of {name} with {labels}"
        return sum(found)

    def get(self, path: str) -> str:
        """What the daemon's own HTTP server answers."""
        answer = get_page(f"http://{self.address()}:9394{path}")
        answer.raise_for_status()
        return answer.text

    def readiness(self) -> str:
        """What /readyz answers, ready or not."""
        return get_page(f"http://{self.address()}:9396/readyz").text

    def address(self) -> str:
        """Its pod's address.

        Raises:
            AssertionError: it has none yet.
        """
        address = self.pod()["status"].get("podIP")
        assert address, "the daemon's pod has no address yet"
        return str(address)

    def token(self, pod: Json | None = None) -> str:
        """A token of the daemon's service account, bound to its pod as the mounted one is."""
        meta = (pod or self.pod())["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
        answer = self.api.create(path, {"spec": {"audiences": [], "boundObjectRef": bound}})
        return str(answer["status"]["token"])

    def node(self) -> Json:
        """The node now."""
        return self.api.read(f"/api/v1/nodes/{parts.NODE}")

    def annotations(self) -> dict[str, str]:
        """The node's annotations now."""
        found: dict[str, str] = self.node()["metadata"].get("annotations", {})
        return found

    def allocatable(self, resource: str) -> int:
        """What the node offers of a resource now."""
        return int(self.node()["status"]["allocatable"].get(resource, "0"))

    def _container(self) -> Json:
        statuses: list[Json] = self.pod()["status"].get("containerStatuses", [])
        assert statuses, "the daemon's container has no status yet"
        return statuses[0]
