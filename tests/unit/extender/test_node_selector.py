"""`--node-label-selector`: which nodes are registered, by their labels."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.config.sources import ConfigSources
from hami_node.engine.place import Rules
from hami_node.errors import ConfigError
from hami_node.extender.rules import rules_of
from hami_node.extender.state.handshakes import HandshakeKeeper
from hami_node.inspection.picture import Basis, Listed, picture_of
from hami_node.setting_types import Role
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from tests.fakes.settings import load, settings
from tests.unit.extender.desk import Desk

SELECTOR = ("pool=gpu", "example.com/tier=")
LABELS = {"pool": "gpu", "example.com/tier": ""}
WHY = "the node does not have the labels of node-label-selector (pool=gpu,example.com/tier=)"
REPORTED = "Reported 2026-11-21 00:35:42.504460835 +0000 UTC m=+60.1"


def label(desk: Desk, node: str, labels: Mapping[str, str]) -> None:
    body = desk.kube.store.read("nodes", "", node)
    metadata = body["metadata"] | {"labels": dict(labels)}
    desk.kube.store.change("nodes", "", node, lambda old: old | {"metadata": metadata})
    desk.sync()


@pytest.fixture
def desk() -> Desk:
    """Two nodes with equal cards, of which one has the labels."""
    desk = Desk("ours", "other", values={"node_label_selector": SELECTOR})
    label(desk, "ours", LABELS | {"more": "labels"})
    desk.add_pod("a")
    desk.sync()
    return desk


@pytest.mark.parametrize(
    "labels",
    [{}, {"pool": "gpu"}, LABELS | {"pool": "cpu"}, {"example.com/tier": ""}],
    ids=["none", "one of two", "another value", "the other of two"],
)
def test_seed_002_node_label_selector_registers_matching_nodes(
    desk: Desk, labels: Mapping[str, str]
) -> None:
    label(desk, "other", labels)
    answer = desk.ask("a", "other")
    assert not answer["NodeNames"]
    assert answer["FailedAndUnresolvableNodes"] == {"other": f"node unregistered: {WHY}"}
    assert desk.choose("a") == "ours"


def test_seed_002_node_label_selector_follows_the_labels(desk: Desk) -> None:
    label(desk, "ours", {})
    assert desk.choose("a") == ""
    label(desk, "other", LABELS)
    assert desk.choose("a") == "other"


def test_pods_on_nodes_that_no_longer_match_stay_counted(desk: Desk) -> None:
    assert desk.choose("a") == "ours"
    label(desk, "ours", {})
    assert desk.held() == {"a": 6000}
    label(desk, "ours", LABELS)
    desk.add_pod("b")
    desk.sync()
    assert desk.choose("b") == ""


def test_nodes_that_do_not_match_get_no_handshake(desk: Desk) -> None:
    for node in ("ours", "other"):
        desk.kube.merge_patch_node(node, {nvidia_names.NODE_HANDSHAKE: REPORTED})
    desk.sync()
    HandshakeKeeper(desk.state, desk.kube, desk.clock).look()
    desk.sync()
    words = {
        name: node.annotations[nvidia_names.NODE_HANDSHAKE].split("_")[0]
        for name, node in desk.shown_nodes.items()
    }
    assert words == {"ours": "Requesting", "other": REPORTED}


def test_inspect_shows_why_a_node_is_not_used(desk: Desk) -> None:
    rules = rules_of(settings(node_label_selector=SELECTOR), VENDORS)
    basis = Basis(vendors=rules.vendors, rules=Rules(), node_labels=rules.node_labels)
    nodes = tuple(desk.shown_nodes.values())
    picture = picture_of(Listed(nodes=nodes, pods=()), basis, 0.0)
    assert picture.why_not_offered("ours") == ""
    assert picture.why_not_offered("other") == WHY


def test_hamis_spelling_is_understood() -> None:
    found = _loaded("pool=gpu, example.com/tier=,pool=cpu")
    assert found == {"pool": "cpu", "example.com/tier": ""}  # as in HAMi, the last one counts


@pytest.mark.parametrize("text", ["pool", "pool==gpu", "pool!=gpu", "=gpu", "pool in (a)", "a=-"])
def test_other_selectors_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a list, each a label as key=value"):
        _loaded(text)


def _loaded(text: str) -> Mapping[str, str]:
    sources = ConfigSources(
        blocks=SETTINGS_BLOCKS, flags={"node_label_selector": text}, env={}, role=Role.EXTENDER
    )
    return rules_of(load(sources), VENDORS).node_labels
