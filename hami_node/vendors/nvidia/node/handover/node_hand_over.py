"""How this node hands over its cards: what is seen of it, the choice, and our own CDI specs."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hami_node.errors import AllocationError, NodeUnfit
from hami_node.logs import kv
from hami_node.model import Device
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import BackendKind, VisibleDevicesForm
from hami_node.vendors.nvidia.driver import (
    HOST_MOUNT,
    OPERATORS_MOUNT,
    DriverRoot,
    Validations,
    driver_root_of,
)
from hami_node.vendors.nvidia.mig.layout import mig_of, minors_of
from hami_node.vendors.nvidia.node.driver_limit import Toolkit, toolkit_of
from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    CdiDevice,
    CdiSpec,
    DriverOnHost,
    HostNode,
    make_spec,
)
from hami_node.vendors.nvidia.node.handover.choice import (
    OWN_KIND,
    HandOver,
    Named,
    Signs,
    cdi_name,
    cdi_names,
    choose,
    extras_of,
    name_cards,
    wants_own_specs,
)
from hami_node.vendors.nvidia.node.handover.driver_files import (
    CONTROL_NODES,
    DriverFiles,
    no_minor,
    node,
    nodes,
)
from hami_node.vendors.nvidia.node.handover.handed import Handed, handed_of
from hami_node.vendors.nvidia.node.handover.spec_file import SpecFile
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import (
    DeviceNode,
    HandOverState,
    NodeSituation,
    Slice,
)

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.node.handover.instances import CapNodes, Instances

log = logging.getLogger(__name__)

RECREATE: Final = "delete and recreate the pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What one call sees: the settings, and the driver's root, None for simulated cards."""

    settings: NvidiaSettings
    root: DriverRoot | None

    def nodes_of(self, cards: Iterable[Device]) -> Mapping[str, HostNode | None]:
        """The device nodes of cards that have one; None for simulated cards."""
        if self.root is None:
            return {card.uuid: None for card in cards}
        found = minors_of(cards).items()
        return {uuid: node(self.root, f"nvidia{minor}") for uuid, minor in found}


class NodeHandOver:
    """One node's way of handing over cards. Any thread may call it."""

    def __init__(
        self,
        settings: Callable[[], NvidiaSettings],
        process: Path = Path("/proc/self"),
        caps: CapNodes | None = None,
    ) -> None:
        """Nothing is read yet; `process` is this process's folder in /proc."""
        self._settings, self._process = settings, process
        self._lock = threading.Lock()
        self._files = DriverFiles()
        self._validations = Validations(settings().validations_dir)
        self._spec_file = SpecFile(settings().cdi_spec_dir)
        self._caps = caps
        self._situation = NodeSituation()
        self._state = HandOverState()
        self._found: DriverOnHost | str = ""  # as the last choice saw it
        self._given: set[str] = set()  # CDI names in answers that were not on record yet
        self._logged: HandOver | None = None
        self._chosen_by: _Seen | None = None  # what that choice was made by
        self._has_hook = True

    @cached_property
    def _own(self) -> Signs:
        """What never changes while this process runs."""
        outside = (HOST_MOUNT, self._settings().driver_root_ctr_path, OPERATORS_MOUNT)
        return Signs(
            visible_devices=own_visible_devices(self._process),
            has_injected_driver=has_injected_driver(self._process, outside),
        )

    @cached_property
    def _instances(self) -> Instances:
        """Loaded late: a node without MIG never needs it."""
        from hami_node.vendors.nvidia.node.handover.instances import CapNodes, Instances

        return Instances(self._settings().cdi_spec_dir, self._caps or CapNodes())

    # -- the node ----------------------------------------------------------------------------------
    def keep(self, situation: NodeSituation) -> None:
        """Bring the specs up to date, before any container needs them; log and show a new choice.

        Without the node object nothing is chosen yet, but containers that start again after a
        reboot need their specs.
        """
        with self._lock:
            self._situation = situation
            self._given -= cdi_names(situation.answers or ())
            seen, unwritten = self._look(), ""
            signs = self._signs(seen)
            found = self._driver(seen) if wants_own_specs(seen.settings, signs) else None
            try:
                self._keep_specs(seen, situation, found)
                self._keep_instances(seen, situation, found)
            except OSError as e:
                unwritten = self._unwritten(e)
                log.warning("cdi_specs_not_kept", extra=kv(reason=unwritten))
            if situation.node is not None:
                way = self._way(seen, signs, found)
                is_lost = bool(unwritten) and way.uses_cdi
                self._show(HandOver(problem=unwritten) if is_lost else way)
                self._chosen_by = seen

    def close(self) -> None:
        """The daemon ends: specs stay while containers, which may be restarted, name them."""
        with self._lock:
            answers = self._situation.answers
            if answers is None or self._given or cdi_names(answers):
                return
            try:
                self._spec_file.remove()
            except OSError as e:
                log.warning("cdi_specs_not_removed", extra=kv(error=e.strerror or str(e)))

    def state(self) -> HandOverState:
        """The choice for people, as it was last made. Never waits."""
        return self._state

    def toolkit(self) -> Toolkit:
        """What becomes of the number for the driver's own memory limit."""
        with self._lock:
            seen = self._look()
            if not self._chosen(seen).uses_cdi:
                injected = self._own.has_injected_driver
                return toolkit_of(self._own.visible_devices, has_injected_driver=injected)
            if seen.root is None:
                return Toolkit.UNKNOWN
            found = self._driver(seen)
            if isinstance(found, str) or not found.limits_memory:
                return Toolkit.NO_HOOK
            can_limit = self._files.can_limit(found.hook, seen.root)
        return Toolkit.APPLIES if can_limit else Toolkit.UNKNOWN

    # -- a container -------------------------------------------------------------------------------
    def name(self, granted: Slice) -> Named:
        """The part of a container's response that names its cards and MIG instances.

        Raises:
            AllocationError: no way works here, or an instance can't be reached.
        """
        handed, cards = handed_of(granted), tuple(granted.cards.values())
        with self._lock:
            seen = self._look()
            way = self._chosen(seen)
            if way.problem:
                raise NodeUnfit(f"the cards can't be handed over on this node: {way.problem}")
            if way.uses_cdi:
                self._ensure_specs(seen, cards, handed)
                self._given.update(map(cdi_name, handed.uuids))
            elif way.form is VisibleDevicesForm.RUNTIME and handed.instances:
                place = self._instances.place(seen.root, cards)
                self._instances.for_runtime(handed.instances, place)
            named = name_cards(handed.uuids, way, extras_of(seen.settings))
            if seen.settings.pass_device_specs and seen.root is not None:
                named = replace(named, devices=self._device_nodes(seen, seen.root, cards, handed))
        _refuse_own_variable(granted, named)
        return named

    def _device_nodes(
        self, seen: _Seen, root: DriverRoot, cards: Sequence[Device], handed: Handed
    ) -> tuple[DeviceNode, ...]:
        """Nodes for kubelet. Raises AllocationError: the driver does not report one of them."""
        of_cards = seen.nodes_of(cards)
        found = [*nodes(root, *CONTROL_NODES)]
        for uuid in handed.cards:
            card = of_cards.get(uuid)
            if card is None:
                raise AllocationError(no_minor(uuid))
            found.append(card)
        if handed.instances:
            place = self._instances.place(root, cards)
            found += self._instances.for_kubelet(handed.instances, place)
        by_path = {n.path: n.host_path for n in found}  # instances may be of one card
        return tuple(DeviceNode(container_path=p, host_path=host) for p, host in by_path.items())

    # -- the choice --------------------------------------------------------------------------------
    def _look(self) -> _Seen:
        settings = self._settings()
        is_simulated = settings.backend is BackendKind.SIMULATED
        root = None if is_simulated else driver_root_of(settings, self._validations)
        return _Seen(settings=settings, root=root)

    def _chosen(self, seen: _Seen) -> HandOver:
        """The last look's choice, while it works: looking takes milliseconds that kubelet waits."""
        last = self._logged
        is_new = self._chosen_by != seen or self._validations.awaits_driver
        if last is None or last.problem or is_new:
            return self._way(seen, self._signs(seen), None)
        return last

    def _signs(self, seen: _Seen) -> Signs:
        """What is there now, beside our own specs."""
        known = self._situation.node
        return replace(
            self._own,
            has_root=seen.root is not None and seen.root.inside.is_dir(),
            is_simulated=seen.root is None,
            kubelet=known.kubelet_version if known is not None else "",
            engine=known.engine_version if known is not None else "",
        )

    def _way(self, seen: _Seen, signs: Signs, found: DriverOnHost | str | None) -> HandOver:
        """Choose by what is there now; `found` is the driver where it has been looked for."""
        if wants_own_specs(seen.settings, signs):
            signs = replace(signs, spec_problem=self._spec_problem(seen, found))
        return choose(seen.settings, signs)

    def _show(self, way: HandOver) -> None:
        if way == self._logged:
            return
        self._logged = way
        self._state = HandOverState(
            summary=way.summary,
            problem=way.problem,
            details={
                "strategies": ",".join(way.strategies),
                "form": "" if way.uses_cdi or way.problem else way.form.value,
                "cdi-kind": OWN_KIND if way.uses_cdi else "",
                "why": way.why,
                "problem": way.problem,
                "warning": way.warning,
            },
        )
        fields = kv(way=way.summary, why=way.why or None, warning=way.warning or None)
        if way.problem:
            log.error("hand_over_refused", extra=fields)
        elif way.warning:
            log.warning("hand_over", extra=fields)
        else:
            log.info("hand_over", extra=fields)

    # -- specs -------------------------------------------------------------------------------------
    def _spec_problem(self, seen: _Seen, found: DriverOnHost | str | None) -> str:
        found = self._found = self._driver(seen) if found is None else found
        if isinstance(found, str):
            return found
        problem = self._spec_file.write_problem()
        return (
            f"{seen.settings.cdi_spec_dir} is for our CDI specs, but {problem}: mount that folder "
            "of the host into this daemon's container, writable, or set --cdi-spec-dir"
            if problem
            else ""
        )

    def _driver(self, seen: _Seen) -> DriverOnHost | str:
        if seen.root is None:
            return DriverOnHost()
        if seen.settings.driver_root is None and self._validations.awaits_driver:
            # the host's own folder, taken instead, might have the remains of another driver
            return (
                f"the GPU Operator's driver is not ready ({self._validations.driver_mark} is "
                "missing): wait for it, or without the GPU Operator name the driver's folder by "
                "--driver-root"
            )
        return self._files.find(seen.root, seen.settings)

    def _keep_specs(
        self, seen: _Seen, situation: NodeSituation, found: DriverOnHost | str | None
    ) -> None:
        """Specs for the cards of now, and of those that containers hold. Raises OSError."""
        kept = self._kept(situation)
        if isinstance(found, DriverOnHost):
            self._warn_of_hook(found, seen)
            spec = make_spec(seen.nodes_of(situation.cards), found, kept)
            if spec is not None:
                self._write(spec)
                return
        if not kept and situation.answers is not None and self._spec_file.remove():
            log.info("cdi_specs_removed", extra=kv(file=str(self._spec_file.path)))

    def _keep_instances(
        self, seen: _Seen, situation: NodeSituation, found: DriverOnHost | str | None
    ) -> None:
        """Specs for the MIG instances that containers hold. Raises OSError."""
        answers, cards = situation.answers, situation.cards
        is_divided = any(mig.is_enabled for mig in map(mig_of, cards) if mig is not None)
        if not is_divided and not self._spec_file.has_more():
            return
        held = None if answers is None else cdi_names(answers) | self._given
        driver = found if isinstance(found, DriverOnHost) else None
        place = self._instances.place(seen.root, cards)
        gone = self._instances.keep(cards, held, place, driver)
        self._given -= set(map(cdi_name, gone))

    def _kept(self, situation: NodeSituation) -> list[CdiDevice]:
        """Devices of the present file that containers name; all while these are not known."""
        present = self._spec_file.read()
        if present is None:
            return []
        if situation.answers is None:
            return list(present.devices)
        held = cdi_names(situation.answers) | self._given
        return [device for device in present.devices if f"{OWN_KIND}={device.name}" in held]

    def _ensure_specs(self, seen: _Seen, now: Sequence[Device], handed: Handed) -> None:
        """The engine resolves the names when it makes the container, so they have to be right.

        The cards are those of now, which the last look at the node may not have seen.

        Raises:
            AllocationError: they can't be.
        """
        present, found = self._spec_file.read(), self._found
        cards = seen.nodes_of(now)
        unknown = [uuid for uuid in handed.cards if uuid not in cards]
        if isinstance(found, str) or unknown:
            raise AllocationError(found if isinstance(found, str) else no_minor(unknown[0]))
        kept = present.devices if present is not None else ()
        spec = make_spec(cards, found, kept) if handed.cards else None
        try:
            if spec is not None:
                self._write(spec)
            if handed.instances:
                place = self._instances.place(seen.root, now)
                self._instances.for_engine(handed.instances, place, found)
        except OSError as e:
            raise AllocationError(f"{self._unwritten(e)}; then {RECREATE}") from e

    def _unwritten(self, error: OSError) -> str:
        return (
            f"{self._spec_file.path}, which tells the container engine about the cards, can't be "
            f"written ({error.strerror or error}): look at that folder of the host (what has the "
            "file's name, its space, SELinux) and its mount"
        )

    def _write(self, spec: CdiSpec) -> None:
        if self._spec_file.write(spec):
            fields = kv(file=str(self._spec_file.path), cards=len(spec.devices))
            log.info("cdi_specs_written", extra=fields)

    def _warn_of_hook(self, found: DriverOnHost, seen: _Seen) -> None:
        has_hook = bool(found.hook) or seen.root is None
        if self._has_hook and not has_hook:
            log.warning(
                "cdi_hook_missing",
                extra=kv(
                    folders=found.folders,
                    hint="set --nvidia-cdi-hook-path: without that program only images that look "
                    "for libraries in these folders find the driver's",
                ),
            )
        self._has_hook = has_hook


def _refuse_own_variable(granted: Slice, named: Named) -> None:
    """In kubelet a pod's own variable wins over ours, whatever ours is.

    Raises:
        AllocationError: the container would see other cards than it was granted.
    """
    name = names.ENV_VISIBLE_DEVICES
    own = granted.container.env.get(name)
    if own is not None and own != named.envs[name]:
        raise AllocationError(
            f"container {granted.container.name} sets {name} itself, which decides what cards it "
            "sees: remove it from env"
        )


# -- what this process can see of the container runtime that started it ----------------------------
_DRIVER_FILE: Final = re.compile(rb"/lib(?:nvidia-ml|cuda)\.so\.[0-9.]+\Z")


def own_visible_devices(process: Path) -> tuple[str, ...]:
    """Every entry of the variable in this process's first environment, `process`/environ.

    A runtime may have written one of its own beside the one of the pod, and a dictionary of the
    environment would show only one of them.
    """
    prefix = f"{names.ENV_VISIBLE_DEVICES}=".encode()
    try:
        entries = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return ()
    return tuple(
        entry.removeprefix(prefix).decode(errors="replace").strip()
        for entry in entries
        if entry.startswith(prefix)
    )


def has_injected_driver(process: Path, outside: Collection[Path] = ()) -> bool:
    """True where the driver's library is mounted as a file of its own, which only a runtime does.

    A folder with it, which the pod mounts, does not count; nor does what is mounted in the folders
    `outside`, where the pod mounts the node: a node that is a container has such mounts itself.
    """
    try:
        lines = (process / "mountinfo").read_bytes().splitlines()
    except OSError:
        return False
    points = (fields[4] for line in lines if len(fields := line.split(b" ", 5)) > 4)
    nodes = tuple(str(folder).encode() + b"/" for folder in outside)
    return any(_DRIVER_FILE.search(point) and not point.startswith(nodes) for point in points)
