"""What is installed: the workloads of ours, their pods, and the settings that they run with.

Parts are found by their label and by what their containers run, never by name: a second release
has other names. The names of what they use are taken from their arguments and volumes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Final

import msgspec

from hami_node.cluster.objects import (
    ConfigMap,
    ContainerSpec,
    DaemonSet,
    Deployment,
    Event,
    NodeTaints,
    Pod,
    Struct,
    Taint,
    Workload,
    arguments_of,
)
from hami_node.cluster.paths import CORE, segment
from hami_node.cluster.reading import Gap, Reader, Seen
from hami_node.config.files import NO_VALUES, read_device_config
from hami_node.config.settings import Settings, declarations
from hami_node.config.sources import CONFIG_FILE_ENV, ConfigSources, Resolved, resolve
from hami_node.model import Node
from hami_node.setting_types import Blocks, Role
from hami_node.verify.findings import words
from hami_node.wire.objects import decode_node

APPS: Final = "/apis/apps/v1"
_PART_OF: Final = "app.kubernetes.io/part-of"
_OURS: Final = "hami-node"
_MOST_SAID: Final = 3


class Runs(StrEnum):
    """What a workload of ours runs."""

    DAEMON = "daemon"
    EXTENDER = "extender"
    SCHEDULER = "kube-scheduler"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A workload of ours.

    Attributes:
        runs: which program.
        container: the container that runs it.
        pods: its pods.
    """

    workload: Workload
    runs: Runs
    container: ContainerSpec
    pods: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return self.workload.name

    @property
    def kind(self) -> str:
        """DaemonSet or Deployment."""
        return self.workload.kind

    def flag(self, name: str, default: str = "") -> str:
        """The value of a flag of its program; of several the last, as the program has it."""
        words, found = arguments_of(self.container), default
        for word, following in zip(words, [*words[1:], "-"], strict=True):
            if word.startswith(f"--{name}="):
                found = word.partition("=")[2]
            elif word == f"--{name}":
                found = "true" if following.startswith("-") else following
        return found

    def volume_of(self, path: str) -> tuple[str, str]:
        """The Secret and the ConfigMap in which a file of the container is; "" for neither."""
        folders = {str(folder) for folder in PurePosixPath(path).parents}
        mounted = [m.name for m in self.container.volume_mounts or () if m.mount_path in folders]
        for volume in self.workload.pod.volumes or ():
            if volume.name in mounted:
                secret = volume.secret.secret_name if volume.secret else ""
                config = volume.config_map.name if volume.config_map else ""
                return secret, config
        return "", ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node, with its taints."""

    node: Node
    taints: tuple[Taint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """Everything that is read once, for all checks.

    Attributes:
        parts: the workloads of ours.
        others: DaemonSets of others.
        settings: what each part's program runs with, by the part's name.
        gaps: what could not be read, by what it is.
    """

    namespace: str
    parts: tuple[Part, ...]
    others: tuple[Workload, ...]
    nodes: tuple[NodeSeen, ...]
    settings: Mapping[str, Resolved] = field(default_factory=dict)
    gaps: Mapping[str, Gap] = field(default_factory=dict)

    def running(self, runs: Runs) -> tuple[Part, ...]:
        """The parts that run a program."""
        return tuple(part for part in self.parts if part.runs is runs)

    def settings_of(self, runs: Runs) -> Settings | None:
        """The settings of the first part that runs a program."""
        return next(
            (
                self.settings[part.name].settings
                for part in self.running(runs)
                if part.name in self.settings
            ),
            None,
        )


class _NodeParts(Struct, frozen=True):
    spec: NodeTaints = NodeTaints()


_TAINTS: Final = msgspec.json.Decoder(_NodeParts)


def _node(raw: bytes) -> NodeSeen:
    return NodeSeen(node=decode_node(raw), taints=tuple(_TAINTS.decode(raw).spec.taints or ()))


def read_installation(
    reader: Reader, namespace: str, blocks: Blocks, node_name: str | None
) -> Installation:
    """Read workloads, pods, nodes and settings.

    Args:
        reader: reads.
        namespace: where it is installed.
        blocks: the settings of the vendors.
        node_name: the only node to look at; None for all.
    """
    gaps: dict[str, Gap] = {}
    inside = f"namespaces/{segment(namespace)}"
    sets = reader.every(f"{APPS}/daemonsets", DaemonSet)
    if sets.gap is not None:
        own = reader.every(f"{APPS}/{inside}/daemonsets", DaemonSet)
        gaps["daemonsets of others"] = sets.gap
        sets = own
    deployments = reader.every(f"{APPS}/{inside}/deployments", Deployment)
    pods = reader.every(f"{CORE}/{inside}/pods", Pod)
    query = (("fieldSelector", f"metadata.name={node_name}"),) if node_name else ()
    nodes = reader.decoded(f"{CORE}/nodes", _node, query)
    lists: Mapping[str, Seen[DaemonSet] | Seen[Deployment] | Seen[Pod] | Seen[NodeSeen]] = {
        "daemonsets": sets,
        "deployments": deployments,
        "pods": pods,
        "nodes": nodes,
    }
    gaps |= {name: seen.gap for name, seen in lists.items() if seen.gap is not None}
    ours = [one for one in (*sets.items, *deployments.items) if _is_ours(one, namespace)]
    parts = tuple(_part(one, pods.items) for one in ours)
    return Installation(
        namespace=namespace,
        parts=parts,
        others=tuple(one for one in sets.items if not _is_ours(one, namespace)),
        nodes=nodes.items,
        settings=_settings(reader, namespace, parts, blocks, gaps),
        gaps=gaps,
    )


def _is_ours(one: Workload, namespace: str) -> bool:
    """Whether it is in our namespace and says that it is a part of ours."""
    is_named = one.labels.get("app", "").startswith(_OURS)
    return one.namespace == namespace and (one.labels.get(_PART_OF) == _OURS or is_named)


def _part(workload: Workload, pods: Iterable[Pod]) -> Part:
    container, runs = _program(workload)
    selector = workload.spec.selector
    return Part(
        workload=workload,
        runs=runs,
        container=container,
        pods=tuple(pod for pod in pods if selector.selects(pod.labels)),
    )


def _program(workload: Workload) -> tuple[ContainerSpec, Runs]:
    """The container with the program, and which one it is."""
    for container in workload.pod.containers or ():
        words = arguments_of(container)
        if any(PurePosixPath(word).name == "kube-scheduler" for word in words[:1]):
            return container, Runs.SCHEDULER
        if "extender" in words[:2]:
            return container, Runs.EXTENDER
        if "run" in words[:2]:
            return container, Runs.DAEMON
    return workload.container, Runs.OTHER


def warnings_about(reader: Reader, namespace: str, name: str) -> tuple[str, ...]:
    """The last different warnings about an object, the oldest first; () where none can be read."""
    path = f"{CORE}/namespaces/{segment(namespace)}/events"
    found = reader.every(path, Event, fields=f"involvedObject.name={name}")
    told = sorted((one for one in found.items if one.type != "Normal"), key=lambda one: one.when)
    said = dict.fromkeys(words(f"{one.reason}: {one.message}") for one in reversed(told))
    return tuple(reversed(list(said)[:_MOST_SAID]))


# -- settings --------------------------------------------------------------------------------------
_ROLES: Final = {Runs.DAEMON: Role.DAEMON, Runs.EXTENDER: Role.EXTENDER}


def _settings(
    reader: Reader, namespace: str, parts: Iterable[Part], blocks: Blocks, gaps: dict[str, Gap]
) -> Mapping[str, Resolved]:
    found: dict[str, Resolved] = {}
    files: dict[str, ConfigMap | Gap] = {}
    for part in parts:
        if part.runs not in _ROLES:
            continue
        env = _environment(part.container, namespace)
        path = part.flag("config-file") or part.flag("device-config-file")
        path = path or env.get(CONFIG_FILE_ENV, "")
        _, name = part.volume_of(path) if path else ("", "")
        values = NO_VALUES
        if name:
            if name not in files:
                at = f"{CORE}/namespaces/{segment(namespace)}/configmaps/{segment(name)}"
                files[name] = reader.one(at, ConfigMap)
            file = files[name]
            if isinstance(file, Gap):
                gaps[f"configmap {name}"] = file
                continue
            text = (file.data or {}).get(PurePosixPath(path).name, "")
            values = read_device_config(text.encode(), f"configmap {name}", blocks)
        sources = ConfigSources(
            blocks=blocks,
            flags=_flags(part, blocks),
            env={key: text for key, text in env.items() if key != CONFIG_FILE_ENV},
            role=_ROLES[part.runs],
        )
        found[part.name] = resolve(sources, values)
    return found


def _environment(container: ContainerSpec, namespace: str) -> dict[str, str]:
    """Its variables; those that Kubernetes fills in have some value."""
    known = {"metadata.namespace": namespace}
    found = {}
    for variable in container.env or ():
        if variable.value is not None:
            found[variable.name] = variable.value
        elif variable.value_from is not None and variable.value_from.field_ref is not None:
            found[variable.name] = known.get(variable.value_from.field_ref.field_path, "x")
    return found


def _flags(part: Part, blocks: Blocks) -> dict[str, str]:
    """The flags of its program that are settings, by their field."""
    found: dict[str, str] = {}
    for name, setting in declarations(blocks).items():
        for spelling in (setting.flag, *setting.names.flags):
            if text := part.flag(spelling):
                found[name] = text
    return found
