"""On which nodes the daemon starts: never beside another plugin that the node's labels name."""

from __future__ import annotations

import pytest

from tests.unit.daemonset.manifests import FOLDER, Object, documents, starts_on
from tests.unit.daemonset.test_overlays import WITH_DAEMON, pod_of

SERVE = {"hami-node.io/serve": "true"}
NEVER = {"hami-node.io/serve": "false"}
OPERATOR = {"nvidia.com/gpu.present": "true"}
DISCOVERY = {"feature.node.kubernetes.io/pci-10de.present": "true"}
HAMI = {"gpu": "on"}
OPERATORS_PLUGIN = {"nvidia.com/gpu.deploy.device-plugin": "true"}
ELSEWHERE = {"simulated", "neuron"}
"""Overlays for nodes with labels of their own."""


@pytest.fixture
def base() -> Object:
    (found,) = documents(FOLDER / "base/daemonset/daemonset.yaml")
    spec: Object = found["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("labels", [SERVE, OPERATOR, DISCOVERY, OPERATOR | DISCOVERY])
def test_starts_on_nodes_with_cards_and_where_it_is_told_to(
    base: Object, labels: dict[str, str]
) -> None:
    assert starts_on(base, labels)


@pytest.mark.parametrize("other", [HAMI, OPERATORS_PLUGIN, HAMI | OPERATORS_PLUGIN])
@pytest.mark.parametrize("cards", [OPERATOR, DISCOVERY, OPERATOR | DISCOVERY])
def test_another_plugin_keeps_its_nodes_until_our_own_label_says_otherwise(
    base: Object, cards: dict[str, str], other: dict[str, str]
) -> None:
    assert not starts_on(base, cards | other)
    assert starts_on(base, cards | other | SERVE)


@pytest.mark.parametrize(
    "labels", [{}, HAMI, OPERATORS_PLUGIN, {"nvidia.com/gpu.present": "false"}]
)
def test_does_not_start_on_other_nodes(base: Object, labels: dict[str, str]) -> None:
    assert not starts_on(base, labels)


@pytest.mark.programs
@pytest.mark.parametrize("name", WITH_DAEMON)
def test_own_label_keeps_every_overlay_off(name: str) -> None:
    every = OPERATOR | DISCOVERY | NEVER | {"neuron": "on", "hami-node.io/simulated": "true"}
    assert not starts_on(pod_of(name)["spec"], every)


@pytest.mark.programs
@pytest.mark.parametrize("name", sorted(set(WITH_DAEMON) - ELSEWHERE))
def test_own_label_starts_every_overlay_for_nvidia_cards(name: str) -> None:
    assert starts_on(pod_of(name)["spec"], SERVE)


@pytest.mark.parametrize("processor", ["s390x", "ppc64le", "riscv64"])
def test_does_not_start_where_the_image_has_no_program_for_the_processor(
    base: Object, processor: str
) -> None:
    assert not starts_on(base, SERVE | OPERATOR | {"kubernetes.io/arch": processor})
