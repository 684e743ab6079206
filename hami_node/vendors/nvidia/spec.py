"""NVIDIA's entry in the list of vendors; each part is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hami_node.vendors.nvidia.settings import NVIDIA_SETTINGS, BackendKind, NvidiaSettings
from hami_node.vendors.spec import PluginOptions, ServedResource, VendorSpec

if TYPE_CHECKING:
    from hami_node.config.settings import Settings
    from hami_node.model import Device
    from hami_node.ports import Backend, Clock, OpenRecord
    from hami_node.vendors.demo import SharedCards
    from hami_node.vendors.nvidia.admission import NvidiaAdmission
    from hami_node.vendors.nvidia.node.publication import NvidiaPublication
    from hami_node.vendors.nvidia.node.response import NvidiaResponder
    from hami_node.vendors.nvidia.protocol import NvidiaProtocol
    from hami_node.vendors.publication import CardSources


def _protocol(settings: NvidiaSettings, compat: str) -> NvidiaProtocol:
    from hami_node.engine.compat import V2_8
    from hami_node.vendors.nvidia.protocol import nvidia_protocol

    return nvidia_protocol(settings, is_101_unset=compat == V2_8.name)


def _admission(settings: NvidiaSettings, compat: str) -> NvidiaAdmission:
    from hami_node.vendors.nvidia.admission import NvidiaAdmission

    return NvidiaAdmission(
        protocol=_protocol(settings, compat),
        runtime_class_name=settings.runtime_class_name,
        core_policy=settings.core_policy,
        hides_cards=settings.overwrite_env,
    )


def _publication(sources: CardSources, settings: Callable[[], NvidiaSettings]) -> NvidiaPublication:
    from hami_node.vendors.nvidia.node.publication import NvidiaPublication

    return NvidiaPublication(sources, settings)


def _backend(settings: Settings, clock: Clock, records: OpenRecord) -> Backend:
    if settings.of(NvidiaSettings).backend is BackendKind.SIMULATED:
        from hami_node.vendors.nvidia.node.simulated import simulated_backend

        return simulated_backend(settings)
    from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, nvml_settings

    return NvmlBackend(clock, nvml_settings(settings), records("cards"))


def _apply(backend: Backend, settings: Settings) -> None:
    from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, nvml_settings

    if isinstance(backend, NvmlBackend):
        backend.apply(nvml_settings(settings))


def _offered(cards: tuple[Device, ...], settings: NvidiaSettings) -> tuple[Device, ...]:
    from hami_node.vendors.nvidia.node.sharing import offered_cards

    return offered_cards(cards, settings)


def _responder(settings: Callable[[], NvidiaSettings]) -> NvidiaResponder:
    from hami_node.vendors.nvidia.node.hook_folder import HookFolder
    from hami_node.vendors.nvidia.node.response import NvidiaResponder

    return NvidiaResponder(HookFolder(settings().hook_path), settings)


SERVED: Final = ServedResource(
    name=lambda settings: settings.resource_count,
    make_backend=_backend,
    apply=_apply,
    offered=_offered,
    options=lambda settings: PluginOptions(
        prefers=settings.preferred_allocation, shows_numa=settings.numa_topology
    ),
    make_responder=_responder,
    count_setting="nvidia.deviceSplitCount",
    harmless_errors=lambda settings: frozenset(settings.xids_ignored),
)


def _demo() -> SharedCards:
    from hami_node.vendors.nvidia.demo import NVIDIA_DEMO

    return NVIDIA_DEMO


NVIDIA_SPEC: Final = VendorSpec(
    settings=NVIDIA_SETTINGS,
    protocol=_protocol,
    demo=_demo,
    admission=_admission,
    publication=_publication,
    served=SERVED,
)
