"""What was listed, put together: who is installed, and who serves which node. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from hami_node.cluster.objects import Pod, Workload
from hami_node.config.files import MAX_FILE_BYTES, parse_yaml
from hami_node.errors import ConfigError, WireError
from hami_node.migrate.seen.parts import OWN_LABEL, Maker, Part, has_cards
from hami_node.migrate.seen.plain import items, number, text
from hami_node.migrate.seen.reading import Hook, Listed, is_reserved, switch
from hami_node.model import Node
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.nvidia.mode import Mode
from hami_node.wire import names

CARD_MAKERS: Final = frozenset({Maker.OURS, Maker.HAMI, Maker.OPERATOR, Maker.NVIDIA})
DEFAULT_SPLIT: Final = 10
"""Slices of a card where neither HAMi's configuration nor ours says."""
_PLUGIN_CONFIG: Final = ("device-config.yaml", "config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """What a configuration says about cards.

    Attributes:
        resource: the name under which cards are asked for.
        split: slices of a card.
        splits, modes: for single nodes, by name.
    """

    resource: str = nvidia_names.RESOURCE_GPU
    split: int = DEFAULT_SPLIT
    splits: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)

    def split_on(self, node: str) -> int:
        """Slices of a card of that node."""
        return self.splits.get(node, self.split)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A kube-scheduler with its extender's configuration.

    Attributes:
        name: the schedulerName that it serves.
        lease: `namespace/name` of the Lease by which its replicas elect.
    """

    part: Part
    name: str
    lease: str

    @property
    def is_on(self) -> bool:
        """It has replicas."""
        return self.part.workload.wanted > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node with cards, and who serves it.

    Attributes:
        served_by: makers whose plugin's pod is there and is not going away.
        unready: keys of such pods that are not Ready.
        wanted_by: makers whose DaemonSet chooses the node by its labels.
        mode: how its cards are shared, as HAMi's settings or the node say; "" for slices.
        holders: running pods that ask for its cards.
        unreserved: those of them without a reservation: from a plugin that writes none.
    """

    node: Node
    served_by: tuple[Maker, ...]
    unready: tuple[str, ...]
    wanted_by: tuple[Maker, ...]
    mode: str
    lock: str
    holders: int
    unreserved: int
    allocating: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @property
    def is_ours(self) -> bool:
        """Our label is on it."""
        return self.node.labels.get(OWN_LABEL) == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that findings and steps are made of."""

    listed: Listed
    nodes: tuple[NodeState, ...]
    hami: Part | None
    hami_scheduler: Scheduler | None
    hami_webhook: Hook | None
    daemon: Part | None
    extender: Part | None
    scheduler: Scheduler | None
    webhook: Hook | None
    others: tuple[Part, ...]
    theirs: Sharing
    ours: Sharing

    @property
    def has_operator(self) -> bool:
        """The GPU Operator is installed."""
        return self.listed.policy is not None or any(
            part.maker is Maker.OPERATOR for part in self.listed.plugins
        )

    @property
    def nvidia_plugins(self) -> tuple[Part, ...]:
        """NVIDIA's plugin, from wherever it was installed."""
        wanted = (Maker.OPERATOR, Maker.NVIDIA)
        return tuple(part for part in self.listed.plugins if part.maker in wanted)

    @property
    def runs_operator_plugin(self) -> bool:
        """The operator starts its device plugin."""
        return (
            self.has_operator and switch(self.listed.policy, "devicePlugin", "enabled") is not False
        )


def picture_of(listed: Listed) -> Picture:
    """Put it together."""
    hami, daemon = _first(listed.plugins, Maker.HAMI), _first(listed.plugins, Maker.OURS)
    theirs, ours = sharing_of(listed, hami), sharing_of(listed, daemon)
    schedulers = [
        Scheduler(part=part, name=name, lease=lease)
        for part in listed.schedulers
        for name, lease in _profile(listed, part)
    ]
    return Picture(
        listed=listed,
        nodes=tuple(_nodes(listed, theirs)),
        hami=hami,
        hami_scheduler=_of(schedulers, Maker.HAMI),
        hami_webhook=_webhook(listed, hami, is_ours=False),
        daemon=daemon,
        extender=_extender(listed.schedulers),
        scheduler=_of(schedulers, Maker.OURS),
        webhook=_webhook(listed, hami, is_ours=True),
        others=tuple(part for part in listed.plugins if part.maker is Maker.OTHER),
        theirs=theirs,
        ours=ours,
    )


def _first(parts: Iterable[Part], maker: Maker) -> Part | None:
    """The maker's part with the most pods: one without any is a leftover."""
    found = [part for part in parts if part.maker is maker]
    return max(found, key=lambda part: part.workload.wanted, default=None)


def _of(schedulers: Iterable[Scheduler], maker: Maker) -> Scheduler | None:
    return next((one for one in schedulers if one.part.maker is maker), None)


def _extender(parts: Iterable[Part]) -> Part | None:
    for part in parts:
        if part.maker is Maker.OURS and "extender" in part.workload.words:
            return part
    return None


def _webhook(listed: Listed, hami: Part | None, *, is_ours: bool) -> Hook | None:
    """The webhook for cards that is HAMi's, or ours: by its labels, else by its Service's name."""
    for hook in listed.webhooks:
        if not hook.is_about_cards:
            continue
        name = hook.configuration.labels.get("app.kubernetes.io/name", "")
        service = hook.webhook.service.rpartition("/")[2]
        is_own = name == "hami-node" or service.startswith("hami-node")
        if is_own == is_ours:
            return hook
    return None


def _profile(listed: Listed, part: Part) -> Iterable[tuple[str, str]]:
    """(schedulerName, Lease) of the kube-scheduler in a Deployment; nothing where there is none."""
    work = part.workload
    for name in work.config_maps:
        data = listed.configs.get(f"{work.namespace}/{name}", {})
        for content in (data.get("config.yaml", ""), data.get("config.json", "")):
            found = plain_yaml(content)
            if text(found, "kind") not in ("KubeSchedulerConfiguration", "Policy"):
                continue
            profiles = items(found, "profiles")
            named = text(profiles[0], "schedulerName") if profiles else ""
            space = text(found, "leaderElection", "resourceNamespace") or work.namespace
            lease = text(found, "leaderElection", "resourceName")
            yield named or "hami-scheduler", f"{space}/{lease or named or 'hami-scheduler'}"
            return
    if part.maker is Maker.HAMI:
        yield "hami-scheduler", f"{work.namespace}/hami-scheduler"


def plain_yaml(content: str) -> object:
    """A text as plain values; None for what can't be read, or is longer than a ConfigMap may be."""
    if not content or len(content) > MAX_FILE_BYTES:
        return None
    try:
        return parse_yaml(content.encode("utf-8", "replace"), "")
    except ConfigError:
        return None


def sharing_of(listed: Listed, part: Part | None) -> Sharing:
    """What the ConfigMaps of a plugin say; defaults where they say nothing."""
    if part is None:
        return Sharing()
    data: dict[str, str] = {}
    for candidate in (part, *(s for s in listed.schedulers if s.maker is part.maker)):
        for name in candidate.workload.config_maps:
            for key, content in listed.configs.get(
                f"{candidate.workload.namespace}/{name}", {}
            ).items():
                data.setdefault(key, content)
    device, nodes = (plain_yaml(data.get(key, "")) for key in _PLUGIN_CONFIG)
    entries = {text(one, "name"): one for one in items(nodes, "nodeconfig")}
    splits = {name: number(one, "devicesplitcount") for name, one in entries.items()}
    modes = {name: text(one, "operatingmode") for name, one in entries.items()}
    return Sharing(
        resource=text(device, "nvidia", "resourceCountName") or nvidia_names.RESOURCE_GPU,
        split=number(device, "nvidia", "deviceSplitCount") or DEFAULT_SPLIT,
        splits={name: split for name, split in splits.items() if split > 0},
        modes={name: mode for name, mode in modes.items() if mode},
    )


def _nodes(listed: Listed, theirs: Sharing) -> Iterable[NodeState]:
    plugins = {
        (part.workload.namespace, f"DaemonSet/{part.workload.name}"): part.maker
        for part in listed.plugins
    }
    by_node: dict[str, list[Pod]] = {}
    for pod in listed.pods:
        if pod.spec.node_name:
            by_node.setdefault(pod.spec.node_name, []).append(pod)
    choices = [(part.maker, part.workload.pod) for part in listed.plugins]
    for node in sorted(listed.nodes, key=lambda one: one.name):
        pods = by_node.get(node.name, [])
        servers = [
            (maker, pod)
            for pod in pods
            if (maker := plugins.get((pod.namespace, pod.controller))) in CARD_MAKERS
            and not pod.is_going
        ]
        is_registered = nvidia_names.NODE_REGISTER in node.annotations
        offers = any(  # kubelet keeps a resource that nobody offers any more, as 0
            key.startswith(nvidia_names.RESOURCE_GPU) and amount != "0"
            for key, amount in node.allocatable.items()
        )
        if not (servers or has_cards(node.labels) or is_registered or offers):
            continue
        holders = [
            pod
            for pod in pods
            if _holds(pod, theirs) and (pod.namespace, pod.controller) not in plugins
        ]
        yield NodeState(
            node=node,
            served_by=tuple(dict.fromkeys(maker for maker, _ in servers if maker is not None)),
            unready=tuple(pod.key for _, pod in servers if not pod.is_ready),
            wanted_by=tuple(
                dict.fromkeys(
                    maker
                    for maker, one in choices
                    if maker in CARD_MAKERS and one.wants(node.name, node.labels)
                )
            ),
            mode=_mode(node, theirs),
            lock=node.annotations.get(names.NODE_LOCK, ""),
            holders=len(holders),
            unreserved=sum(not is_reserved(pod) for pod in holders),
            allocating=tuple(
                pod.key
                for pod in holders
                if pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_ALLOCATING
            ),
        )


def _holds(pod: Pod, theirs: Sharing) -> bool:
    """Whether it asks for cards: an annotation alone is anybody's to write."""
    return any(
        name == theirs.resource or name.startswith(("nvidia.com/gpu", nvidia_names.RESOURCE_MIG))
        for name in pod.resources
    )


def _mode(node: Node, theirs: Sharing) -> str:
    """`mig` or `mps` where HAMi's settings or the node's cards say so; "" for slices."""
    wanted = theirs.modes.get(node.name, "")
    if wanted in (Mode.MIG, Mode.MPS):
        return wanted
    register = node.annotations.get(nvidia_names.NODE_REGISTER, "")
    if not register:
        return ""
    try:
        modes = {device.mode for device in decode_register(register)}
    except WireError:
        return ""
    return next((str(mode) for mode in (Mode.MIG, Mode.MPS) if mode in modes), "")


def hami_objects(picture: Picture) -> tuple[Workload, ...]:
    """HAMi's DaemonSet and Deployment."""
    parts = (picture.hami, picture.hami_scheduler.part if picture.hami_scheduler else None)
    return tuple(part.workload for part in parts if part is not None)


def in_json(value: object) -> str:
    """JSON without spaces, as a command line takes it."""
    return json.dumps(value, separators=(",", ":"))
