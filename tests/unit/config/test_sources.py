from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami_node.config.settings import declarations, plain
from hami_node.config.sources import ConfigSources, resolve
from hami_node.config.values import allowed
from hami_node.errors import ConfigError
from hami_node.logs import LogFormat
from hami_node.setting_types import Role
from hami_node.vendors.nvidia.choices import BackendKind, RegisterFormat
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.settings import load, settings, value_of
from tests.reliability import shows

NODE = {"NODE_NAME": "n1"}
SETTINGS = declarations(SETTINGS_BLOCKS)


def written(folder: Path, yaml: str = "", node: object = None) -> ConfigSources:
    config_file = node_file = None
    if yaml:
        config_file = folder / "device-config.yaml"
        config_file.write_text(yaml)
    node_file = folder / "config.json"
    node_file.write_text(json.dumps({"nodeconfig": [node] if node else []}))
    return ConfigSources(
        blocks=SETTINGS_BLOCKS, env=NODE, config_file=config_file, node_config_file=node_file
    )


def with_more(
    sources: ConfigSources, flags: dict[str, str] | None = None, env: dict[str, str] | None = None
) -> ConfigSources:
    return ConfigSources(
        blocks=SETTINGS_BLOCKS,
        flags=flags or {},
        env={**NODE, **(env or {})},
        config_file=sources.config_file,
        node_config_file=sources.node_config_file,
    )


@shows(
    "N14",
    fault="daemon and extender run on one machine",
    happens="their pages have different ports by default",
)
def test_programs_have_different_addresses_by_default() -> None:
    found = [
        resolve(ConfigSources(blocks=SETTINGS_BLOCKS, env={"NODE_NAME": "n1"}, role=role)).settings
        for role in (Role.DAEMON, Role.EXTENDER)
    ]
    assert [by_program.metrics_address for by_program in found] == [":9394", ":9395"]


def test_nothing_but_the_node_name_gives_the_defaults() -> None:
    assert load(ConfigSources(blocks=SETTINGS_BLOCKS, env=NODE)) == settings(node_name="n1")


def test_node_name_missing_is_refused_with_the_cure() -> None:
    with pytest.raises(ConfigError, match=r"NODE_NAME.*spec.nodeName"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS))


@pytest.mark.parametrize(
    ("flags", "env", "node", "yaml", "wanted"),
    [
        pytest.param({}, {}, None, "", 10, id="default"),
        pytest.param({}, {}, None, "nvidia: {deviceSplitCount: 2}", 2, id="yaml"),
        pytest.param({}, {}, 3, "nvidia: {deviceSplitCount: 2}", 3, id="node_over_yaml"),
        pytest.param({}, {"DEVICE_SPLIT_COUNT": "4"}, 3, "", 4, id="env_over_node"),
        pytest.param(
            {},
            {"DEVICE_SPLIT_COUNT": "4", "HAMI_NODE_SPLIT_COUNT": "5"},
            3,
            "",
            5,
            id="own_env_over_hamis",
        ),
        pytest.param(
            {"split_count": "6"}, {"HAMI_NODE_SPLIT_COUNT": "5"}, 3, "", 6, id="flag_over_all"
        ),
        pytest.param({}, {"HAMI_NODE_SPLIT_COUNT": ""}, 3, "", 3, id="empty_env_is_absent"),
        pytest.param({}, {}, None, "hami-node: {split-count: 7}", 7, id="own_section"),
    ],
)
def test_stronger_source_wins(
    flags: dict[str, str],
    env: dict[str, str],
    node: int | None,
    yaml: str,
    wanted: int,
    tmp_path: Path,
) -> None:
    entry = {"name": "n1", "devicesplitcount": node} if node else None
    sources = with_more(written(tmp_path, yaml, entry), flags, env)
    assert load(sources).of(NvidiaSettings).split_count == wanted


def test_origins_name_the_source_of_each_value(tmp_path: Path) -> None:
    entry = {"name": "n1", "devicecorescaling": 2}
    sources = written(tmp_path, "nvidia: {deviceSplitCount: 2, deviceCoreScaling: 3}", entry)
    found = resolve(with_more(sources, {"log_format": "json"}, {"HOOK_PATH": "/opt/hook"}))
    assert found.errors == ()
    assert dict(found.origins) == {
        "split_count": "device-config.yaml",
        "core_scaling": "config.json",
        "node_name": "environment",
        "hook_path": "environment",
        "log_format": "flag",
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        pytest.param("backend", "simulated", BackendKind.SIMULATED, id="enum"),
        pytest.param("register_format", "csv9", RegisterFormat.CSV9, id="format"),
        pytest.param("log_format", "json", LogFormat.JSON, id="log"),
        pytest.param("disable_core_limit", "True", True, id="go_true"),
        pytest.param("disable_core_limit", "t", True, id="go_t"),
        pytest.param("numa_topology", "0", False, id="go_0"),
        pytest.param("memory_scaling", "1.8", 1.8, id="float"),
        pytest.param("memory_scaling", "2", 2.0, id="whole_float"),
        pytest.param("filter_indexes", "0, 3", (0, 3), id="list"),
        pytest.param("filter_uuids", "", (), id="empty_list"),
        pytest.param("plugin_dir", "/x/y", Path("/x/y"), id="path"),
        pytest.param("kubeconfig", "/x/kc", Path("/x/kc"), id="optional_path"),
        pytest.param("operating_mode", "hami-core", Mode.HAMI_CORE, id="mode"),
        pytest.param("metrics_address", "off", "off", id="address_off"),
        pytest.param("metrics_address", "[::1]:9", "[::1]:9", id="address_v6"),
        pytest.param("xids_ignored", "13,31", (13, 31), id="xids"),
        pytest.param(
            "device_list_strategy", "envvar,cdi-cri", ("envvar", "cdi-cri"), id="strategies"
        ),
    ],
)
def test_flag_text_becomes_a_typed_value(name: str, text: str, value: object) -> None:
    flags = {"simulated_file": "/cards.yaml", name: text}
    assert (
        value_of(load(ConfigSources(blocks=SETTINGS_BLOCKS, flags=flags, env=NODE)), name) == value
    )


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        pytest.param("split_count", "0", "a whole number from 1 to 100000", id="low"),
        pytest.param("split_count", "ten", "a whole number from 1 to 100000", id="word"),
        pytest.param("split_count", "1.5", "a whole number from 1 to 100000", id="fraction"),
        pytest.param("memory_scaling", "0", "a number above 0 to 100", id="zero_scaling"),
        pytest.param("memory_scaling", "nan", "a number above 0 to 100", id="nan"),
        pytest.param("memory_scaling", "inf", "a number above 0 to 100", id="inf"),
        pytest.param("known_mig_geometries", "[", "a list, each with `models`", id="no_json"),
        pytest.param(
            "known_mig_geometries", "[\udcff]", "a list, each with `models`", id="no_unicode"
        ),
        pytest.param("known_mig_geometries", "{}", "a list, each with `models`", id="no_list"),
        pytest.param("default_cores", "101", "a whole number from 0 to 100", id="percent"),
        pytest.param("disable_core_limit", "maybe", "true or false", id="bool"),
        pytest.param("register_format", "csv", "one of auto, json, csv9, csv7", id="enum"),
        pytest.param("device_list_strategy", "cdi", "volume-mounts, cdi-annotations", id="cdi"),
        pytest.param("device_list_strategy", "auto,envvar", "auto stands alone", id="auto_and"),
        pytest.param("device_list_strategy", "cdi-cri,cdi-cri", "strategy once", id="twice"),
        pytest.param("device_list_strategy", "", "name a strategy", id="no_strategy"),
        pytest.param(
            "operating_mode",
            "mps",
            "hami-node does not serve MPS, whose limits a container can lift itself and whose "
            "clients share their faults (docs/mig.md): use hami-core, mig where the card has it, "
            "or NVIDIA's own device plugin on nodes for MPS; allowed is one of hami-core, mig",
            id="mps",
        ),
        pytest.param("mig_strategy", "all", "one of none, single, mixed", id="mig_strategy"),
        pytest.param("hook_path", "usr/local", "an absolute path", id="relative"),
        pytest.param("resource_count", "gpu", "an extended resource such as", id="resource"),
        pytest.param("resource_count", "a/b\nc", "an extended resource such as", id="newline"),
        pytest.param("metrics_address", "9394", "HOST:PORT, :PORT, or off", id="address"),
        pytest.param("filter_indexes", "0,-1", "a list, each a whole number from 0", id="list"),
        pytest.param("report_interval_s", "60", "a number above 0 to 55", id="interval"),
    ],
)
def test_wrong_flag_is_refused_with_what_is_allowed(name: str, text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ConfigSources(blocks=SETTINGS_BLOCKS, flags={name: text}, env=NODE))
    assert caught.value.field == "--" + name.replace("_", "-")
    assert caught.value.value == text
    assert hint in caught.value.hint


def test_wrong_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="environment: HOOK_PATH: 'x' is wrong"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, env={**NODE, "HOOK_PATH": "x"}))


@pytest.mark.parametrize("prefix", ["foo", "bad_prefix/", "/", "cdi.k8s.io/x", "CDI.k8s.io/"])
def test_annotations_that_no_engine_would_read_are_refused(prefix: str) -> None:
    env = {**NODE, "CDI_ANNOTATION_PREFIX": prefix}
    with pytest.raises(ConfigError, match=r"CDI_ANNOTATION_PREFIX.*such as cdi\.k8s\.io/"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, env=env))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("container-driver-root", "driver_root_ctr_path"),
        ("nvidia-dev-root", "dev_root"),
        ("nvidia-driver-root", "driver_root"),
        ("nvidia-ctk-path", "nvidia_cdi_hook_path"),
        ("cdi-annotation-prefix", "cdi_annotation_prefix"),
        ("pass-device-specs", "pass_device_specs"),
        ("gds-enabled", "gds_enabled"),
        ("mofed-enabled", "mofed_enabled"),
        ("gdrcopy-enabled", "gdrcopy_enabled"),
        ("device-list-strategy", "device_list_strategy"),
    ],
)
def test_flags_of_nvidias_own_plugin_are_known(theirs: str, ours: str) -> None:
    declared = declarations(SETTINGS_BLOCKS)[ours]
    assert theirs in (declared.flag, *declared.names.flags)


def test_settings_of_hami_without_effect_are_named_once() -> None:
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS,
        env={**NODE, "IMEX_CHANNEL_IDS": "0", "DEVICE_ID_STRATEGY": "uuid", "MIG_STRATEGY": "none"},
        ignored_flags=("fail-on-init-error", "fail-on-init-error"),
    )
    assert load(sources).ignored == ("--fail-on-init-error", "DEVICE_ID_STRATEGY")


def test_simulated_backend_needs_its_file() -> None:
    with pytest.raises(ConfigError, match="--simulated-file"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, flags={"backend": "simulated"}, env=NODE))


def test_two_resources_of_one_name_are_refused() -> None:
    flags = {"resource_memory": "nvidia.com/gpu"}
    with pytest.raises(ConfigError, match=r"resource-memory.*resource-count has the same name"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, flags=flags, env=NODE))


def test_missing_named_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"device-config.yaml.*No such file"):
        load(
            ConfigSources(
                blocks=SETTINGS_BLOCKS, env=NODE, config_file=tmp_path / "device-config.yaml"
            )
        )


def test_folder_instead_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, env=NODE, config_file=tmp_path))


def test_oversized_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "device-config.yaml"
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(ConfigError, match="too large"):
        load(ConfigSources(blocks=SETTINGS_BLOCKS, env=NODE, config_file=path))


def test_files_to_watch_are_the_named_ones() -> None:
    env = {**NODE, "CONFIG_FILE": "/a/device-config.yaml", "NODE_CONFIG_FILE": "/b/config.json"}
    sources = ConfigSources(blocks=SETTINGS_BLOCKS, env=env)
    assert sources.files() == (Path("/a/device-config.yaml"), Path("/b/config.json"))
    assert ConfigSources(blocks=SETTINGS_BLOCKS, env=NODE).files() == (Path("/config/config.json"),)


def test_every_error_is_collected_strongest_source_first(tmp_path: Path) -> None:
    sources = written(
        tmp_path,
        "nvidia: {deviceSplitCount: 0, deviceMemoryScaling: x}",
        {"name": "n1", "devicesplitcount": "3"},
    )
    found = resolve(with_more(sources, {"compat": "3"}))
    fields = [error.field for error in found.errors]
    assert fields == [
        "--compat",
        "nodeconfig[0].devicesplitcount",
        "nvidia.deviceSplitCount",
        "nvidia.deviceMemoryScaling",
    ]


def test_mig_geometries_are_json_outside_the_file() -> None:
    text = '[{"models": ["A30"], "allowedGeometries": [[{"name": "x", "memory": 9, "count": 1}]]}]'
    flags = {"known_mig_geometries": text}
    loaded = load(ConfigSources(blocks=SETTINGS_BLOCKS, flags=flags, env=NODE))
    shown = json.dumps(plain(loaded)["known-mig-geometries"])
    again = load(
        ConfigSources(blocks=SETTINGS_BLOCKS, env={**NODE, "HAMI_NODE_KNOWN_MIG_GEOMETRIES": shown})
    )
    assert again == loaded
    assert json.loads(shown)[0]["allowedGeometries"][0][0]["memory"] == 9


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_setting_says_what_it_is_and_what_is_allowed(name: str) -> None:
    assert SETTINGS[name].names.doc.endswith(".")
    assert allowed(SETTINGS[name])


NO_DEFAULT = (
    *("kubeconfig", "simulated_file", "cert_file", "key_file", "client_ca_file"),
    *("driver_root", "dev_root", "nvidia_cdi_hook_path"),
)


@pytest.mark.parametrize(
    "name",
    [n for n in SETTINGS if n not in NO_DEFAULT],
)
def test_every_default_is_allowed(name: str) -> None:
    value = plain(settings(node_name="n1"))[name.replace("_", "-")]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    loaded = load(
        ConfigSources(
            blocks=SETTINGS_BLOCKS, flags={"node_name": "n1", name: text} if text else {}, env=NODE
        )
    )
    assert value_of(loaded, name) == value_of(settings(node_name="n1"), name)
