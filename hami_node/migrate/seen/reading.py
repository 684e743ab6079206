"""Lists what a migration looks at: the only part that talks to the API server, and it only reads.

A right that is missing, or an API group that the cluster does not have, leaves a gap in the
picture, which is shown; an API server that can't be reached ends the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from hami_node.cluster.calls import Query
from hami_node.cluster.paths import CORE, LEASES, segment
from hami_node.cluster.watching.frames import read_list, read_mapping
from hami_node.errors import KubeError, NotFound
from hami_node.migrate.seen import decoding
from hami_node.migrate.seen.objects import (
    Json,
    LeaseSeen,
    Named,
    NodeSeen,
    PodSeen,
    WebhookSeen,
    Workload,
    inside,
    labels_of,
    text,
    texts,
)
from hami_node.migrate.seen.parts import Maker, Part, plugins_in, schedulers_in

PAGE: Final = 500
MAX_PAGES: Final = 400
"""200,000 objects of a kind are looked at; 5,000 nodes have about 150,000 pods."""
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


class PlainKube(Protocol):
    """What is needed of the Kubernetes client."""

    def request(self, method: str, path: str, *, query: Query = ()) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that could not be read, and why."""

    what: str
    why: str


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
        named: objects of which only the name and the maker matter.
    """

    nodes: tuple[NodeSeen, ...] = ()
    pods: tuple[PodSeen, ...] = ()
    plugins: tuple[Part, ...] = ()
    schedulers: tuple[Part, ...] = ()
    mig_managers: tuple[Workload, ...] = ()
    webhooks: tuple[WebhookSeen, ...] = ()
    leases: tuple[LeaseSeen, ...] = ()
    classes: tuple[Named, ...] = ()
    named: tuple[Named, ...] = ()
    backends: Mapping[str, int] = field(default_factory=dict)
    configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    edited: tuple[str, ...] = ()
    revisions: tuple[HelmRevision, ...] = ()
    policy: Json | None = None
    gaps: tuple[Gap, ...] = ()
    now_s: float = 0


class _Reader:
    """Reads kinds one after the other, and collects gaps."""

    def __init__(self, kube: PlainKube) -> None:
        self._kube = kube
        self.gaps: list[Gap] = []

    def items(
        self, what: str, path: str, *, labels: str = "", is_needed: bool = False
    ) -> Iterator[Json]:
        """All objects of a list, page by page; a gap where it can't be read to its end.

        Raises:
            KubeError: the API server can't be reached, or fails, or refuses what is needed.
        """
        token, wanted = "", (("labelSelector", labels),) if labels else ()
        for _ in range(MAX_PAGES):
            more = (("continue", token),) if token else ()
            try:
                answer = self._kube.request(
                    "GET", path, query=(*wanted, ("limit", str(PAGE)), *more)
                )
            except KubeError as error:
                if is_needed:
                    raise
                self._note(what, error)
                return
            page = read_list(answer)
            yield from self._decoded(what, page.items)
            token = page.next_token
            if not token:
                return
        self.gaps.append(Gap(what=what, why=f"only the first {MAX_PAGES * PAGE} were looked at"))

    def one(self, what: str, path: str) -> Json | None:
        """One object; None, and a gap, where it can't be read. Raises KubeError as `items`."""
        try:
            return read_mapping(self._kube.request("GET", path))
        except KubeError as error:
            self._note(what, error)
            return None

    def _note(self, what: str, error: KubeError) -> None:
        if not 400 <= error.status < 500 or error.is_transient:
            raise error
        why = "the API server does not have it" if isinstance(error, NotFound) else str(error)
        self.gaps.append(Gap(what=what, why=why))

    def _decoded(self, what: str, raws: Iterable[bytes]) -> Iterator[Json]:
        for raw in raws:
            try:
                yield msgspec.json.decode(raw, type=dict[str, object])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.gaps.append(Gap(what=what, why=f"one is left out: {error}"))


def read_cluster(kube: PlainKube, now_s: float) -> Listed:
    """List everything.

    Raises:
        KubeError: the API server can't be reached, or fails; or it refuses nodes or workloads:
            without them HAMi's plugin would look as if it were not there.
    """
    reader = _Reader(kube)
    nodes = tuple(
        decoding.node(body) for body in reader.items("nodes", f"{CORE}/nodes", is_needed=True)
    )
    sets = [
        decoding.workload("DaemonSet", body)
        for body in reader.items("daemonsets", f"{_APPS}/daemonsets", is_needed=True)
    ]
    deployments = [
        decoding.workload("Deployment", body)
        for body in reader.items("deployments", f"{_APPS}/deployments", is_needed=True)
    ]
    plugins = plugins_in(sets)
    schedulers = schedulers_in(deployments, plugins)
    hooks = _webhooks(reader)
    maps = _config_maps(reader, (*plugins, *schedulers))
    configs = {key: texts(body, "data") for key, body in maps.items()}
    spaces = sorted(_namespaces((*plugins, *schedulers)) | {_OWN_NAMESPACE})
    return Listed(
        nodes=nodes,
        plugins=plugins,
        schedulers=schedulers,
        mig_managers=tuple(one for one in sets if one.labels.get("app") == "nvidia-mig-manager"),
        webhooks=hooks,
        configs=configs,
        edited=tuple(key for key, body in maps.items() if decoding.is_edited(body)),
        leases=tuple(_leases(reader, spaces)),
        classes=tuple(
            decoding.named("RuntimeClass", body)
            for body in reader.items("runtimeclasses", _CLASSES)
        ),
        named=_named(reader, spaces),
        backends=_backends(reader, hooks),
        policy=_policy(reader),
        revisions=tuple(_revisions(reader, plugins)),
        pods=tuple(_pods(reader, plugins, configs)),
        gaps=tuple(reader.gaps),
        now_s=now_s,
    )


def _namespaces(parts: Iterable[Part]) -> set[str]:
    wanted = (Maker.OURS, Maker.HAMI)
    return {part.workload.namespace for part in parts if part.maker in wanted}


def _webhooks(reader: _Reader) -> tuple[WebhookSeen, ...]:
    path = f"{_ADMISSION}/mutatingwebhookconfigurations"
    bodies = reader.items("mutatingwebhookconfigurations", path)
    return tuple(hook for body in bodies for hook in decoding.webhooks(body))


def _config_maps(reader: _Reader, parts: Iterable[Part]) -> Mapping[str, Json]:
    """The ConfigMaps that HAMi's parts and ours mount, and the configuration of NVIDIA's plugin."""
    found: dict[str, Json] = {}
    for part in parts:
        if part.maker is Maker.OTHER:
            continue
        for name in part.workload.config_maps[:MAX_CONFIG_MAPS]:
            key = f"{part.workload.namespace}/{name}"
            if key in found:
                continue
            path = (
                f"{CORE}/namespaces/{segment(part.workload.namespace)}/configmaps/{segment(name)}"
            )
            body = reader.one(f"configmap {key}", path)
            if body is not None:
                found[key] = body
    return found


def _leases(reader: _Reader, spaces: Iterable[str]) -> Iterator[LeaseSeen]:
    for space in spaces:
        path = f"{LEASES}/namespaces/{segment(space)}/leases"
        for body in reader.items(f"leases of {space}", path):
            yield decoding.lease(body)


def _named(reader: _Reader, spaces: Iterable[str]) -> tuple[Named, ...]:
    """Objects that an installation of ours could collide with, by name."""
    found = [
        decoding.named("ClusterRoleBinding", body)
        for body in reader.items("clusterrolebindings", f"{_RBAC}/clusterrolebindings")
    ]
    for space in spaces:
        if space != _OWN_NAMESPACE:
            continue
        for kind, path in (
            ("ServiceAccount", f"{CORE}/namespaces/{segment(space)}/serviceaccounts"),
            ("Service", f"{CORE}/namespaces/{segment(space)}/services"),
        ):
            found += [decoding.named(kind, body) for body in reader.items(f"{kind}s", path)]
    return tuple(found)


def _backends(reader: _Reader, hooks: Iterable[WebhookSeen]) -> Mapping[str, int]:
    """The ready addresses behind the webhooks that are about cards."""
    found: dict[str, int] = {}
    for hook in hooks:
        namespace, _, name = hook.service.partition("/")
        if not is_about_cards(hook) or not name or hook.service in found:
            continue
        path = f"{_SLICES}/namespaces/{segment(namespace)}/endpointslices"
        before = len(reader.gaps)
        slices = reader.items(
            f"endpointslices of {namespace}", path, labels=f"kubernetes.io/service-name={name}"
        )
        ready = sum(decoding.ready_endpoints(body) for body in slices)
        if len(reader.gaps) == before:
            found[hook.service] = ready
    return found


def is_about_cards(hook: WebhookSeen) -> bool:
    """Whether it is HAMi's webhook or ours, by the name that both have."""
    return hook.name == "vgpu.hami.io"


def _policy(reader: _Reader) -> Json | None:
    """The GPU Operator's settings; without the operator the cluster does not know the kind."""
    before = len(reader.gaps)
    found = next(iter(reader.items("clusterpolicies", _POLICIES)), None)
    if len(reader.gaps) > before and reader.gaps[-1].why == "the API server does not have it":
        reader.gaps.pop()
    return found


def _revisions(reader: _Reader, plugins: Iterable[Part]) -> Iterator[HelmRevision]:
    """Helm's Secrets of HAMi's releases; only their labels are looked at."""
    for release in sorted({p.release for p in plugins if p.maker is Maker.HAMI and p.release}):
        namespace, _, name = release.partition("/")
        path = f"{CORE}/namespaces/{segment(namespace)}/secrets"
        for body in reader.items(
            f"Helm's secrets of {release}", path, labels=f"owner=helm,name={name}"
        ):
            labels = labels_of(body)
            yield HelmRevision(
                namespace=namespace,
                name=name,
                revision=labels.get("version", ""),
                status=labels.get("status", ""),
            )


def _pods(
    reader: _Reader, plugins: Iterable[Part], configs: Mapping[str, Mapping[str, str]]
) -> Iterator[PodSeen]:
    """The pods of plugins, and those that ask for cards or hold some."""
    owners = {(part.workload.namespace, f"DaemonSet/{part.workload.name}") for part in plugins}
    renamed = " ".join(data.get("device-config.yaml", "") for data in configs.values())
    for body in reader.items("pods", f"{CORE}/pods"):
        pod = decoding.pod(body)
        if pod is None:
            continue
        asks = any(one.startswith(_CARD_RESOURCES) or one in renamed for one in pod.resources)
        if (pod.namespace, pod.owner) in owners or asks or pod.phase or pod.is_reserved:
            yield pod


def switch(policy: Json | None, *path: str) -> bool | None:
    """A switch of the ClusterPolicy; None where nothing says."""
    found = inside(policy, "spec", *path)
    return found if isinstance(found, bool) else None


def policy_text(policy: Json | None, *path: str) -> str:
    """A text of the ClusterPolicy."""
    return text(policy, "spec", *path)
