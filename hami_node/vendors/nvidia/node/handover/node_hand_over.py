"""How this node hands over its cards: what is seen of it, the choice, and our own CDI specs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import minors_of
from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.driver.location import (
    HOST_MOUNT,
    OPERATORS_MOUNT,
    DriverRoot,
    driver_root_of,
)
from hami_node.vendors.nvidia.driver.validations import Validations
from hami_node.vendors.nvidia.node.driver_limit import Toolkit, toolkit_of
from hami_node.vendors.nvidia.node.handover.card_names import Named, extras_of, name_cards
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
    Signs,
    choose,
    wants_own_specs,
)
from hami_node.vendors.nvidia.node.handover.driver_files import (
    CONTROL_NODES,
    DriverFiles,
    node,
    nodes,
)
from hami_node.vendors.nvidia.node.handover.signs import has_injected_driver, own_visible_devices
from hami_node.vendors.nvidia.node.handover.spec_file import SpecFile
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import (
    ContainerResponse,
    DeviceNode,
    HandOverState,
    NodeSituation,
    Slice,
)

log = logging.getLogger(__name__)

RECREATE: Final = "delete and recreate the pod"


class NodeHandOver:
    """One node's way of handing over cards. Any thread may call it."""

    def __init__(
        self, settings: Callable[[], NvidiaSettings], process: Path = Path("/proc/self")
    ) -> None:
        """Nothing is read yet; `process` is this process's folder in /proc."""
        self._settings, self._process = settings, process
        self._lock = threading.Lock()
        self._files = DriverFiles()
        self._validations = Validations(settings().validations_dir)
        self._spec_file = SpecFile(settings().cdi_spec_dir)
        self._situation = NodeSituation()
        self._state = HandOverState()
        self._found: DriverOnHost | str = ""  # as the last choice saw it
        self._given: set[str] = set()  # CDI names in answers that were not on record yet
        self._logged: HandOver | None = None
        self._has_hook = True

    @cached_property
    def _own(self) -> Signs:
        """What never changes while this process runs."""
        outside = (HOST_MOUNT, self._settings().driver_root_ctr_path, OPERATORS_MOUNT)
        return Signs(
            visible_devices=own_visible_devices(self._process),
            has_injected_driver=has_injected_driver(self._process, outside),
        )

    # -- the node ----------------------------------------------------------------------------------
    def keep(self, situation: NodeSituation) -> None:
        """Bring the specs up to date, before any container needs them; log and show a new choice.

        Without the node object nothing is chosen yet, but containers that start again after a
        reboot need their specs.
        """
        with self._lock:
            self._situation = situation
            self._given -= _cdi_names(situation.answers or ())
            settings, unwritten = self._settings(), ""
            try:
                self._keep_specs(settings, situation)
            except OSError as e:
                unwritten = self._unwritten(e)
                log.warning("cdi_specs_not_kept", extra=kv(reason=unwritten))
            if situation.node is not None:
                way = self._way(settings)
                is_lost = bool(unwritten) and way.uses_cdi
                self._show(HandOver(problem=unwritten) if is_lost else way)

    def close(self) -> None:
        """The daemon ends: specs stay while containers, which may be restarted, name them."""
        with self._lock:
            answers = self._situation.answers
            if answers is None or self._given or _cdi_names(answers):
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
        settings = self._settings()
        with self._lock:
            if not self._way(settings).uses_cdi:
                injected = self._own.has_injected_driver
                return toolkit_of(self._own.visible_devices, has_injected_driver=injected)
            if _is_simulated(settings):
                return Toolkit.UNKNOWN
            found, root = self._driver(settings), self._root(settings)
            if isinstance(found, str) or not found.limits_memory:
                return Toolkit.NO_HOOK
            is_seen = self._files.can_limit(found.hook, root)
        return Toolkit.APPLIES if is_seen else Toolkit.UNKNOWN

    # -- a container -------------------------------------------------------------------------------
    def name(self, granted: Slice, uuids: Sequence[Uuid]) -> Named:
        """The part of a container's response that names its cards, in this order.

        Raises:
            AllocationError: no way works here.
        """
        settings = self._settings()
        with self._lock:
            way = self._way(settings)
            if way.problem:
                raise AllocationError(f"the cards can't be handed over on this node: {way.problem}")
            if way.uses_cdi:
                self._ensure_specs(settings, granted, uuids)
                self._given.update(f"{OWN_KIND}={uuid}" for uuid in uuids)
            named = name_cards(uuids, way, extras_of(settings))
            if settings.pass_device_specs and not _is_simulated(settings):
                named = replace(named, devices=self._device_nodes(settings, granted, uuids))
        _refuse_own_variable(granted, named)
        return named

    def _device_nodes(
        self, settings: NvidiaSettings, granted: Slice, uuids: Sequence[Uuid]
    ) -> tuple[DeviceNode, ...]:
        """Nodes for kubelet. Raises AllocationError: the driver does not tell a card's."""
        root, of_cards = self._root(settings), self._nodes_of(settings, granted.cards.values())
        found = [*nodes(root, *CONTROL_NODES)]
        for uuid in uuids:
            card = of_cards.get(uuid)
            if card is None:
                raise AllocationError(_no_minor(uuid))
            found.append(card)
        return tuple(DeviceNode(container_path=n.path, host_path=n.host_path) for n in found)

    # -- the choice --------------------------------------------------------------------------------
    def _way(self, settings: NvidiaSettings) -> HandOver:
        seen = self._situation.node
        signs = replace(
            self._own,
            has_root=self._root(settings).inside.is_dir(),
            is_simulated=_is_simulated(settings),
            kubelet=seen.kubelet_version if seen is not None else "",
            engine=seen.engine_version if seen is not None else "",
        )
        if wants_own_specs(settings, signs):
            signs = replace(signs, spec_problem=self._spec_problem(settings))
        return choose(settings, signs)

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
    def _root(self, settings: NvidiaSettings) -> DriverRoot:
        return driver_root_of(settings, self._validations)

    def _spec_problem(self, settings: NvidiaSettings) -> str:
        found = self._found = self._driver(settings)
        if isinstance(found, str):
            return found
        problem = self._spec_file.write_problem()
        return (
            f"{settings.cdi_spec_dir} is for our CDI specs, but {problem}: mount that folder of "
            "the host into this daemon's container, writable, or set --cdi-spec-dir"
            if problem
            else ""
        )

    def _driver(self, settings: NvidiaSettings) -> DriverOnHost | str:
        if _is_simulated(settings):
            return DriverOnHost()
        if settings.driver_root is None and self._validations.awaits_driver:
            # the host's own folder, taken instead, might have the remains of another driver
            return (
                f"the GPU Operator's driver is not ready ({self._validations.driver_mark} is "
                "missing): wait for it, or without the GPU Operator name the driver's folder by "
                "--driver-root"
            )
        return self._files.find(self._root(settings), settings)

    def _wants_specs(self, settings: NvidiaSettings) -> bool:
        has_root = self._root(settings).inside.is_dir()
        signs = replace(self._own, has_root=has_root, is_simulated=_is_simulated(settings))
        return wants_own_specs(settings, signs)

    def _keep_specs(self, settings: NvidiaSettings, situation: NodeSituation) -> None:
        """Specs for the cards of now, and of those that containers hold. Raises OSError."""
        kept = self._kept(situation)
        found = self._driver(settings) if self._wants_specs(settings) else ""
        if isinstance(found, DriverOnHost):
            self._warn_of_hook(found, settings)
            spec = make_spec(self._nodes_of(settings, situation.cards), found, kept)
            if spec is not None:
                self._write(spec)
                return
        if not kept and situation.answers is not None and self._spec_file.remove():
            log.info("cdi_specs_removed", extra=kv(file=str(self._spec_file.path)))

    def _kept(self, situation: NodeSituation) -> list[CdiDevice]:
        """Devices of the present file that containers name; all while these are not known."""
        present = self._spec_file.read()
        if present is None:
            return []
        if situation.answers is None:
            return list(present.devices)
        held = _cdi_names(situation.answers) | self._given
        return [device for device in present.devices if f"{OWN_KIND}={device.name}" in held]

    def _ensure_specs(
        self, settings: NvidiaSettings, granted: Slice, uuids: Sequence[Uuid]
    ) -> None:
        """The engine resolves the names when it makes the container, so they have to be right.

        The cards are those of now, which the last look at the node may not have seen.

        Raises:
            AllocationError: they can't be.
        """
        present, found = self._spec_file.read(), self._found
        cards = self._nodes_of(settings, granted.cards.values())
        unknown = [uuid for uuid in uuids if uuid not in cards]
        if isinstance(found, str) or unknown:
            raise AllocationError(found if isinstance(found, str) else _no_minor(unknown[0]))
        spec = make_spec(cards, found, present.devices if present is not None else ())
        try:
            if spec is not None:
                self._write(spec)
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

    def _nodes_of(
        self, settings: NvidiaSettings, cards: Iterable[Device]
    ) -> Mapping[str, HostNode | None]:
        """The device nodes of cards that have one; None for simulated cards."""
        if _is_simulated(settings):
            return {card.uuid: None for card in cards}
        root = self._root(settings)
        return {uuid: node(root, f"nvidia{minor}") for uuid, minor in minors_of(cards).items()}

    def _warn_of_hook(self, found: DriverOnHost, settings: NvidiaSettings) -> None:
        has_hook = bool(found.hook) or _is_simulated(settings)
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


def _is_simulated(settings: NvidiaSettings) -> bool:
    return settings.backend is BackendKind.SIMULATED


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


def _no_minor(uuid: str) -> str:
    return (
        f"the driver does not tell which device node card {uuid} has (nvidia-smi -q, Minor Number):"
        " hand over cards by environment alone (--device-list-strategy envvar)"
    )


def _cdi_names(answers: Iterable[ContainerResponse]) -> frozenset[str]:
    """Our CDI names in answers, by either strategy."""
    return frozenset(
        name
        for answer in answers
        for text in (*answer.cdi_devices, *(value for _, value in answer.annotations))
        for name in text.split(",")
        if name.startswith(f"{OWN_KIND}=")
    )
