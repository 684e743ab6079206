"""The metrics of all resources of a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from hami_node.metrics.daemon import DaemonMetrics
from hami_node.model import Uuid
from hami_node.node.allocate.live_use import LiveUse
from hami_node.node.report.gauges import Gauges
from hami_node.node.report.readings import NodeCards
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.acme.protocol import acme_protocol
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.two_vendors import CARD, GPU, acme_card, pod_of
from tests.unit.node.served import Served


@pytest.fixture
def served(tmp_path: Path) -> Served:
    found = Served(tmp_path)
    found.gpu_backend.cards, found.card_backend.cards = (card(0),), (acme_card(),)
    for resource in found.both:
        resource.scanner.scan_once()
    return found


class Copied:
    """The gauges of both resources, with one pod that holds a card of each."""

    def __init__(self, served: Served) -> None:
        self.metrics = DaemonMetrics(CollectorRegistry(), "n1", FakeClock())
        live = LiveUse(
            watched=FakeCluster(pod_of(waiting=(";", ";"))),
            vendors=[nvidia_protocol(), acme_protocol()],
            has_served=lambda vendor, folder_name: False,
            clock=FakeClock(),
        )
        self.gauges = Gauges(
            metrics=self.metrics, resources=served.both, live=live, node=NodeCards()
        )

    def values(self, name: str, label: str) -> dict[str, float]:
        """Values of a family by one label."""
        return {
            sample.labels[label]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"hami_node_{name}"
        }


def test_cards_and_holders_of_all_resources_are_shown(served: Served) -> None:
    copied = Copied(served)
    copied.gauges.copy()
    granted = {uuid(0): 1000 * 2**20, "ACME-0": 500 * 2**20}
    assert copied.values("card_memory_granted_bytes", "uuid") == granted
    assert copied.values("allocation_memory_bytes", "uuid") == granted


def test_each_resource_is_registered_for_itself(served: Served) -> None:
    copied = Copied(served)
    served.card.lifecycle.registered.set()
    copied.gauges.copy()
    assert copied.values("registered", "resource") == {GPU: 0, CARD: 1}


def test_backends_of_one_name_show_the_longest_time_since_a_pass(served: Served) -> None:
    copied = Copied(served)
    served.gpu_backend.pass_age_s, served.card_backend.pass_age_s = 7.0, 3.0
    assert copied.values("backend_pass_age_seconds", "backend") == {"fake": 7.0}


def test_driver_errors_are_counted_once_and_as_their_vendor_judges_them(served: Served) -> None:
    copied = Copied(served)
    served.gpu_backend.errors = {(uuid(0), 31): 2, (uuid(0), 79): 1}
    served.card_backend.errors = {(Uuid("ACME-0"), 31): 1}
    copied.gauges.copy()
    copied.gauges.copy()
    assert copied.values("xid_events_total", "ignored") == {"true": 2, "false": 1}
    by_card = copied.values("xid_events_total", "uuid")
    assert by_card["ACME-0"] == 1
