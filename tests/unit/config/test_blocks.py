"""A vendor that this test brings: its settings need no change outside its own declarations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from hami_node.config.settings import (
    changed_fields,
    keep_fixed,
    make_settings,
    plain,
    settings_of,
)
from hami_node.config.sources import ConfigSources, resolve
from hami_node.errors import ConfigError
from hami_node.setting_types import Count, Group, Role, SettingsBlock, setting
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.quantities import ResourceName
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.settings import load

NODE = {"NODE_NAME": "n1"}


class Speed(StrEnum):
    SLOW = "slow"
    FAST = "fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeSettings:
    acme_slots: Count = setting(
        4,
        "Containers on one Acme board.",
        flags=("acme-slot-count",),
        env=("ACME_SLOTS",),
        yaml="slotCount",
        node="acmeslots",
    )
    acme_speed: Speed = setting(
        Speed.SLOW,
        "Speed of the boards.",
        yaml="speed",
        node="acme.speed",
        refused={Speed.FAST: "the boards would melt: set slow"},
    )
    acme_level: Count = setting(1, "Level of the boards.", yaml="level", is_quoted=True)
    acme_hidden: tuple[str, ...] = setting((), "Boards left alone.", node="acme.hidden")
    acme_resource: ResourceName = setting(
        "acme.example/board", "Resource: boards.", yaml="resourceName"
    )


def _problems(values: AcmeSettings, role: Role) -> tuple[ConfigError, ...]:
    if role is not Role.DAEMON or values.acme_slots != 13:
        return ()
    return (ConfigError("settings", "acme-slots", 13, "boards dislike it"),)


ACME = SettingsBlock(
    kind=AcmeSettings,
    groups={"acme_slots": Group.SHARING, "acme_resource": Group.REQUESTS},
    section="acme",
    resources=("acme_resource",),
    fixed=("acme_resource",),
    idle_node_keys={"acmestrategy": ("none",)},
    problems=_problems,
)
BLOCKS = (*SETTINGS_BLOCKS, ACME)


def sources(folder: Path, yaml: str = "", node: object = None) -> ConfigSources:
    config_file = folder / "device-config.yaml"
    config_file.write_text(yaml or "nvidia: {}")
    node_file = folder / "config.json"
    node_file.write_text(json.dumps({"nodeconfig": [node] if node else []}))
    return ConfigSources(
        env=NODE, config_file=config_file, node_config_file=node_file, blocks=BLOCKS
    )


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        pytest.param({"acme_slots": "7"}, {}, id="flag"),
        pytest.param({}, {"HAMI_NODE_ACME_SLOTS": "7"}, id="own_env"),
        pytest.param({}, {"ACME_SLOTS": "7"}, id="other_env"),
    ],
)
def test_text_sets_it(flags: dict[str, str], env: dict[str, str]) -> None:
    found = load(ConfigSources(flags=flags, env={**NODE, **env}, blocks=BLOCKS))
    assert found.of(AcmeSettings) == AcmeSettings(acme_slots=7)
    assert found.of(NvidiaSettings) == NvidiaSettings()


@pytest.mark.parametrize(
    ("yaml", "node", "wanted"),
    [
        pytest.param("acme: {slotCount: 7}", None, {"acme_slots": 7}, id="section"),
        pytest.param("hami-node: {acme-slots: 7}", None, {"acme_slots": 7}, id="own_section"),
        pytest.param("acme: {level: '3'}", None, {"acme_level": 3}, id="quoted"),
        pytest.param("", {"acmeslots": 7}, {"acme_slots": 7}, id="node_entry"),
        pytest.param("", {"acme": {"hidden": ["b"]}}, {"acme_hidden": ("b",)}, id="object"),
        pytest.param("", {"acmestrategy": "none"}, {}, id="idle"),
    ],
)
def test_file_sets_it(
    yaml: str, node: dict[str, object] | None, wanted: dict[str, object], tmp_path: Path
) -> None:
    entry = {"name": "n1", **node} if node else None
    found = resolve(sources(tmp_path, yaml, entry))
    assert found.errors == ()
    assert found.settings == make_settings({"node_name": "n1", **wanted}, BLOCKS)
    assert found.settings.of(AcmeSettings) == AcmeSettings(**wanted)  # type: ignore[arg-type]


def test_contradictions_of_a_vendor_are_errors_of_the_program_that_minds() -> None:
    flags = {"acme_slots": "13"}
    (error,) = resolve(ConfigSources(flags=flags, env=NODE, blocks=BLOCKS)).errors
    assert error.hint == "boards dislike it"
    assert not resolve(ConfigSources(flags=flags, role=Role.EXTENDER, blocks=BLOCKS)).errors


@pytest.mark.parametrize("role", list(Role))
def test_resources_of_two_vendors_need_names_of_their_own(role: Role) -> None:
    flags = {"acme_resource": "nvidia.com/gpu"}
    (error,) = resolve(ConfigSources(flags=flags, env=NODE, role=role, blocks=BLOCKS)).errors
    assert (error.field, error.value) == ("acme-resource", "nvidia.com/gpu")
    assert "resource-count has the same name" in error.hint


def test_plain_holds_it_with_its_group() -> None:
    found = make_settings({"acme_hidden": ("a",), "acme_speed": Speed.FAST}, BLOCKS)
    acme, shown = found.of(AcmeSettings), plain(found)
    assert (acme.acme_slots, acme.acme_speed, acme.acme_hidden) == (4, Speed.FAST, ("a",))
    assert (shown["acme-level"], shown["acme-resource"]) == (acme.acme_level, acme.acme_resource)
    assert (shown["acme-slots"], shown["acme-speed"], shown["acme-hidden"]) == (4, "fast", ["a"])
    order = list(shown)
    assert order.index("split-count") < order.index("acme-slots") < order.index("resource-count")
    without = plain(make_settings({}, SETTINGS_BLOCKS))
    assert [name for name in shown if not name.startswith("acme-")] == list(without)


def test_changes_are_named_and_what_is_fixed_stays() -> None:
    old = make_settings({"node_name": "n1"}, BLOCKS)
    values = {"acme_slots": 5, "acme_resource": "acme.example/other", "node_name": "n2"}
    new = make_settings(values, BLOCKS, ignored=("x",))
    assert changed_fields(old, new) == ("node_name", "acme_slots", "acme_resource")
    kept, names = keep_fixed(old, new)
    assert names == ("acme_resource", "node_name")
    assert kept == make_settings({"node_name": "n1", "acme_slots": 5}, BLOCKS, ignored=("x",))


def test_program_reads_the_groups_that_concern_it() -> None:
    assert "acme_slots" in settings_of(Role.DAEMON, BLOCKS)
    assert "acme_slots" not in settings_of(Role.EXTENDER, BLOCKS)
    assert "acme_resource" in settings_of(Role.EXTENDER, BLOCKS)
