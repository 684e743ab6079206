"""Which of the cluster's workloads give out cards or schedule them, and whose they are. Pure.

A device plugin is told by what it can't do without, kubelet's folder for plugins, and only then by
labels and images: anyone may label a workload of a namespace of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.cluster.objects import DaemonSet, Deployment, Workload

PLUGINS_FOLDER: Final = "device-plugins"
"""The last part of kubelet's folder for device plugins, wherever kubelet's root is."""
OWN_LABEL: Final = "hami-node.io/serve"
"""Starts us on a node always (true) or never (false)."""
OPERATOR_PLUGIN_LABEL: Final = "nvidia.com/gpu.deploy.device-plugin"
CARD_LABELS: Final[Mapping[str, str]] = {
    "nvidia.com/gpu.present": "true",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "feature.node.kubernetes.io/pci-0302_10de.present": "true",
    "feature.node.kubernetes.io/pci-0300_10de.present": "true",
    "gpu": "on",
}
"""Labels of which each says that a node has NVIDIA cards."""
_NAME: Final = "app.kubernetes.io/name"
_COMPONENT: Final = "app.kubernetes.io/component"


class Maker(StrEnum):
    """Whose program it is."""

    OURS = "hami-node"
    HAMI = "HAMi"
    OPERATOR = "GPU Operator"
    NVIDIA = "NVIDIA's plugin"
    OTHER = "another plugin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A workload with its maker."""

    maker: Maker
    workload: Workload

    @property
    def release(self) -> str:
        """`namespace/name` of its Helm release; "" for none that is known."""
        work = self.workload
        instance = work.labels.get("app.kubernetes.io/instance", "")
        is_helms = work.labels.get("app.kubernetes.io/managed-by") == "Helm"
        return work.release or (f"{work.namespace}/{instance}" if instance and is_helms else "")

    @property
    def version(self) -> str:
        """By the chart's label, else by the program's label, else by the image's tag."""
        labels = self.workload.labels
        chart = labels.get("helm.sh/chart", "").rpartition("-")[2]
        tags = [image_tag(image) for image in self.workload.images]
        found = chart or labels.get("app.kubernetes.io/version", "") or next(iter(tags), "")
        return found.removeprefix("v")

    @property
    def running(self) -> str:
        """The version that runs, by the image's tag; "" where there is none."""
        return image_tag(self.workload.images[0]).removeprefix("v") if self.workload.images else ""


def image_tag(image: str) -> str:
    """The tag of an image; "" for none, as where only a digest is given."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def image_name(image: str) -> str:
    """The last part of an image's name, without registry and tag."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def is_plugin(one: Workload) -> bool:
    """Whether it registers device plugins with kubelet."""
    return any(path.rstrip("/").endswith(PLUGINS_FOLDER) for path in one.host_paths)


def plugins_in(sets: Iterable[DaemonSet]) -> tuple[Part, ...]:
    """Every DaemonSet that registers device plugins and may give out NVIDIA's cards."""
    found = (Part(maker=maker_of(one), workload=one) for one in sets if is_plugin(one))
    return tuple(sorted(found, key=lambda part: (part.maker, part.workload.key)))


def maker_of(one: Workload) -> Maker:
    """Whose plugin it is: by labels and images, and at last by its name and where images are."""
    images = {image_name(image) for image in one.images}
    if one.labels.get(_COMPONENT) == "hami-device-plugin" or "hami" in images:
        return Maker.HAMI
    if _is_ours(one):
        return Maker.OURS
    if one.owner == "ClusterPolicy" or one.labels.get("app") == "nvidia-device-plugin-daemonset":
        return Maker.OPERATOR
    said = " ".join((one.name, *one.images)).lower()
    if one.labels.get(_NAME) == "nvidia-device-plugin" or "nvidia" in said:
        return Maker.NVIDIA
    if "hami" in said:
        return Maker.HAMI
    # a mirror may leave NVIDIA's name out; AMD's image is rocm/k8s-device-plugin
    is_nvidias = "k8s-device-plugin" in images and "rocm" not in said
    return Maker.NVIDIA if is_nvidias else Maker.OTHER


def _is_ours(one: Workload) -> bool:
    by_image = any(image_name(image) == "hami-node" for image in one.images)
    return by_image or one.labels.get(_NAME) == "hami-node"


def schedulers_in(deployments: Iterable[Deployment], plugins: Iterable[Part]) -> tuple[Part, ...]:
    """HAMi's Deployments and ours: extenders and their kube-schedulers.

    They are in the namespace of their plugin, where there is one: a Deployment elsewhere that calls
    itself so is a tenant's.
    """
    spaces: dict[Maker, set[str]] = {}
    for part in plugins:
        spaces.setdefault(part.maker, set()).add(part.workload.namespace)
    found = [
        Part(maker=maker, workload=one)
        for one in deployments
        if (maker := _maker_of_scheduler(one)) is not None
        and one.namespace in spaces.get(maker, {one.namespace})
    ]
    return tuple(sorted(found, key=lambda part: (part.maker, part.workload.key)))


def _maker_of_scheduler(one: Workload) -> Maker | None:
    images = {image_name(image) for image in one.images}
    if one.labels.get(_COMPONENT) == "hami-scheduler" or "hami" in images:
        return Maker.HAMI
    return Maker.OURS if _is_ours(one) else None


def has_cards(labels: Mapping[str, str]) -> bool:
    """Whether a node's labels say that it has NVIDIA cards, or that we are to serve it."""
    if labels.get(OWN_LABEL) == "true":
        return True
    return any(labels.get(key) == value for key, value in CARD_LABELS.items())
