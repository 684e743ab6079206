"""How instances of others are asked for, and what can't be beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami_node.config.sources import ConfigSources
from hami_node.errors import ConfigError
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.settings import load, value_of

NODE = {"NODE_NAME": "n1"}


def sources(folder: Path, node: dict[str, object] | None = None, **env: str) -> ConfigSources:
    path = folder / "config.json"
    path.write_text(json.dumps({"nodeconfig": [{"name": "n1", **(node or {})}]}))
    return ConfigSources(blocks=SETTINGS_BLOCKS, env={**NODE, **env}, node_config_file=path)


@pytest.mark.parametrize(
    ("node", "env", "found"),
    [
        ({}, {}, MigStrategy.NONE),
        ({"migstrategy": "none"}, {}, MigStrategy.NONE),
        ({"migstrategy": ""}, {}, MigStrategy.NONE),
        ({"migstrategy": None}, {}, MigStrategy.NONE),
        ({"migstrategy": "mixed"}, {}, MigStrategy.MIXED),
        ({"migstrategy": "single"}, {}, MigStrategy.SINGLE),
        ({}, {"MIG_STRATEGY": "mixed"}, MigStrategy.MIXED),
    ],
)
def test_strategy_has_the_names_of_hami_and_of_nvidia(
    tmp_path: Path, node: dict[str, object], env: dict[str, str], found: MigStrategy
) -> None:
    loaded = load(sources(tmp_path, node, **env))
    assert value_of(loaded, "mig_strategy") is found
    assert loaded.ignored == ()


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (
            {"operatingmode": "mig", "migstrategy": "mixed"},
            "'mixed' is wrong: .*keep one of the two",
        ),
        ({"operatingmode": "mig", "migstrategy": "single"}, "mig-strategy none, or operatingmode"),
        ({"standalone": True, "migstrategy": "mixed"}, "standalone has no instances"),
        ({"migstrategy": "all"}, "one of none, single, mixed"),
    ],
    ids=["mixed", "single", "standalone", "unknown"],
)
def test_contradiction_is_refused_with_what_to_change(
    tmp_path: Path, node: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        load(sources(tmp_path, node))


@pytest.mark.parametrize("name", ["resource_count", "resource_cores"])
def test_resource_of_a_scheduler_is_not_named_like_an_instance(name: str) -> None:
    flags = {name: "nvidia.com/mig-1g.5gb"}
    with pytest.raises(ConfigError, match=r"nvidia\.com/mig- is one of MIG instances"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, flags=flags, env=NODE))
