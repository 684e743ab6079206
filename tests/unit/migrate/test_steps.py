"""What `steps.yaml` names is known, and whose a plugin is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec
import pytest

import hami_node.migrate.steps as module
from hami_node.cluster.objects import DaemonSet
from hami_node.migrate.seen.parts import Maker, maker_of

TEXT: Final = Path(module.__file__).with_name("steps.yaml").read_text(encoding="utf-8")
CODE: Final = Path(module.__file__).read_text(encoding="utf-8")
HEAD: Final = TEXT.index("parts:")


@pytest.mark.parametrize("pattern", [r"%\{(\w+)\}", r"\[!?(\w+)\] ", r'"[^"*]*\*(\w+)"'])
def test_everything_that_a_step_names_is_there(pattern: str) -> None:
    """A flag without a meaning would leave out a line that somebody needs."""
    named = set(re.findall(pattern, TEXT[HEAD:]))
    parts = set(re.findall(r"^  (\w+):", TEXT[HEAD : TEXT.index("\nfresh:")], re.MULTILINE))
    assert named
    assert {name for name in named if f'"{name}"' not in CODE} <= parts


@pytest.mark.parametrize(
    ("image", "maker"),
    [
        ("ghcr.io/hami-node/hami-node:1", Maker.OURS),
        ("docker.io/projecthami/hami:v2.10.0", Maker.HAMI),
        ("mirror.example/our-hami-fork:2", Maker.HAMI),
        ("nvcr.io/nvidia/k8s-device-plugin:v0.17", Maker.NVIDIA),
        ("mirror.example/nvidia/plugin@sha256:11", Maker.NVIDIA),
        ("mirror.example/k8s-device-plugin:v0.17", Maker.NVIDIA),
        ("docker.io/rocm/k8s-device-plugin:1.25", Maker.OTHER),
        ("rdma/k8s-rdma-shared-dev-plugin:1", Maker.OTHER),
    ],
)
def test_plugin_is_told_by_its_image_wherever_that_is_kept(image: str, maker: Maker) -> None:
    pod = {"containers": [{"name": "main", "image": image}]}
    body = {"metadata": {"name": "plugin"}, "spec": {"template": {"spec": pod}}}
    assert maker_of(msgspec.convert(body, DaemonSet)) is maker
