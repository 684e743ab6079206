from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.config import files
from hami_node.config.files import FileValues
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance, ListedProfiles
from hami_node.vendors.registry import SETTINGS_BLOCKS

CHART_2_10 = b"""
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  preConfiguredDeviceMemory: 0
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 3
  deviceCoreScaling: 1
  enableNumaTopology: false
  gpuCorePolicy: default
  libCudaLogLevel: "1"
  runtimeClassName: ""
  migProfileAllowlist:
    - models: ["A30"]
      profiles: ["1g.6gb"]
cambricon:
  resourceCountName: cambricon.com/vmlu
iluvatars:
  - chipName: BI-V100
awsneuron:
  resourceCountName: aws.amazon.com/neuron
  resourceCoreName: aws.amazon.com/neuroncore
"""


def read_device_config(data: bytes, source: str) -> FileValues:
    return files.read_device_config(data, source, SETTINGS_BLOCKS)


def read_node_config(data: bytes, source: str, node_name: str | None) -> FileValues:
    return files.read_node_config(data, source, node_name, SETTINGS_BLOCKS)


def test_hamis_own_device_config_is_read_as_it_is() -> None:
    found = read_device_config(CHART_2_10, "/c/device-config.yaml")
    assert found.errors == ()
    assert found.values["memory_scaling"] == 3.0
    assert found.values["lib_cuda_log_level"] == 1
    assert found.values["neuron_core_resource"] == "aws.amazon.com/neuroncore"
    assert found.ignored == ("device-config.yaml: section cambricon, section iluvatars",)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        pytest.param(
            b"nvidia: {deviceSplitCount: '10'}", "nvidia.deviceSplitCount", "10", id="text"
        ),
        pytest.param(
            b"nvidia: {deviceSplitCount: true}", "nvidia.deviceSplitCount", True, id="bool"
        ),
        pytest.param(
            b"nvidia: {deviceMemoryScaling: -1}", "nvidia.deviceMemoryScaling", -1, id="low"
        ),
        pytest.param(
            b"nvidia: {deviceMemoryScaling: .inf}",
            "nvidia.deviceMemoryScaling",
            float("inf"),
            id="inf",
        ),
        pytest.param(
            b"nvidia: {overwriteEnv: 'no'}", "nvidia.overwriteEnv", "no", id="quoted_bool"
        ),
        pytest.param(b"nvidia: {gpuCorePolicy: max}", "nvidia.gpuCorePolicy", "max", id="enum"),
        pytest.param(b"nvidia: {libCudaLogLevel: '9'}", "nvidia.libCudaLogLevel", "9", id="level"),
        pytest.param(
            b"awsneuron: {resourceCoreName: x}", "awsneuron.resourceCoreName", "x", id="neuron"
        ),
        pytest.param(
            b'nvidia: {resourceCountName: "a.b/c\\n"}',
            "nvidia.resourceCountName",
            "a.b/c\n",
            id="newline",
        ),
        pytest.param(b"nvidia: [1]", "nvidia", "[1]", id="list_for_section"),
        pytest.param(b"[1, 2]", "document", "[1, 2]", id="list_for_document"),
        pytest.param(b"", "document", None, id="empty"),
        pytest.param(b"hami-node: {limiter: no}", "hami-node.limiter", False, id="own"),
    ],
)
def test_wrong_device_config_names_file_field_and_value(
    text: bytes, field: str, value: object
) -> None:
    (error,) = read_device_config(text, "/c/device-config.yaml").errors
    assert (error.source, error.field, error.value) == ("/c/device-config.yaml", field, value)
    assert error.hint


@pytest.mark.parametrize(
    ("text", "excerpt"),
    [
        pytest.param(
            b"nvidia:\n  a: 1\n  a: 2\n", "line 3, column 3: \"the key 'a'", id="repeated"
        ),
        pytest.param(b"nvidia:\n\tx: 1\n", "line 2, column 1", id="tab"),
        pytest.param(b"[" * 5000, "at most 32 levels", id="deep"),
        pytest.param(b"- " * 5000, "at most 32 levels", id="deep_block"),
        pytest.param(b"a: 2020-13-45", "month must be in", id="date"),
        pytest.param(b"? [a]\n: b", "unhashable key", id="list_as_key"),
        pytest.param(b"a: \x00", "control characters", id="binary"),
        pytest.param(b"a: !!python/object:os.system x", "constructor", id="object"),
        pytest.param(b"a: 0x" + b"f" * 5000, "a number of 5002 characters", id="hexadecimal"),
        pytest.param(b"a: " + b"9" * 5000, "a number of 5000 characters", id="digits"),
        pytest.param(b"a: " + b"59:" * 2000 + b"1", "a number of 6001 char", id="base_60"),
        pytest.param(b"a: &a [*a]", "line 1: '*a'", id="alias_within_itself"),
        pytest.param(
            b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n"
            + b"".join(
                b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 9))
                for i in range(1, 12)
            ),
            "may stand for 10000 values",
            id="alias_bomb",
        ),
        pytest.param(
            b"a: &a [" + b"x," * 5000 + b"]\nb: *a\nc: &a [x]\nd: *a\ne: &a [*a]",
            "line 5: '*a'",
            id="alias_within_a_second_anchor_of_its_name",
        ),
    ],
)
def test_broken_yaml_says_where(text: bytes, excerpt: str) -> None:
    (error,) = read_device_config(text, "f.yaml").errors
    assert excerpt in str(error)


def test_aliases_of_ordinary_size_are_values_like_others() -> None:
    text = b"nvidia: &a {deviceSplitCount: &n 4, deviceCoreScaling: *n}\nother: *a"
    found = read_device_config(text, "f.yaml")
    assert found.errors == ()
    assert (found.values["split_count"], found.values["core_scaling"]) == (4, 4.0)


def test_list_may_be_text_with_commas_as_in_flags() -> None:
    text = b"hami-node: {device-list-strategy: 'envvar, volume-mounts', xids-ignored: '13,31'}"
    found = read_device_config(text, "f.yaml")
    assert found.errors == ()
    assert found.values == {
        "device_list_strategy": ("envvar", "volume-mounts"),
        "xids_ignored": (13, 31),
    }


@pytest.mark.parametrize("value", ["abc", "[abc]", "'amd64=12,arm64=34'"])
def test_wrong_sha256_says_what_one_is(value: str) -> None:
    (error,) = read_device_config(f"hami-node: {{limiter-sha256: {value}}}".encode(), "f").errors
    assert (
        "each 64 hexadecimal digits in lower case, alone or behind amd64= or arm64=" in error.hint
    )


def test_null_values_are_absent() -> None:
    found = read_device_config(b"nvidia: {deviceSplitCount: null}\nawsneuron:\n", "f")
    assert (found.values, found.errors) == ({}, ())


def test_node_name_can_not_come_from_a_file() -> None:
    found = read_device_config(b"hami-node: {node-name: x, log-level: debug}", "f.yaml")
    assert found.values == {"log_level": "debug"}
    (error,) = found.errors
    assert (error.field, error.value) == ("hami-node", "node-name")
    assert "use the flag --node-name" in error.hint


def nodeconfig(*entries: object) -> bytes:
    return json.dumps({"nodeconfig": entries}).encode()


def test_every_key_of_hamis_node_config_is_known() -> None:
    entry = {
        "name": "n1",
        "operatingmode": "hami-core",
        "devicememoryscaling": 1.8,
        "devicecorescaling": 2,
        "devicesplitcount": 5,
        "preconfigureddevicememory": 100,
        "libcudaloglevel": "3",
        "enablenumatopology": True,
        "migstrategy": "none",
        "filterdevices": {"uuid": ["GPU-1"], "index": [0, 2]},
        "enablegetpreferredallocation": False,
    }
    found = read_node_config(nodeconfig(entry), "config.json", "n1")
    assert (found.errors, found.ignored) == ((), ())
    assert found.values == {
        "operating_mode": "hami-core",
        "memory_scaling": 1.8,
        "core_scaling": 2.0,
        "split_count": 5,
        "preconfigured_memory_mib": 100,
        "lib_cuda_log_level": 3,
        "numa_topology": True,
        "mig_strategy": "none",
        "filter_uuids": ("GPU-1",),
        "filter_indexes": (0, 2),
        "preferred_allocation": False,
    }


def split(name: str, count: int) -> dict[str, object]:
    return {"name": name, "devicesplitcount": count}


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        pytest.param([split("n2", 3)], None, id="other_node"),
        pytest.param([split("n1", 3), split("n2", 4)], 3, id="own_node"),
        pytest.param([split("n1", 3), split("n1", 4)], 4, id="later_entry"),
        pytest.param([split("n*", 3)], 3, id="pattern"),
        pytest.param([split("n1", 5), split("n*", 3)], 5, id="exact_over_later_pattern"),
        pytest.param([split("N1", 5)], None, id="case_matters"),
        pytest.param([{"name": "n1", "devicesplitcount": None}], None, id="null"),
    ],
)
def test_node_entry_is_chosen_by_name(entries: list[object], wanted: int | None) -> None:
    found = read_node_config(nodeconfig(*entries), "config.json", "n1")
    assert found.values.get("split_count") == wanted


def test_wrong_value_of_another_node_does_not_matter_here() -> None:
    data = nodeconfig(split("n2", 0), split("n1", 3))
    assert read_node_config(data, "f", "n1").errors == ()
    assert [e.field for e in read_node_config(data, "f", None).errors] == [
        "nodeconfig[0].devicesplitcount"
    ]


@pytest.mark.parametrize(
    ("data", "field"),
    [
        pytest.param(b"{", "file", id="not_json"),
        pytest.param(b"\xff", "file", id="not_utf8"),
        pytest.param(b"[" * 100_000, "file", id="deep"),
        pytest.param(b"[]", "nodeconfig", id="list"),
        pytest.param(b"{}", "nodeconfig", id="no_nodeconfig"),
        pytest.param(nodeconfig(1), "nodeconfig[0].name", id="number_entry"),
        pytest.param(nodeconfig({"devicesplitcount": 1}), "nodeconfig[0].name", id="no_name"),
        pytest.param(
            nodeconfig({"name": "n1", "filterdevices": []}),
            "nodeconfig[0].filterdevices",
            id="filter",
        ),
        pytest.param(
            nodeconfig({"name": "n1", "filterdevices": {"index": ["0"]}}),
            "nodeconfig[0].filterdevices.index",
            id="index_as_text",
        ),
        pytest.param(
            nodeconfig({"name": "n1", "operatingmode": "mps"}),
            "nodeconfig[0].operatingmode",
            id="mps",
        ),
    ],
)
def test_wrong_node_config_names_the_field(data: bytes, field: str) -> None:
    errors = read_node_config(data, "config.json", "n1").errors
    assert [error.field for error in errors] == [field]


def test_unknown_keys_of_the_own_entry_are_named() -> None:
    entry = {"name": "n1", "sharing": "mixed", "colour": 1, "filterdevices": {"model": []}}
    found = read_node_config(nodeconfig(entry), "/c/config.json", "n1")
    assert found.ignored == (
        "config.json: nodeconfig[0].sharing, nodeconfig[0].colour, "
        "nodeconfig[0].filterdevices.model",
    )


TEXT = st.text(alphabet="a1é./ -", max_size=6)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON = SCALAR | st.lists(SCALAR, max_size=3) | st.dictionaries(TEXT, SCALAR, max_size=3)
KEYS = ["name", "devicesplitcount", "devicememoryscaling", "filterdevices", "libcudaloglevel"]


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), JSON), max_size=3))
def test_any_json_gives_values_or_named_errors(entries: list[object]) -> None:
    data = json.dumps({"nodeconfig": entries}).encode()
    found = read_node_config(data, "f", None)
    assert all(error.field.startswith("nodeconfig[") for error in found.errors)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_values_or_named_errors(data: bytes) -> None:
    for found in (read_device_config(data, "f"), read_node_config(data, "f", "n")):
        assert found.values == {}
        assert found.errors or found.ignored or data


@given(st.dictionaries(st.sampled_from(["deviceSplitCount", "libCudaLogLevel", "x"]), JSON))
def test_any_yaml_value_gives_a_value_or_an_error(section: dict[str, object]) -> None:
    data = json.dumps({"nvidia": section}).encode()
    found = read_device_config(data, "f")
    assert len(found.values) + len(found.errors) <= max(1, len(section))


GEOMETRIES = b"""
nvidia:
  knownMigGeometries:
    - models: ["A30"]
      allowedGeometries:
        - - {name: 1g.6gb, memory: 6144, count: 4}
        - - {name: 2g.12gb, core: 50, memory: 12288, count: 1, more: ignored}
"""


def test_mig_geometries_of_2_9_are_read() -> None:
    found = read_device_config(GEOMETRIES, "f.yaml")
    assert (found.errors, found.ignored) == ((), ())
    assert found.values["known_mig_geometries"] == (
        ListedGeometries(
            models=("A30",),
            allowed_geometries=(
                (ListedInstance(name="1g.6gb", memory=6144, count=4, core=0),),
                (ListedInstance(name="2g.12gb", memory=12288, count=1, core=50),),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"count: 4", b"count: -1", id="negative"),
        pytest.param(b", count: 4", b"", id="no count"),
        pytest.param(b"memory: 6144", b"memory: 6Gi", id="no number"),
        pytest.param(b'models: ["A30"]', b"models: A30", id="no list of models"),
        pytest.param(b"        - - {name: 1g", b"        - {name: 1g", id="no list of lists"),
    ],
)
def test_broken_mig_geometries_are_an_error(old: bytes, new: bytes) -> None:
    (error,) = read_device_config(GEOMETRIES.replace(old, new), "f.yaml").errors
    assert error.field == "nvidia.knownMigGeometries"
    assert "`models` and `allowedGeometries`" in str(error)


ALLOWLIST = b"""
nvidia:
  migProfileAllowlist:
    - models: ["A100-SXM4-40GB"]
      profiles: [1g.5gb, "1g.10gb+me", 7g.40gb]
"""


def test_mig_profile_allowlist_of_2_10_is_read() -> None:
    found = read_device_config(ALLOWLIST, "f.yaml")
    assert (found.errors, found.ignored) == ((), ())
    assert found.values["mig_profile_allowlist"] == (
        ListedProfiles(models=("A100-SXM4-40GB",), profiles=("1g.5gb", "1g.10gb+me", "7g.40gb")),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b"1g.5gb", b"1g", id="no size"),
        pytest.param(b"1g.5gb", b"MIG 1g.5gb", id="the driver's prefix"),
        pytest.param(b"1g.5gb", b"0g.5gb", id="no slices"),
        pytest.param(b"1g.5gb", b"all", id="a word"),
        pytest.param(b'models: ["A100-SXM4-40GB"]', b"models: A100", id="no list of models"),
        pytest.param(b"      profiles: ", b"      profile: ", id="no profiles"),
    ],
)
def test_broken_mig_profile_allowlist_is_an_error(old: bytes, new: bytes) -> None:
    (error,) = read_device_config(ALLOWLIST.replace(old, new), "f.yaml").errors
    assert error.field == "nvidia.migProfileAllowlist"
    assert "`models` and `profiles`" in str(error)
