"""The scheduler as it is installed: extender, webhook, kube-scheduler, certificate."""

from __future__ import annotations

import base64
import os
import re
import shutil
import signal
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import yaml

from hami_node.vendors.nvidia.names import RESOURCE_GPU
from tests.e2e import archive
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.assets import KUBERNETES
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE
from tests.e2e.pages import get_page
from tests.e2e.waiting import eventually

NAME: Final = "hami-node-extender"
SCHEDULER: Final = "hami-scheduler"
"""What stands in a pod that the webhook has reviewed."""
_SCHEDULER: Final = "hami-node-scheduler"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{NAME}"
OVERLAY: Final = Path(__file__).parent / "overlay_extender"
DEFAULT: Final = "default-scheduler"
"""What stands in a pod whose maker named no scheduler."""
_IMAGE: Final = "localhost/kube-scheduler:e2e"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
_LEASE: Final = f"{_LEASES}/{NAME}"
_SCHEDULER_LEASE: Final = f"{_LEASES}/{_SCHEDULER}"
_SLICE: Final = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/hami-node-leader"
_CALLER: Final = f"{_SCHEDULER}-client-tls"
_CONFIG: Final = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{_SCHEDULER}"
_DEPLOYMENTS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


class Extender:
    """Two replicas of the extender and a kube-scheduler that asks them."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster, self.api = cluster, api

    def install(self) -> None:
        """Apply the manifests and wait until somebody leads and is reachable."""
        self.import_scheduler()
        self.cluster.kubectl("apply", "-k", str(OVERLAY))
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until one replica leads and is Ready, and kube-scheduler runs."""
        eventually("the extender leads", lambda: self.leader() and self._is_served())
        eventually("kube-scheduler runs", self._is_scheduling)
        eventually("kube-proxy leads to the webhook", self._is_reviewing)

    def wait_for_settings(self, word: str, *, is_there: bool = True) -> None:
        """Wait until every replica's settings in force have that word, or no longer have it.

        They start anew for it, and for a second nobody answers the webhook.
        """

        def are_in_force() -> bool:
            found = self.pods()
            late = [pod for pod in found if _has_setting(pod, word) is not is_there]
            for pod in late:
                self._touch(pod)
            return bool(found) and not late

        what = f"the extender's settings have {word}: {is_there}"
        eventually(what, are_in_force, every_s=1)
        self.wait_ready()

    def _touch(self, pod: Json) -> None:
        """Change the pod a little: kubelet copies a changed ConfigMap when it looks at a pod."""
        annotations = {"e2e.hami-node/touched": str(time.monotonic())}
        path = f"{_PODS}/{pod['metadata']['name']}"
        self.api.patch(path, {"metadata": {"annotations": annotations}})

    def replace(self) -> None:
        """Let new pods take the place of all replicas: they start with the settings as they are.

        By itself the leader starts anew 15 s after the others.
        """
        for pod in self.pods():
            self.api.delete(f"{_PODS}/{pod['metadata']['name']}")

    def leader(self) -> Json | None:
        """The pod that holds the Lease and decides; None while there is none."""
        holder = self.holder()
        for pod in self.pods():
            if pod["metadata"]["name"] == holder and _is_ready(pod) and _is_leading(pod):
                return pod
        return None

    def wait_leader(self) -> Json:
        """The same, once there is one."""
        found = eventually("somebody leads", self.leader)
        assert found is not None
        return found

    def holder(self) -> str:
        """Who holds the Lease; empty for nobody."""
        try:
            return str(self.api.read(_LEASE)["spec"].get("holderIdentity") or "")
        except ApiError as error:
            if error.status != 404:
                raise
            return ""

    def pods(self) -> list[Json]:
        """The replicas that are not going away."""
        found = self.api.read(_PODS, labelSelector=f"app={NAME}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def leading(self) -> str:
        """The leader's container, which is another one after a restart; "" while there is none."""
        pod = self.leader()
        return _container(pod) if pod is not None else ""

    def kill_leader(self) -> str:
        """End the leader's process at once, as a crash does; its container."""

        def probe() -> str:
            wanted = _container(self.wait_leader())
            for line in self.cluster.ctr("tasks", "list").splitlines():
                words = line.split()
                if words[0] == wanted and words[2] == "RUNNING":
                    os.kill(int(words[1]), signal.SIGKILL)
                    return wanted
            raise AssertionError(f"container {wanted} does not run")

        return eventually("the leader is killed", probe)

    def delete_leader(self) -> str:
        """Delete the leader's pod, as a drain does; its container."""
        pod = self.wait_leader()
        self.api.delete(f"{_PODS}/{pod['metadata']['name']}")
        return _container(pod)

    def call(self, path: str, body: Json) -> httpx.Response:
        """Ask the leader itself, as kube-scheduler does, with its certificate."""
        pod = self.wait_leader()
        address = pod["status"]["podIP"]
        context = self.caller_context()
        return httpx.post(f"https://{address}:8443{path}", json=body, timeout=60, verify=context)

    def caller_context(self, *, shows_certificate: bool = True) -> ssl.SSLContext:
        """What kube-scheduler trusts and shows; the certificate names the Service, not a pod."""
        data = self.api.read(f"/api/v1/namespaces/{NAMESPACE}/secrets/{_CALLER}")["data"]
        folder = self.cluster.root / "caller"
        folder.mkdir(exist_ok=True)
        for key, value in data.items():
            (folder / key).write_bytes(base64.b64decode(value))
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.check_hostname = False
        if shows_certificate:
            context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        return context

    def slots_used(self) -> int:
        """How many slots of all cards are taken or reserved, as the leader counts."""
        pod = self.wait_leader()
        page = get_page(f"http://{pod['status']['podIP']}:9395/metrics").text
        used = re.findall(r"^hami_node_extender_card_slots_used{.*} (\S+)$", page, re.MULTILINE)
        return int(sum(map(float, used)))

    @contextmanager
    def plugin_of_scheduler(self, name: str) -> Iterator[None]:
        """kube-scheduler with one more plugin that is compiled into it; as before afterwards."""
        before = self.api.read(_CONFIG)["data"]["config.yaml"]
        config = yaml.safe_load(before)
        config["profiles"][0]["plugins"] = {"multiPoint": {"enabled": [{"name": name}]}}
        self._configure_scheduler(yaml.safe_dump(config))
        yield
        self._configure_scheduler(before)

    def _configure_scheduler(self, text: str) -> None:
        self.api.patch(_CONFIG, {"data": {"config.yaml": text}})
        former = {pod["metadata"]["name"] for pod in self._schedulers()}
        for name in former:
            self.api.delete(f"{_PODS}/{name}")

        def is_led_anew() -> bool:
            holder = str(self.api.read(_SCHEDULER_LEASE)["spec"].get("holderIdentity") or "")
            return holder.rpartition("_")[0] not in {"", *former} and self._is_scheduling()

        eventually("kube-scheduler runs with its new configuration", is_led_anew)

    def log(self, lines: int = 100) -> str:
        """The ends of the replicas' and kube-scheduler's logs."""
        texts = []
        for pod in self.pods() + self._schedulers():
            name = pod["metadata"]["name"]
            try:
                texts.append(
                    f"-- {name}\n" + self.api.text(f"{_PODS}/{name}/log", tailLines=str(lines))
                )
            except ApiError as error:
                texts.append(f"-- {name}: {error}\n")
        return "\n".join(texts)

    def import_scheduler(self) -> None:
        """An image of the cluster's own kube-scheduler program."""
        root, tar = self.cluster.root / "scheduler-root", self.cluster.root / "scheduler.tar"
        shutil.rmtree(root, ignore_errors=True)
        for sub in ("usr/local/bin", "tmp", "etc", "proc", "sys", "dev"):
            (root / sub).mkdir(parents=True)
        shutil.copy(KUBERNETES / "kube-scheduler", root / "usr/local/bin")
        archive.write_image(tar, _IMAGE, root, ())
        self.cluster.import_image(tar)
        shutil.rmtree(root)

    def _schedulers(self) -> list[Json]:
        found: list[Json] = self.api.read(_PODS, labelSelector=f"app={_SCHEDULER}")["items"]
        return found

    def _is_served(self) -> bool:
        endpoints = self.api.read(_SLICE).get("endpoints") or []
        leader = self.leader()
        served = [address for endpoint in endpoints for address in endpoint["addresses"]]
        return leader is not None and served == [leader["status"]["podIP"]]

    def _is_scheduling(self) -> bool:
        status = self.api.read(f"{_DEPLOYMENTS}/{_SCHEDULER}")["status"]
        return bool(status.get("readyReplicas")) and bool(
            self.api.read(_SCHEDULER_LEASE)["spec"].get("holderIdentity")
        )

    def _is_reviewing(self) -> bool:
        box = {"name": "c0", "image": "none", "resources": {"limits": {RESOURCE_GPU: "1"}}}
        pod = {"metadata": {"name": "never-made"}, "spec": {"containers": [box]}}
        try:
            self.api.create("/api/v1/namespaces/default/pods?dryRun=All", pod)
        except ApiError as error:
            if "webhook" not in error.message:
                raise
            return False
        return True


def _container(pod: Json) -> str:
    found = str(pod["status"]["containerStatuses"][0]["containerID"])
    return found.removeprefix("containerd://")


def _has_setting(pod: Json, word: str) -> bool | None:
    """Whether a replica's settings in force have that word; None while it does not answer."""
    try:
        answer = get_page(f"http://{pod['status'].get('podIP')}:9395/config")
        return word in answer.raise_for_status().text
    except httpx.HTTPError:
        return None


def _is_leading(pod: Json) -> bool:
    """By its own word: a restarted container bears the name that is in the Lease."""
    try:
        page = get_page(f"http://{pod['status']['podIP']}:9395/metrics").text
    except httpx.HTTPError:
        return False
    return "\nhami_node_extender_leading 1" in page


def _is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
