"""How this node hands over its cards: what is seen of it, the choice, and our own CDI specs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hami_node.errors import AllocationError, NodeUnfit
from hami_node.logs import kv
from hami_node.model import Device
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import BackendKind, VisibleDevicesForm
from hami_node.vendors.nvidia.driver.location import (
    HOST_MOUNT,
    OPERATORS_MOUNT,
    DriverRoot,
    driver_root_of,
)
from hami_node.vendors.nvidia.driver.validations import Validations
from hami_node.vendors.nvidia.mig.details import mig_of, minors_of
from hami_node.vendors.nvidia.node.driver_limit import Toolkit, toolkit_of
from hami_node.vendors.nvidia.node.handover.card_names import (
    Named,
    cdi_name,
    cdi_names,
    extras_of,
    name_cards,
)
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
    no_minor,
    node,
    nodes,
)
from hami_node.vendors.nvidia.node.handover.handed import Handed, handed_of
from hami_node.vendors.nvidia.node.handover.signs import has_injected_driver, own_visible_devices
from hami_node.vendors.nvidia.node.handover.spec_file import SpecFile
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import (
    DeviceNode,
    HandOverState,
    NodeSituation,
    Slice,
)

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.node.handover.mig.caps import CapNodes
    from hami_node.vendors.nvidia.node.handover.mig.instances import Instances, Place

log = logging.getLogger(__name__)

RECREATE: Final = "delete and recreate the pod"


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
        self._chosen_by: NvidiaSettings | None = None  # the settings of that choice
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
        from hami_node.vendors.nvidia.node.handover.mig.caps import CapNodes
        from hami_node.vendors.nvidia.node.handover.mig.instances import Instances

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
            settings, unwritten = self._settings(), ""
            found = self._driver(settings) if self._wants_specs(settings) else None
            try:
                self._keep_specs(settings, situation, found)
                self._keep_instances(settings, situation, found)
            except OSError as e:
                unwritten = self._unwritten(e)
                log.warning("cdi_specs_not_kept", extra=kv(reason=unwritten))
            if situation.node is not None:
                way = self._way(settings, found)
                is_lost = bool(unwritten) and way.uses_cdi
                self._show(HandOver(problem=unwritten) if is_lost else way)
                self._chosen_by = settings

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
        settings = self._settings()
        with self._lock:
            if not self._chosen(settings).uses_cdi:
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
    def name(self, granted: Slice) -> Named:
        """The part of a container's response that names its cards and MIG instances.

        Raises:
            AllocationError: no way works here, or an instance can't be reached.
        """
        handed, settings = handed_of(granted), self._settings()
        with self._lock:
            way = self._chosen(settings)
            if way.problem:
                raise NodeUnfit(f"the cards can't be handed over on this node: {way.problem}")
            if way.uses_cdi:
                self._ensure_specs(settings, granted, handed)
                self._given.update(map(cdi_name, handed.uuids))
            elif way.form is VisibleDevicesForm.RUNTIME and handed.instances:
                place = self._place(settings, granted.cards.values())
                self._instances.for_runtime(handed.instances, place)
            named = name_cards(handed.uuids, way, extras_of(settings))
            if settings.pass_device_specs and not _is_simulated(settings):
                named = replace(named, devices=self._device_nodes(settings, granted, handed))
        _refuse_own_variable(granted, named)
        return named

    def _device_nodes(
        self, settings: NvidiaSettings, granted: Slice, handed: Handed
    ) -> tuple[DeviceNode, ...]:
        """Nodes for kubelet. Raises AllocationError: the driver does not report one of them."""
        cards = granted.cards.values()
        root, of_cards = self._root(settings), self._nodes_of(settings, cards)
        found = [*nodes(root, *CONTROL_NODES)]
        for uuid in handed.cards:
            card = of_cards.get(uuid)
            if card is None:
                raise AllocationError(no_minor(uuid))
            found.append(card)
        if handed.instances:
            found += self._instances.for_kubelet(handed.instances, self._place(settings, cards))
        by_path = {n.path: n.host_path for n in found}  # instances may be of one card
        return tuple(DeviceNode(container_path=p, host_path=host) for p, host in by_path.items())

    # -- the choice --------------------------------------------------------------------------------
    def _chosen(self, settings: NvidiaSettings) -> HandOver:
        """The last look's choice, while it works: looking takes milliseconds that kubelet waits."""
        last = self._logged
        if last is None or last.problem or self._chosen_by != settings:
            return self._way(settings)
        return last

    def _way(self, settings: NvidiaSettings, found: DriverOnHost | str | None = None) -> HandOver:
        """Choose by what is there now; `found` is the driver where it has been looked for."""
        seen = self._situation.node
        signs = replace(
            self._own,
            has_root=self._root(settings).inside.is_dir(),
            is_simulated=_is_simulated(settings),
            kubelet=seen.kubelet_version if seen is not None else "",
            engine=seen.engine_version if seen is not None else "",
        )
        if wants_own_specs(settings, signs):
            signs = replace(signs, spec_problem=self._spec_problem(settings, found))
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

    def _place(self, settings: NvidiaSettings, cards: Iterable[Device]) -> Place:
        root = None if _is_simulated(settings) else self._root(settings)
        return self._instances.place(root, cards)

    def _spec_problem(self, settings: NvidiaSettings, found: DriverOnHost | str | None) -> str:
        found = self._found = self._driver(settings) if found is None else found
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

    def _keep_specs(
        self, settings: NvidiaSettings, situation: NodeSituation, found: DriverOnHost | str | None
    ) -> None:
        """Specs for the cards of now, and of those that containers hold. Raises OSError."""
        kept = self._kept(situation)
        if isinstance(found, DriverOnHost):
            self._warn_of_hook(found, settings)
            spec = make_spec(self._nodes_of(settings, situation.cards), found, kept)
            if spec is not None:
                self._write(spec)
                return
        if not kept and situation.answers is not None and self._spec_file.remove():
            log.info("cdi_specs_removed", extra=kv(file=str(self._spec_file.path)))

    def _keep_instances(
        self, settings: NvidiaSettings, situation: NodeSituation, found: DriverOnHost | str | None
    ) -> None:
        """Specs for the MIG instances that containers hold. Raises OSError."""
        answers, cards = situation.answers, situation.cards
        is_divided = any(mig.is_enabled for mig in map(mig_of, cards) if mig is not None)
        if not is_divided and not self._spec_file.has_more():
            return
        held = None if answers is None else cdi_names(answers) | self._given
        driver = found if isinstance(found, DriverOnHost) else None
        gone = self._instances.keep(cards, held, self._place(settings, cards), driver)
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

    def _ensure_specs(self, settings: NvidiaSettings, granted: Slice, handed: Handed) -> None:
        """The engine resolves the names when it makes the container, so they have to be right.

        The cards are those of now, which the last look at the node may not have seen.

        Raises:
            AllocationError: they can't be.
        """
        present, found = self._spec_file.read(), self._found
        cards = self._nodes_of(settings, granted.cards.values())
        unknown = [uuid for uuid in handed.cards if uuid not in cards]
        if isinstance(found, str) or unknown:
            raise AllocationError(found if isinstance(found, str) else no_minor(unknown[0]))
        kept = present.devices if present is not None else ()
        spec = make_spec(cards, found, kept) if handed.cards else None
        try:
            if spec is not None:
                self._write(spec)
            if handed.instances:
                place = self._place(settings, granted.cards.values())
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
