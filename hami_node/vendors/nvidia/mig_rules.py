"""The settings about cards in MIG mode, as the rooms that divide cards read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance, RegisterFormat
from hami_node.vendors.nvidia.mig.layout import AllowedProfiles, KnownGeometries, MigTemplate
from hami_node.vendors.nvidia.mig.offer import MigRules
from hami_node.vendors.nvidia.settings import NvidiaSettings

CSV_FORMS: Final = (RegisterFormat.CSV7, RegisterFormat.CSV9)


def mig_rules_of(settings: NvidiaSettings) -> MigRules:
    """What the settings say of cards in MIG mode."""
    return MigRules(
        allowed=tuple(
            AllowedProfiles(models=entry.models, profiles=entry.profiles)
            for entry in settings.mig_profile_allowlist
        ),
        geometries=known_geometries(settings.known_mig_geometries),
        is_csv=settings.register_format in CSV_FORMS,
    )


def known_geometries(listed: Sequence[ListedGeometries]) -> tuple[KnownGeometries, ...]:
    """The geometries as they are listed, in their order."""
    return tuple(
        KnownGeometries(
            models=entry.models,
            templates=tuple(tuple(map(_template_of, group)) for group in entry.allowed_geometries),
        )
        for entry in listed
    )


def _template_of(instance: ListedInstance) -> MigTemplate:
    return MigTemplate(
        name=instance.name,
        memory_mib=instance.memory,
        cores=instance.core,
        count=instance.count,
    )
