"""Keys and variables that no setting has: whose they are decides whether the program stops."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hami_node.config.files import FileValues, read_device_config, read_node_config
from hami_node.config.settings import declarations
from hami_node.config.sources import (
    ConfigSources,
    resolve,
    unknown_variables,
)
from hami_node.config.unknown_keys import NOT_FROM_FILES
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS

NODE = {"NODE_NAME": "n1"}
EVERY = declarations(SETTINGS_BLOCKS)


def device(text: str) -> FileValues:
    return read_device_config(text.encode(), "/c/device-config.yaml", SETTINGS_BLOCKS)


def entry(**keys: object) -> FileValues:
    data = json.dumps({"nodeconfig": [{"name": "n1", **keys}]}).encode()
    return read_node_config(data, "/c/config.json", "n1", SETTINGS_BLOCKS)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "hami-node: {log-lvel: debug}",
            "/c/device-config.yaml: hami-node: 'log-lvel' is wrong: there is no such setting; "
            "did you mean log-level?",
            id="letters",
        ),
        pytest.param("hami-node: {logLevel: debug}", "did you mean log-level?", id="camel_case"),
        pytest.param("hami-node: {log_level: debug}", "did you mean log-level?", id="underscore"),
        pytest.param("hami-node: {registerFormat: auto}", "mean register-format?", id="format"),
        pytest.param("hami-node: {deviceSplitCount: 3}", "did you mean split-count?", id="hamis"),
        pytest.param("hami-node: {device-split-count: 3}", "mean split-count?", id="other_flag"),
        pytest.param("hami-node: {colour: red}", "there is no such setting", id="nothing_near"),
        pytest.param("hami-node: {7: red}", "'hami-node: 7 is wrong"[1:], id="number"),
        pytest.param("hami-node: {null: red}", "hami-node: None is wrong", id="null"),
        pytest.param("hami-node: {kubeconfig: /x}", "no file can set it", id="not_from_files"),
        pytest.param("hami_node: {log-level: debug}", "did you mean hami-node:?", id="section"),
        pytest.param("haminode:", "did you mean hami-node:?", id="empty_section"),
        pytest.param(
            "log-level: debug", "write it as log-level below hami-node: in this file", id="top"
        ),
        pytest.param(
            "nvidia: {register-format: auto}",
            "nvidia: 'register-format' is wrong: this is ours: write it as register-format below "
            "hami-node: in this file",
            id="ours_among_hamis",
        ),
        pytest.param("awsneuron: {log-level: debug}", "write it as log-level", id="neuron"),
    ],
)
def test_misspelt_key_of_ours_is_an_error_that_says_what_to_write(text: str, sentence: str) -> None:
    found = device(text)
    (error,) = found.errors
    assert sentence in str(error)
    assert (found.values, found.ignored, found.warnings) == ({}, (), ())


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"standalon": True}, "config.json: nodeconfig[0]: 'standalon' is wrong: unknown; did "),
        ({"standalone_shares": {}}, "did you mean standaloneshares?"),
        ({"memory-limit-by": "driver"}, "below hami-node: in device-config.yaml, for all nodes"),
    ],
)
def test_misspelt_key_of_ours_in_a_nodes_entry_is_an_error(
    keys: dict[str, object], sentence: str
) -> None:
    (error,) = entry(**keys).errors
    assert sentence in str(error)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("nvidia: {deviceSplitCuont: 3}", "nvidia.deviceSplitCuont: unknown; did you mean device"),
        ("nvidia: {devicesplitcount: 3}", "did you mean deviceSplitCount?"),
        ("awsneuron: {resourceCoreNam: a/b}", "did you mean resourceCoreName?"),
        ("nvidea: {deviceSplitCount: 3}", "section nvidea: unknown; did you mean nvidia:?"),
        ("nvidia: {registerFormat: auto}", "write it as register-format below hami-node:"),
        ("nvidia: {limiter: optional}", "write it as limiter below hami-node:"),
        ("nvidia: {migStrategy: none}", "write it as mig-strategy below hami-node:"),
        ("schedulerName: x", "write it as scheduler-name below hami-node:"),
    ],
)
def test_misspelt_key_that_may_be_hamis_is_a_warning(text: str, warning: str) -> None:
    found = device(text)
    assert found.errors == ()
    (said,) = found.warnings
    assert said.startswith("device-config.yaml: ")
    assert warning in said


def test_misspelt_key_of_hamis_in_a_nodes_entry_is_a_warning() -> None:
    found = entry(deviceSplitCount=3, filterdevices={"uuids": ["GPU-1"]})
    assert found.errors == ()
    assert found.warnings == (
        "config.json: nodeconfig[0].deviceSplitCount: unknown; did you mean devicesplitcount?",
        "config.json: nodeconfig[0].filterdevices.uuids: unknown; did you mean uuid?",
    )


def test_key_that_a_version_of_hami_may_have_stops_no_node() -> None:
    found = entry(disablecorelimit=False, logLevel=3)
    assert found.errors == ()
    assert len(found.warnings) == 2


def test_key_of_another_version_of_hami_is_neither() -> None:
    found = device("nvidia: {sriovProfiles: []}\nhygon: {}\nmetax: {}\namd: {}")
    assert (found.errors, found.warnings) == ((), ())
    assert found.ignored == (
        "device-config.yaml: nvidia.sriovProfiles, section hygon, section metax, section amd",
    )


@pytest.mark.parametrize("name", sorted(set(EVERY) - NOT_FROM_FILES))
def test_setting_is_recognised_in_each_of_its_spellings(name: str) -> None:
    setting = EVERY[name]
    spellings = {name, name.upper(), *setting.names.flags} - {setting.flag}
    errors = device(json.dumps({"hami-node": dict.fromkeys(sorted(spellings), 1)})).errors
    hints = {str(error.value): error.hint for error in errors}
    assert set(hints) == spellings
    assert all(f"did you mean {setting.flag}?" in hint for hint in hints.values())


def test_a_mebibyte_of_unknown_keys_is_counted_not_compared() -> None:
    text = "hami-node:\n" + "".join(f"  log-level-{i}: 1\n" for i in range(40_000))
    found = device(text)
    assert len(found.errors) == 51
    assert found.errors[-1].value == "39950 more"
    of_hami = device("nvidia:\n" + "".join(f"  deviceSplitCount{i}: 1\n" for i in range(40_000)))
    assert (len(of_hami.warnings), len(of_hami.errors)) == (50, 0)
    assert of_hami.ignored == ("device-config.yaml: 39950 more keys",)
    text = "amd: {}\n" + "".join(f"hygon{i}: {{}}\n" for i in range(60)) + "hami-node: {colour: 1}"
    assert [error.value for error in device(text).errors] == ["12 more"]


def with_env(**variables: str) -> ConfigSources:
    return ConfigSources(blocks=SETTINGS_BLOCKS, env={**NODE, **variables})


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("HAMI_NODE_SPLIT_CUONT", "HAMI_NODE_SPLIT_COUNT"),
        ("HAMI_NODE_SPLITCOUNT", "HAMI_NODE_SPLIT_COUNT"),
        ("HAMI_NODE_DEVICE_SPLIT_COUNT", "HAMI_NODE_SPLIT_COUNT"),
        ("HAMI_NODE_LOGLEVEL", "HAMI_NODE_LOG_LEVEL"),
        ("HAMI_NODE_LIMITER_SHA_256", "HAMI_NODE_LIMITER_SHA256"),
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_misspelt_variable_is_an_error_in_both_programs(name: str, right: str, role: Role) -> None:
    env = {**NODE, name: "debug"}
    (error,) = resolve(ConfigSources(blocks=SETTINGS_BLOCKS, env=env, role=role)).errors
    assert str(error) == (
        f"environment: variable: {name!r} is wrong: unknown; did you mean {right}?"
    )


def test_somebodys_own_variable_is_only_mentioned() -> None:
    found = resolve(with_env(HAMI_NODE_TEAM="ml", HAMI_NODE_EMPTY="", HAMI_NODE_SPLIT_CUONT=""))
    assert found.errors == ()
    assert found.settings.ignored == ("HAMI_NODE_TEAM",)


def test_the_prefix_makes_no_variable_look_misspelt() -> None:
    others = ["HOSTNAME", "HOST_IP", "KEY", "LOG", "METRICS", "NAME", "NODE", "POD_UID", "REPLICAS"]
    found = resolve(with_env(**{f"HAMI_NODE_{name}": "x" for name in others}))
    assert found.errors == ()
    assert found.settings.ignored == tuple(f"HAMI_NODE_{name}" for name in others)


def links(service: str, port: int = 443, port_name: str = "HTTPS") -> dict[str, str]:
    """What Kubernetes sets in each pod of the namespace for a Service."""
    name = service.upper().replace("-", "_")
    address = "10.0.0.1"
    at = f"{name}_PORT_{port}_TCP"
    return {
        f"{name}_SERVICE_HOST": address,
        f"{name}_SERVICE_PORT": str(port),
        f"{name}_SERVICE_PORT_{port_name}": str(port),
        f"{name}_PORT": f"tcp://{address}:{port}",
        at: f"tcp://{address}:{port}",
        f"{at}_PROTO": "tcp",
        f"{at}_PORT": str(port),
        f"{at}_ADDR": address,
    }


@pytest.mark.parametrize(
    "service",
    ["hami-node", "hami-node-leader", "hami-node-webhook", "hami-node-log-level", "hami-node-http"],
)
def test_variables_of_services_are_not_even_mentioned(service: str) -> None:
    found = resolve(with_env(**links(service, port_name="LOG_LEVEL")))
    assert (found.errors, found.settings.ignored) == ((), ())


def test_no_setting_looks_like_the_variable_of_a_service() -> None:
    link = re.compile(r"_(SERVICE_HOST|SERVICE_PORT|PORT)(_|$)")
    assert not [name for name in EVERY if link.search("_" + name.upper())]


def test_thousands_of_variables_are_bounded() -> None:
    env = {f"HAMI_NODE_NODE_LABEL_SELECTOR{i}": "x" for i in range(5000)}
    found = unknown_variables(env, SETTINGS_BLOCKS)
    assert len(found.errors) == 50


def test_every_mistake_of_every_source_is_named_at_once(tmp_path: Path) -> None:
    config, node = tmp_path / "device-config.yaml", tmp_path / "config.json"
    config.write_text("hami-node: {log-lvel: debug}\nnvidia: {deviceSplitCount: 0}")
    node.write_text('{"nodeconfig": [{"name": "n1", "standalon": true}]}')
    found = resolve(
        ConfigSources(
            blocks=SETTINGS_BLOCKS,
            env={**NODE, "HAMI_NODE_LOGLEVEL": "debug"},
            flags={"compat": "3"},
            config_file=config,
            node_config_file=node,
        )
    )
    assert [str(error.value) for error in found.errors] == [
        "3",
        "HAMI_NODE_LOGLEVEL",
        "standalon",
        "log-lvel",
        "0",
    ]
