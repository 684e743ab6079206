"""Pods with cards: their manifests, their lives, and what their containers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.parts import BUSYBOX
from tests.e2e.waiting import LIMIT_S, eventually

NOBODY: Final = "e2e-nobody"  # a scheduler name that no scheduler serves: the test binds itself
_LOOK: Final = "env; echo ---; cat /proc/mounts; echo ---; cat /etc/ld.so.preload; echo ---; "
_STAY: Final = "trap 'exit 0' TERM; sleep 100000 & wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealContainer:
    """A container and what it asks for; `script` runs after it showed what it sees."""

    name: str
    cards: int = 0
    memory_mib: int | None = None
    cores: int | None = None
    script: str = _STAY
    is_sidecar: bool = False
    image: str = BUSYBOX
    env: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """Folders of the node by the path inside."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """Other extended resources."""

    def manifest(self) -> Json:
        """The container of a pod's spec."""
        asked = {
            nvidia_names.RESOURCE_GPU: self.cards or None,
            nvidia_names.RESOURCE_GPU_MEMORY: self.memory_mib,
            nvidia_names.RESOURCE_GPU_CORES: self.cores,
        }
        limits = {name: str(value) for name, value in asked.items() if value is not None}
        limits |= self.limits
        return {
            "name": self.name,
            "image": self.image,
            "imagePullPolicy": "Never",
            "command": ["/bin/sh", "-c", _LOOK + self.script],
            "env": [{"name": name, "value": value} for name, value in self.env.items()],
            "resources": {"limits": limits},
            "volumeMounts": [
                {"name": _volume(host), "mountPath": inside}
                for inside, host in self.folders.items()
            ],
            **({"restartPolicy": "Always"} if self.is_sidecar else {}),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What a container saw when it started. `mounts` maps a path to `ro` or `rw`."""

    env: Mapping[str, str]
    mounts: Mapping[str, str]
    preload: str
    extra: str = field(default="", repr=False)

    @property
    def cards(self) -> tuple[str, ...]:
        """UUIDs of the cards that the container runtime is told."""
        return tuple(filter(None, self.env.get(nvidia_names.ENV_VISIBLE_DEVICES, "").split(",")))

    @property
    def memory_limits(self) -> tuple[str, ...]:
        """Memory limits in the order of the cards."""
        return tuple(
            self.env[f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}"] for i in range(len(self.cards))
        )


class Pods:
    """The pods of one test in the default namespace; all go when the test is over."""

    path: Final = "/api/v1/namespaces/default/pods"

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(
        self,
        name: str,
        *boxes: RealContainer,
        inits: Sequence[RealContainer] = (),
        annotations: Mapping[str, str] | None = None,
        scheduler: str = NOBODY,
        runtime_class: str | None = None,
        restart_policy: str = "Never",
    ) -> Json:
        """Create a pod that nobody schedules."""
        return self._api.create(
            self.path,
            {
                "metadata": {
                    "name": name,
                    "labels": {"e2e": "pod"},
                    "annotations": dict(annotations or {}),
                },
                "spec": {
                    "schedulerName": scheduler,
                    "runtimeClassName": runtime_class,
                    "restartPolicy": restart_policy,
                    "terminationGracePeriodSeconds": 1,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "volumes": [
                        {"name": _volume(host), "hostPath": {"path": host, "type": "Directory"}}
                        for host in sorted({h for b in boxes for h in b.folders.values()})
                    ],
                    "initContainers": [b.manifest() for b in inits],
                    "containers": [b.manifest() for b in boxes],
                },
            },
        )

    def insist(self, name: str, *boxes: RealContainer, scheduler: str) -> None:
        """Create a pod as a controller does: while nobody answers the webhook, again and again."""

        def probe() -> bool:
            try:
                self.create(name, *boxes, scheduler=scheduler)
            except ApiError as error:
                if error.status != 409:  # there already: an earlier answer was lost
                    raise
            return True

        eventually(f"pod {name} is accepted", probe)

    def read(self, name: str) -> Json:
        """The pod now."""
        return self._api.read(f"{self.path}/{name}")

    def all(self) -> list[Json]:
        """All pods of the test now."""
        found: list[Json] = self._api.read(self.path)["items"]
        return found

    def annotation(self, name: str, key: str) -> str:
        """An annotation's value; empty when it is not there."""
        return str(self.read(name)["metadata"].get("annotations", {}).get(key, ""))

    def wait_running(self, *wanted: str, limit_s: float = LIMIT_S) -> None:
        """Wait until all those pods run, every container ready.

        Raises:
            AssertionError: one failed, or time is over; phases and messages are in the text.
        """

        def probe() -> bool:
            states = {p["metadata"]["name"]: p["status"] for p in self.all()}
            for name in wanted:
                status = states.get(name, {})
                if status.get("phase") == "Failed":
                    raise PodFailed(f"{name}: {status.get('reason')}: {status.get('message')}")
            late = {n: describe(states.get(n, {})) for n in wanted if not _is_ready(states, n)}
            assert not late, f"{len(late)} of {len(wanted)} not running: {late}"
            return True

        eventually(f"{len(wanted)} pods run", probe, limit_s)

    def wait_phase(self, name: str, phase: str) -> Json:
        """The pod's status once it is in that phase."""

        def probe() -> Json | None:
            status: Json = self.read(name)["status"]
            assert status["phase"] == phase, describe(status)
            return status

        return eventually(f"pod {name} is {phase}", probe) or {}

    def inside(self, name: str, container: str) -> Inside:
        """What that container printed when it started, once it has: it runs before that."""

        def probe() -> list[str]:
            log = self._api.text(f"{self.path}/{name}/log", container=container)
            found = log.split("---\n")
            assert len(found) > _LOOK.count("---"), log
            return found

        env, mounts, preload, *extra = eventually(f"{name}/{container} has looked", probe)
        points = (line.split() for line in mounts.splitlines())
        return Inside(
            env=dict(line.split("=", 1) for line in env.splitlines() if "=" in line),
            mounts={p[1]: "ro" if "ro" in p[3].split(",") else "rw" for p in points},
            preload=preload,
            extra="".join(extra),
        )

    def incarnations(self) -> dict[str, tuple[str, int]]:
        """Container id and number of restarts of every container, by `pod/container`."""
        return {
            f"{pod['metadata']['name']}/{c['name']}": (c.get("containerID", ""), c["restartCount"])
            for pod in self.all()
            for c in pod["status"].get("containerStatuses", [])
        }

    def delete(self, *wanted: str) -> None:
        """Delete those pods and wait until kubelet has let go of them."""
        for name in wanted:
            self._api.delete(f"{self.path}/{name}")
        eventually(
            f"pods {', '.join(wanted)} are gone",
            lambda: not set(wanted) & {p["metadata"]["name"] for p in self.all()},
        )

    def remove_by_force(self, name: str) -> None:
        """Remove the object without waiting for a kubelet."""
        self._api.delete(f"{self.path}/{name}", 0)

    def clear(self) -> None:
        """Delete every pod of the namespace."""
        self.delete(*(p["metadata"]["name"] for p in self.all()))


class PodFailed(Exception):
    """A pod that should run never will: waiting any longer is no use."""


def _volume(host: str) -> str:
    return host.strip("/").replace("/", "-")


def describe(status: Json) -> str:
    """A pod's status in one line."""
    waiting = [
        f"{c['name']}: {c['state']['waiting'].get('reason')} "
        f"{c['state']['waiting'].get('message', '')}"
        for c in status.get("containerStatuses", [])
        if "waiting" in c.get("state", {})
    ]
    unscheduled = [
        f"{c.get('reason')} {c.get('message', '')}"
        for c in status.get("conditions", [])
        if (c["type"], c["status"]) == ("PodScheduled", "False")
    ]
    known = (status.get("phase"), status.get("reason"), status.get("message"))
    parts = (*known, *unscheduled, *waiting)
    return " | ".join(str(p) for p in parts if p)


def _is_ready(states: Mapping[str, Json], name: str) -> bool:
    status = states.get(name, {})
    if status.get("phase") != "Running":
        return False
    return all(c["ready"] for c in status.get("containerStatuses", [{"ready": False}]))
