"""A real Prometheus, set up from our component, asks daemon and extender everything we ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import tenants
from tests.e2e.api import Api
from tests.e2e.cards import COUNT, Cards, lost
from tests.e2e.cluster import Cluster
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.monitoring import Operator
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import LIMIT_S, eventually
from tests.monitoring.prometheus import (
    Prometheus,
    alerts_in_error,
    firing,
    running_prometheus,
    without_series,
)

NOT_HERE: Final = {
    "hami_node_container_memory_used_bytes{part": "no card is divided",
    "hami_node_card_parts": "no card is divided",
    "hami_node_card_mode_info": "no card is divided",
    "hami_node_container_part_info": "no card is divided",
    "hami_node_container_part_xid_events": "no card is divided",
    "hami_node_part_call_failures": "no card is divided",
    "hami_node_container_usage_unreadable": "every limiter's file can be read",
    "hami_node_record_rebuilt": "the record is whole",
    "hami_node:record_lost": "the record is whole",
    "hami_node_resource_taken": "no other plugin is there",
    "hami_node_extender_nodes_backed_off": "no node is backed off",
    "hami_node_xid_events": "the driver has no error to tell",
    "hami_node:driver_errors": "the driver has no error to tell",
    'hami_node_allocate_total{result!~"ok': "nobody is refused",
    "hami_node:allocate_refused": "nobody is refused",
    "hami_node_extender_resizes": "nobody resizes a pod",
    "hami_node_extender_card_slots) == 0": "every card is offered",
    "ALERTS": "empty until an alert's time is over",
}
"""Series, or parts of a query, that can't occur here, with the reason."""


@pytest.fixture
def prometheus(
    cluster: Cluster, api: Api, extender: Extender, tmp_path: Path
) -> Iterator[Prometheus]:
    assert extender
    operator = Operator(cluster, api)
    operator.install()
    try:
        with running_prometheus(tmp_path, operator.scrape_configs()) as server:
            yield server
    finally:
        operator.remove()


def excused(query: str) -> bool:
    return any(name in query for name in NOT_HERE)


def test_every_query_is_answered_with_series(
    prometheus: Prometheus, pods: Pods, cards: Cards
) -> None:
    tenants.install()
    pods.create("busy", tenants.tenant("busy", memory_mib=2000, cores=30), scheduler=DEFAULT)
    pods.wait_running("busy")
    tenants.hold("busy", 1000, launches=True)
    wide = RealContainer(name="c0", cards=1, memory_mib=10**6, cores=1)
    pods.create("wide", wide, scheduler=DEFAULT)
    cards.show(lost(COUNT - 1))
    for query in (
        'hami_node_container_last_kernel_age_seconds{pod="busy"}',
        "hami_node_card_unhealthy",
        "hami_node_extender_waiting_pods",
        'hami_node_extender_card_slots_used{uuid!=""} > 0',
    ):
        prometheus.wait_for(query, LIMIT_S)
    assert without_series(prometheus, excused, LIMIT_S) == []
    assert alerts_in_error(prometheus) == []
    jobs = {each["labels"]["job"] for each in prometheus.targets()}
    assert jobs == {"hami-node-metrics", "hami-node-extender-metrics"}
    eventually(
        "all are scraped", lambda: {each["health"] for each in prometheus.targets()} == {"up"}
    )
    assert not prometheus.series("{exported_pod!=''}")
    eventually("the alert", lambda: "HamiCardUnhealthy" in firing(prometheus))
