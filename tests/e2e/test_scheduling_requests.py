"""What a burst through the scheduler costs the API server, counted in its audit log."""

from __future__ import annotations

import pytest

from tests.bench.burst import run_burst
from tests.e2e.audit import Audit
from tests.e2e.cluster import Cluster
from tests.e2e.extender import Extender
from tests.e2e.pods import Pods

_COUNT = 20
_DAEMON = "hami-node (daemon)"
_EXTENDER = "hami-node (extender)"
_REGULAR = 10
"""Reports, handshakes and renewed Leases that fall into the time of the burst."""


@pytest.mark.timeout(900)
def test_burst_costs_three_requests_a_pod_in_the_extender_and_two_in_the_daemon(
    cluster: Cluster, pods: Pods, extender: Extender
) -> None:
    audit = Audit(cluster.root / "log/audit.jsonl")
    plain = run_burst(pods, audit, "plain", _COUNT, has_cards=False)
    audit = Audit(cluster.root / "log/audit.jsonl")
    carded = run_burst(pods, audit, "cards", _COUNT, has_cards=True)
    print(
        f"{_COUNT} plain pods run after {plain.seconds:.1f} s, with a card {carded.seconds:.1f} s; "
        f"requests: {dict(carded.requests)}"
    )
    assert extender.wait_leader()
    assert carded.requests[_EXTENDER] <= 3 * _COUNT + _REGULAR
    assert carded.requests[_DAEMON] <= 2 * _COUNT + _REGULAR
