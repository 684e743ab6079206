"""Settings for tests: every value by its field, whoever declares it."""

from __future__ import annotations

from hami_node.config.settings import Settings, declarations, make_settings
from hami_node.config.sources import ConfigSources, resolve
from hami_node.vendors.registry import SETTINGS_BLOCKS


def settings(**values: object) -> Settings:
    """The settings with these values; the rest have their defaults."""
    return make_settings(values, SETTINGS_BLOCKS)


def value_of(found: Settings, name: str) -> object:
    """The value of one setting by its field, or of another attribute of `Settings`."""
    declared = declarations(found.declared).get(name)
    return getattr(found, name) if declared is None else declared.value_in(found)


def load(sources: ConfigSources) -> Settings:
    """The settings of these sources.

    Raises:
        ConfigError: the first of the errors.
    """
    found = resolve(sources)
    if found.errors:
        raise found.errors[0]
    return found.settings
