"""ACME's settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.setting_types import Group, SettingsBlock, setting
from tests.acme import names


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeSettings:
    """What ACME adds to the settings."""

    acme_cards_file: Path | None = setting(None, "JSON file that lists this node's ACME cards.")
    acme_slots: int = setting(4, "How many containers may share one ACME card.", yaml="slots")
    acme_resource: str = setting(names.RESOURCE_CARD, "Resource: number of ACME cards.")


ACME_SETTINGS: Final = SettingsBlock(
    kind=AcmeSettings,
    groups={"acme_cards_file": Group.CARDS, "acme_resource": Group.REQUESTS},
    section="acme",
    resources=("acme_resource",),
    fixed=("acme_cards_file", "acme_resource"),
)
