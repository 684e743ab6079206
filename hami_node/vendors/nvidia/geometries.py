"""The MIG geometries that the configuration lists, as the scheduling rules take them."""

from __future__ import annotations

from hami_node.vendors.nvidia.mig import KnownGeometries, MigTemplate
from hami_node.vendors.nvidia.settings import ListedInstance, NvidiaSettings


def known_geometries(settings: NvidiaSettings) -> tuple[KnownGeometries, ...]:
    """The settings' geometries, in their order."""
    return tuple(
        KnownGeometries(
            models=entry.models,
            templates=tuple(tuple(map(_template_of, group)) for group in entry.allowed_geometries),
        )
        for entry in settings.known_mig_geometries
    )


def _template_of(instance: ListedInstance) -> MigTemplate:
    return MigTemplate(
        name=instance.name,
        memory_mib=instance.memory,
        cores=instance.core,
        count=instance.count,
    )
