"""Nodes on which a container's cards are looked at: with NVIDIA's real runtime and without it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.e2e import cards, toolkit
from tests.e2e.api import Json
from tests.e2e.parts import CUDA
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.toolkit import DRIVER_ROOT, RuntimeClass
from tests.e2e.waiting import eventually

_CARDS: Final = range(cards.COUNT)
_LOOK: Final = f"""
for node in /dev/nvidia*; do echo "node $node"; done
for minor in {" ".join(map(str, _CARDS))}; do
    mknod /tmp/$minor c {toolkit.MAJOR} $minor
    {{ : < /tmp/$minor; }} 2>&1 | sed "s/^.*: /open $minor /"
done
for file in {toolkit.LIBRARIES}/* /usr/bin/nvidia*; do echo "file $file"; done
echo that was all; trap 'exit 0' TERM; sleep 100000 & wait
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How daemon and pods run on a node.

    Attributes:
        runtime: the class of both; absent on a node without NVIDIA's runtime.
        env, args: what the daemon is told beside the overlay.
        has_libraries: containers get the driver's libraries too, not its device nodes alone.
    """

    runtime: RuntimeClass | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    has_libraries: bool = True

    def change(self, pod: Json) -> None:
        """Make the DaemonSet's pod one of such a node."""
        container = pod["containers"][0]
        env = {e["name"]: e for e in container["env"]}
        del env["LD_LIBRARY_PATH"]  # the driver comes from the runtime, or from its root
        for name, value in {"DEVICE_LIST_STRATEGY": "auto", **self.env}.items():
            env[name] = {"name": name, "value": value}
        container["env"] = list(env.values())
        container["args"] += self.args
        mount(pod, "cdi", str(toolkit.CDI), "/var/run/cdi")
        if "NVIDIA_DRIVER_ROOT" in self.env:
            mount(pod, "driver-root", str(DRIVER_ROOT), "/driver-root")
        if self.runtime is not None:
            pod["runtimeClassName"] = self.runtime.value
        if self.runtime is RuntimeClass.MOUNTS:
            mount(pod, "all-cards", "/dev/null", "/var/run/nvidia-container-devices/all")


def mount(pod: Json, name: str, source: str, target: str) -> None:
    """Give the pod's container that folder or file of the node."""
    pod["volumes"].append({"name": name, "hostPath": {"path": source}})
    mount = {"name": name, "mountPath": target}
    pod["containers"][0]["volumeMounts"].append(mount)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a container sees of the driver; cards by NVML's number."""

    cards: frozenset[int]
    allowed: frozenset[int]
    nodes: frozenset[str]
    files: frozenset[str]


def start(
    pods: Pods, scheduler: Scheduler, name: str, own: Slice, setup: Setup, **env: str
) -> None:
    """A pod with that slice; its image asks for all cards, and its spec may have variables too."""
    box = RealContainer(
        name="c0", cards=1, memory_mib=own.memory_mib, image=CUDA, script=_LOOK, env=env
    )
    pod = pods.create(name, box, runtime_class=setup.runtime)
    scheduler.place(pod, {"c0": (own,)})


def look_into(pods: Pods, name: str) -> Seen:
    """What the pod's container has printed about its cards."""

    def read() -> str:
        printed = pods.inside(name, "c0").extra
        return printed if "that was all" in printed else ""

    text = eventually(f"{name} has looked around", read)
    answers = dict(re.findall(r"^open (\d+) (.*)$", text, re.MULTILINE))
    nodes = frozenset(re.findall(r"^node /dev/(\S+)$", text, re.MULTILINE))
    return Seen(
        cards=frozenset(i for i in _CARDS if f"nvidia{cards.minor_of(i)}" in nodes),
        allowed=frozenset(
            i for i in _CARDS if answers[str(cards.minor_of(i))] == "No such device or address"
        ),
        nodes=nodes,
        files=frozenset(re.findall(r"^file (\S+)$", text, re.MULTILINE)),
    )
