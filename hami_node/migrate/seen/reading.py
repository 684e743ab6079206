"""Lists what a migration looks at, and only reads.

A right that is missing, or an API group that the cluster does not have, leaves a gap in the
picture, which is shown; an API server that can't be reached ends the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hami_node.cluster.objects import (
    ConfigMap,
    DaemonSet,
    Deployment,
    EndpointSlice,
    Lease,
    Object,
    Pod,
    Webhook,
    WebhookConfiguration,
    Workload,
)
from hami_node.cluster.paths import CORE, LEASES, segment
from hami_node.cluster.reading import Gap, Reader, Seen
from hami_node.migrate.seen.parts import Maker, Part, plugins_in, schedulers_in
from hami_node.migrate.seen.plain import Json, inside, text
from hami_node.model import Node
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.objects import decode_node

T = TypeVar("T")

MAX_CONFIG_MAPS: Final = 20
"""Of one workload: each is a request."""
_APPS: Final = "/apis/apps/v1"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_SLICES: Final = "/apis/discovery.k8s.io/v1"
_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
_POLICIES: Final = "/apis/nvidia.com/v1/clusterpolicies"
_OWN_NAMESPACE: Final = "hami-system"
_CARD_RESOURCES: Final = "nvidia.com/"
_BY_HAND: Final = frozenset({"kubectl-edit", "kubectl-patch", "kubectl-replace"})
"""Writers of fields, as the API server notes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Something that could not be read, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A webhook, with its place among those of its configuration."""

    configuration: WebhookConfiguration
    position: int
    webhook: Webhook

    @property
    def is_about_cards(self) -> bool:
        """Whether it is HAMi's webhook or ours, by the name that both have."""
        return self.webhook.name == "vgpu.hami.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class HelmRevision:
    """A revision of a Helm release, by its Secret's labels."""

    namespace: str
    name: str
    revision: str
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What was read.

    Attributes:
        backends: ready addresses behind a Service, by `namespace/name`.
        configs: data of the ConfigMaps that the found parts mount, by `namespace/name`.
        policy: the GPU Operator's ClusterPolicy; None without one.
        edited: those of them that somebody has changed by hand.
        named: objects of which only the name and the maker matter, by kind.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    plugins: tuple[Part, ...] = ()
    schedulers: tuple[Part, ...] = ()
    mig_managers: tuple[Workload, ...] = ()
    webhooks: tuple[Hook, ...] = ()
    leases: tuple[Lease, ...] = ()
    classes: tuple[Object, ...] = ()
    named: Mapping[str, tuple[Object, ...]] = field(default_factory=dict)
    backends: Mapping[str, int] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    edited: tuple[str, ...] = ()
    revisions: tuple[HelmRevision, ...] = ()
    policy: Json | None = None
    gaps: tuple[Unread, ...] = ()
    now_s: float = 0


class _Reader:
    """Reads kinds one after the other, and collects gaps."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.gaps: list[Unread] = []

    def every(
        self,
        what: str,
        path: str,
        kind: type[T],
        *,
        labels: str = "",
        keeps: Callable[[T], bool] = lambda _: True,
        is_needed: bool = False,
    ) -> tuple[T, ...]:
        """All objects of a list; a gap where it can't be read to its end.

        Raises:
            KubeError: the API server can't be reached, or fails, or refuses what is needed.
        """
        seen = self.reader.every(path, kind, labels=labels, keeps=keeps)
        return self.taken(what, seen, is_needed=is_needed)

    def taken(self, what: str, seen: Seen[T], *, is_needed: bool = False) -> tuple[T, ...]:
        """What was read of a list. Raises KubeError as `every`."""
        if seen.gap is not None:
            self._note(what, seen.gap, is_needed=is_needed)
        return seen.items

    def nodes(self) -> tuple[Node, ...]:
        """All nodes. Raises KubeError as `every`."""
        return self.taken(
            "nodes", self.reader.decoded(f"{CORE}/nodes", decode_node), is_needed=True
        )

    def one(self, what: str, path: str, kind: type[T]) -> T | None:
        """One object; None, and a gap, where it can't be read. Raises KubeError as `every`."""
        found = self.reader.one(path, kind)
        if isinstance(found, Gap):
            self._note(what, found)
            return None
        return found

    def _note(self, what: str, gap: Gap, *, is_needed: bool = False) -> None:
        if gap.error is not None and (is_needed or gap.is_outage):
            raise gap.error
        self.gaps.append(Unread(what=what, why=gap.why))


def read_cluster(kube: Reader, now_s: float) -> Listed:
    """List everything.

    Raises:
        KubeError: the API server can't be reached, or fails; or it refuses nodes or workloads:
            without them HAMi's plugin would look as if it were not there.
    """
    reader = _Reader(kube)
    nodes = reader.nodes()
    sets = reader.every("daemonsets", f"{_APPS}/daemonsets", DaemonSet, is_needed=True)
    deployments = reader.every("deployments", f"{_APPS}/deployments", Deployment, is_needed=True)
    plugins = plugins_in(sets)
    schedulers = schedulers_in(deployments, plugins)
    hooks = _webhooks(reader)
    maps = _config_maps(reader, (*plugins, *schedulers))
    configs = {key: found.data or {} for key, found in maps.items()}
    spaces = sorted(_namespaces((*plugins, *schedulers)) | {_OWN_NAMESPACE})
    return Listed(
        nodes=nodes,
        plugins=plugins,
        schedulers=schedulers,
        mig_managers=tuple(one for one in sets if one.labels.get("app") == "nvidia-mig-manager"),
        webhooks=hooks,
        configs=configs,
        edited=tuple(key for key, found in maps.items() if _is_edited(found)),
        leases=tuple(
            lease
            for space in spaces
            for lease in reader.every(
                f"leases of {space}", f"{LEASES}/namespaces/{segment(space)}/leases", Lease
            )
        ),
        classes=reader.every("runtimeclasses", _CLASSES, Object),
        named=_named(reader),
        backends=_backends(reader, hooks),
        policy=_policy(reader),
        revisions=_revisions(reader, plugins),
        pods=_pods(reader, plugins, configs),
        gaps=tuple(reader.gaps),
        now_s=now_s,
    )


def _namespaces(parts: Iterable[Part]) -> set[str]:
    wanted = (Maker.OURS, Maker.HAMI)
    return {part.workload.namespace for part in parts if part.maker in wanted}


def _is_edited(found: ConfigMap) -> bool:
    """Whether somebody has changed it in the cluster by hand, as with `kubectl edit`."""
    return any(one.manager in _BY_HAND for one in found.metadata.managed_fields or ())


def _webhooks(reader: _Reader) -> tuple[Hook, ...]:
    path = f"{_ADMISSION}/mutatingwebhookconfigurations"
    return tuple(
        Hook(configuration=found, position=position, webhook=webhook)
        for found in reader.every("mutatingwebhookconfigurations", path, WebhookConfiguration)
        for position, webhook in enumerate(found.webhooks or ())
    )


def _config_maps(reader: _Reader, parts: Iterable[Part]) -> Mapping[str, ConfigMap]:
    """The ConfigMaps that HAMi's parts and ours mount, and the configuration of NVIDIA's plugin."""
    found: dict[str, ConfigMap] = {}
    for part in parts:
        if part.maker is Maker.OTHER:
            continue
        for name in part.workload.config_maps[:MAX_CONFIG_MAPS]:
            key = f"{part.workload.namespace}/{name}"
            path = (
                f"{CORE}/namespaces/{segment(part.workload.namespace)}/configmaps/{segment(name)}"
            )
            if key not in found and (one := reader.one(f"configmap {key}", path, ConfigMap)):
                found[key] = one
    return found


def _named(reader: _Reader) -> Mapping[str, tuple[Object, ...]]:
    """Objects that an installation of ours could collide with, by kind."""
    paths = {
        "ClusterRoleBinding": f"{_RBAC}/clusterrolebindings",
        "ServiceAccount": f"{CORE}/namespaces/{_OWN_NAMESPACE}/serviceaccounts",
        "Service": f"{CORE}/namespaces/{_OWN_NAMESPACE}/services",
    }
    return {kind: reader.every(f"{kind.lower()}s", path, Object) for kind, path in paths.items()}


def _backends(reader: _Reader, hooks: Iterable[Hook]) -> Mapping[str, int]:
    """The ready addresses behind the webhooks that are about cards."""
    found: dict[str, int] = {}
    for service in dict.fromkeys(hook.webhook.service for hook in hooks if hook.is_about_cards):
        namespace, _, name = service.partition("/")
        if not name:
            continue
        before = len(reader.gaps)
        slices = reader.every(
            f"endpointslices of {namespace}",
            f"{_SLICES}/namespaces/{segment(namespace)}/endpointslices",
            EndpointSlice,
            labels=f"kubernetes.io/service-name={name}",
        )
        if len(reader.gaps) == before:
            found[service] = sum(end.is_ready for one in slices for end in one.endpoints or ())
    return found


def _policy(reader: _Reader) -> Json | None:
    """The GPU Operator's settings; without the operator the cluster does not know the kind."""
    seen = reader.reader.every(_POLICIES, dict[str, object])
    if seen.gap is not None and seen.gap.is_absent:
        return None
    return next(iter(reader.taken("clusterpolicies", seen)), None)


def _revisions(reader: _Reader, plugins: Iterable[Part]) -> tuple[HelmRevision, ...]:
    """Helm's Secrets of HAMi's releases; only their labels are looked at."""
    found: list[HelmRevision] = []
    for release in sorted({p.release for p in plugins if p.maker is Maker.HAMI and p.release}):
        namespace, _, name = release.partition("/")
        secrets = reader.every(
            f"Helm's secrets of {release}",
            f"{CORE}/namespaces/{segment(namespace)}/secrets",
            Object,
            labels=f"owner=helm,name={name}",
        )
        found += [
            HelmRevision(
                namespace=namespace,
                name=name,
                revision=one.labels.get("version", ""),
                status=one.labels.get("status", ""),
            )
            for one in secrets
        ]
    return tuple(found)


def _pods(
    reader: _Reader, plugins: Iterable[Part], configs: Mapping[str, Mapping[str, str]]
) -> tuple[Pod, ...]:
    """The pods of plugins, and those that ask for cards or hold some."""
    owners = {(part.workload.namespace, f"DaemonSet/{part.workload.name}") for part in plugins}
    renamed = " ".join(data.get("device-config.yaml", "") for data in configs.values())

    def matters(pod: Pod) -> bool:
        asks = any(one.startswith(_CARD_RESOURCES) or one in renamed for one in pod.resources)
        is_plugins = (pod.namespace, pod.controller) in owners
        has_phase = names.POD_BIND_PHASE in pod.annotations
        return not pod.has_ended and (is_plugins or asks or has_phase or is_reserved(pod))

    return reader.every("pods", f"{CORE}/pods", Pod, keeps=matters)


def is_reserved(pod: Pod) -> bool:
    """A scheduler has written a reservation."""
    return nvidia_names.POD_ALLOCATED in pod.annotations


def switch(policy: Json | None, *path: str) -> bool | None:
    """A switch of the ClusterPolicy; None where nothing says."""
    found = inside(policy, "spec", *path)
    return found if isinstance(found, bool) else None


def policy_text(policy: Json | None, *path: str) -> str:
    """A text of the ClusterPolicy."""
    return text(policy, "spec", *path)
