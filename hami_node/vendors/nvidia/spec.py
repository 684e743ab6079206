"""NVIDIA's entry in the list of vendors; each part is loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.mode import MigStrategy, Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.settings_block import NVIDIA_SETTINGS
from hami_node.vendors.nvidia.shares import share_resource
from hami_node.vendors.spec import PluginOptions, ServedCards, ServedResource, VendorSpec

if TYPE_CHECKING:
    from hami_node.config.settings import Settings
    from hami_node.model import Device, Uuid
    from hami_node.ports import Backend, Clock, OpenRecord
    from hami_node.vendors.demo import SharedCards
    from hami_node.vendors.divided import DividedCards
    from hami_node.vendors.nvidia.admission import NvidiaAdmission
    from hami_node.vendors.nvidia.node.leftovers import LimiterUpkeep
    from hami_node.vendors.nvidia.node.regions.limit_writer import NvidiaLimitWriter
    from hami_node.vendors.nvidia.node.regions.usage_reader import NvidiaUsageReader
    from hami_node.vendors.nvidia.node.response import NvidiaResponder
    from hami_node.vendors.nvidia.protocol import NvidiaProtocol
    from hami_node.vendors.on_node.limiter import LimiterInstalled, LimiterOrder
    from hami_node.vendors.on_node.parts import CardParts, PartSources, PartsState
    from hami_node.vendors.on_node.publication import CardSources, Publication


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


def _publication(sources: CardSources, settings: Callable[[], NvidiaSettings]) -> Publication:
    from hami_node.vendors.nvidia.node.publication import NvidiaPublication, StandalonePublication

    if settings().standalone:
        return StandalonePublication(sources)
    if settings().mig_strategy is not MigStrategy.NONE:
        from hami_node.vendors.nvidia.node.static_mig import InstancesPublication

        return InstancesPublication(sources, settings)
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


def _foreign_cards(device_id: str, cards: Sequence[Device]) -> tuple[Uuid, ...] | None:
    from hami_node.vendors.nvidia.node.foreign_ids import cards_named

    return cards_named(device_id, cards)


def _divided(cards: Sequence[Device], state: PartsState, settings: NvidiaSettings) -> DividedCards:
    from hami_node.vendors.divided import DividedCards
    from hami_node.vendors.nvidia.mig.shown import divided_cards

    return DividedCards(
        cards=divided_cards(
            cards, state.own, is_offered=settings.mig_strategy is not MigStrategy.NONE
        ),
        failures=state.failures,
    )


def _parts(sources: PartSources, settings: Callable[[], NvidiaSettings]) -> CardParts | None:
    """Instances of others need nobody to make them; ours on record are looked after anyway."""
    is_ours = settings().operating_mode is Mode.MIG
    if not is_ours and settings().mig_strategy is not MigStrategy.NONE:
        from hami_node.vendors.nvidia.node.static_mig import OfferedInstances

        return OfferedInstances()
    from hami_node.vendors.nvidia.nvml.backend import NvmlBackend

    if not isinstance(sources.backend, NvmlBackend):
        return None
    record = sources.records("mig-instances")
    if not is_ours and record.load() is None:
        return None
    from hami_node.vendors.nvidia.node.mig.keeper import MigKeeper

    started = sources.started_with
    return MigKeeper(
        sources.backend.mig,
        record,
        settings,
        sources.cards,
        sources.clock,
        may_switch=isinstance(started, NvidiaSettings) and started.operating_mode is Mode.MIG,
    )


def _responder(settings: Callable[[], NvidiaSettings]) -> NvidiaResponder:
    from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
    from hami_node.vendors.nvidia.node.limiter.hook_folder import node_hook_folder
    from hami_node.vendors.nvidia.node.response import NvidiaResponder

    folder = node_hook_folder(settings().hook_path, lambda: settings().limiter_sha256)
    return NvidiaResponder(folder, settings, NodeHandOver(settings))


def _upkeep(settings: Callable[[], NvidiaSettings]) -> LimiterUpkeep:
    from hami_node.vendors.nvidia.node.leftovers import LimiterUpkeep

    return LimiterUpkeep(settings().hook_path, lambda: settings().limiter_sha256)


def _usage_reader(settings: Callable[[], NvidiaSettings], clock: Clock) -> NvidiaUsageReader:
    from hami_node.vendors.nvidia.node.regions.feedback_writer import FeedbackWriter
    from hami_node.vendors.nvidia.node.regions.usage_reader import NvidiaUsageReader

    return NvidiaUsageReader(settings, FeedbackWriter(settings, clock.now))


def _limit_writer(settings: Callable[[], NvidiaSettings]) -> NvidiaLimitWriter:
    from hami_node.vendors.nvidia.node.regions.limit_writer import NvidiaLimitWriter

    return NvidiaLimitWriter(settings)


def _resources(
    settings: NvidiaSettings, cards: tuple[Device, ...]
) -> tuple[ServedResource[NvidiaSettings], ...]:
    """One that a scheduler places, or in standalone mode one for each size of a share.

    MIG instances that others have made are that resource too, or one for each profile.
    """
    if settings.standalone:
        return tuple(map(partial(_shares, settings), settings.standalone_shares.sizes))
    if settings.mig_strategy is not MigStrategy.NONE:
        from hami_node.vendors.nvidia.node.static_mig import instance_resources

        return instance_resources(settings, cards, _placed(settings))
    return (_placed(settings),)


def _placed(settings: NvidiaSettings) -> ServedResource[NvidiaSettings]:
    return ServedResource(
        name=settings.resource_count,
        offered=_offered,
        options=_options,
        count_setting="nvidia.deviceSplitCount",
    )


def _settled(settings: NvidiaSettings, cards: tuple[Device, ...]) -> NvidiaSettings:
    if settings.mig_strategy is MigStrategy.NONE:
        return settings
    from hami_node.vendors.nvidia.mig.static import effective

    return replace(settings, mig_strategy=effective(settings.mig_strategy, cards))


def _shares(settings: NvidiaSettings, shares: int) -> ServedResource[NvidiaSettings]:
    def offered(cards: tuple[Device, ...], now: NvidiaSettings) -> tuple[Device, ...]:
        from hami_node.vendors.nvidia.node.sharing import cards_in_shares

        return cards_in_shares(cards, now, shares)

    return ServedResource(
        name=share_resource(settings.resource_count, shares),
        offered=offered,
        options=_options,
        count_setting="hami-node.standalone-shares",
    )


def _options(settings: NvidiaSettings) -> PluginOptions:
    return PluginOptions(prefers=settings.preferred_allocation, shows_numa=settings.numa_topology)


SERVED: Final = ServedCards(
    make_backend=_backend,
    apply=_apply,
    resources=_resources,
    settled=_settled,
    make_responder=_responder,
    make_usage_reader=_usage_reader,
    harmless_errors=lambda settings: frozenset(settings.xids_ignored),
    make_limit_writer=_limit_writer,
    make_upkeep=_upkeep,
    make_parts=_parts,
    foreign_cards=_foreign_cards,
    divided=_divided,
)


def _demo() -> SharedCards:
    from hami_node.vendors.nvidia.demo import NVIDIA_DEMO

    return NVIDIA_DEMO


def _install_limiter(order: LimiterOrder) -> LimiterInstalled:
    from hami_node.vendors.nvidia.node.limiter.install import install

    return install(order)


NVIDIA_SPEC: Final = VendorSpec(
    settings=NVIDIA_SETTINGS,
    protocol=_protocol,
    demo=_demo,
    admission=_admission,
    publication=_publication,
    served=SERVED,
    install_limiter=_install_limiter,
)
