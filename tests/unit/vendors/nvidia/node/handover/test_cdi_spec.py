from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    CdiSpec,
    DriverOnHost,
    HostFile,
    HostNode,
    decode_spec,
    encode_spec,
    make_spec,
)
from tests.unit.vendors.nvidia.node.handover.cdi_schema import check

LIB = "/usr/lib64"
LIBRARY = HostFile(
    paths=(f"{LIB}/libcuda.so.5.1", f"{LIB}/libcuda.so.1", f"{LIB}/libcuda.so"),
    host_path="/drv/usr/lib64/libcuda.so.5.1",
)
SMI = HostFile(paths=("/usr/bin/nvidia-smi",), host_path="/drv/usr/bin/nvidia-smi")
DRIVER = DriverOnHost(
    nodes=(HostNode(path="/dev/nvidiactl", host_path="/dev/nvidiactl"),),
    libraries=(LIBRARY,),
    programs=(SMI,),
    folders=(LIB,),
    hook="/usr/bin/nvidia-cdi-hook",
)


def card(number: int, root: str = "") -> HostNode:
    path = f"/dev/nvidia{number}"
    return HostNode(path=path, host_path=root + path)


def made(*args: Any) -> dict[str, Any]:
    spec = make_spec(*args)
    assert spec is not None
    found: dict[str, Any] = json.loads(encode_spec(spec))
    check(found)
    return found


def test_spec_has_a_device_for_each_card_and_the_driver_once() -> None:
    spec = made({"GPU-b": card(1), "GPU-a": card(0)}, DRIVER)
    assert spec == {
        "cdiVersion": "0.3.0",
        "kind": "hami-node.io/gpu",
        "devices": [
            {
                "name": name,
                "containerEdits": {
                    "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                    "deviceNodes": [{"path": path, "permissions": "rw"}],
                },
            }
            for name, path in (("GPU-a", "/dev/nvidia0"), ("GPU-b", "/dev/nvidia1"))
        ],
        "containerEdits": {
            "deviceNodes": [{"path": "/dev/nvidiactl", "permissions": "rw"}],
            "mounts": [
                {
                    "hostPath": f"/drv{path}",
                    "containerPath": path,
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
                for path in ("/usr/bin/nvidia-smi", f"{LIB}/libcuda.so.5.1")
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": DRIVER.hook,
                    "args": ["nvidia-cdi-hook", *args],
                }
                for args in (
                    ["create-symlinks", "--link", f"libcuda.so.5.1::{LIB}/libcuda.so"],
                    ["update-ldcache", "--folder", LIB],
                )
            ],
        },
    }


def test_hooks_of_nvidia_ctk_are_below_its_command_hook() -> None:
    driver = replace(DRIVER, hook="/usr/bin/nvidia-ctk", limits_memory=True)
    spec = made({"GPU-a": card(0)}, driver)
    parts = (spec["containerEdits"], spec["devices"][0]["containerEdits"])
    begins = [hook["args"][:3] for part in parts for hook in part["hooks"]]
    assert begins == [
        ["nvidia-ctk", "hook", task]
        for task in ("create-symlinks", "update-ldcache", "apply-cuda-memory-limits")
    ]


def test_without_a_hook_libraries_are_there_under_every_name() -> None:
    driver = DriverOnHost(libraries=(LIBRARY,), folders=(LIB,))
    edits = made({"GPU-a": card(0)}, driver)["containerEdits"]
    assert "hooks" not in edits
    assert [mount["containerPath"] for mount in edits["mounts"]] == sorted(LIBRARY.paths)
    assert {mount["hostPath"] for mount in edits["mounts"]} == {LIBRARY.host_path}


def test_nodes_elsewhere_on_the_host_need_the_version_that_knows_host_paths() -> None:
    spec = made({"GPU-a": card(0, root="/drv")}, DRIVER)
    assert spec["cdiVersion"] == "0.5.0"
    assert spec["devices"][0]["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidia0", "hostPath": "/drv/dev/nvidia0", "permissions": "rw"}
    ]


def test_simulated_card_has_no_node_and_still_a_valid_spec() -> None:
    assert made({"GPU-a": None}, DriverOnHost())["devices"][0]["containerEdits"] == {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"]
    }


def test_no_card_no_spec() -> None:
    assert make_spec({}, DRIVER) is None


def test_devices_that_containers_name_are_kept_unless_their_node_is_another_cards_now() -> None:
    before = make_spec({"GPU-a": card(0), "GPU-b": card(1)}, DRIVER)
    assert before is not None
    kept = made({"GPU-c": card(2)}, DRIVER, before.devices)
    assert [device["name"] for device in kept["devices"]] == ["GPU-a", "GPU-b", "GPU-c"]
    renumbered = made({"GPU-c": card(1)}, DRIVER, before.devices)
    assert [device["name"] for device in renumbered["devices"]] == ["GPU-a", "GPU-c"]
    moved = made({"GPU-a": card(3)}, DRIVER, before.devices[:1])
    assert moved["devices"][0]["containerEdits"]["deviceNodes"][0]["path"] == "/dev/nvidia3"


def test_spec_is_read_as_it_was_written() -> None:
    spec = make_spec({"GPU-a": card(0, root="/drv")}, DRIVER)
    assert spec is not None
    assert decode_spec(encode_spec(spec)) == spec


@pytest.mark.parametrize(
    "change",
    [{"kind": "nvidia.com/gpu"}, {"devices": []}, {"devices": [{"name": "GPU a"}]}, {"kind": 1}],
)
def test_file_that_is_not_ours_is_nothing(change: dict[str, object]) -> None:
    spec = make_spec({"GPU-a": card(0)}, DRIVER)
    assert isinstance(spec, CdiSpec)
    assert decode_spec(json.dumps(json.loads(encode_spec(spec)) | change).encode()) is None


@given(st.binary(max_size=400))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert decode_spec(data) is None
