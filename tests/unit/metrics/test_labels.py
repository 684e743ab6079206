"""Series that a flood can't multiply."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import generate_latest

from hami_node.engine.usage import PodGrants
from hami_node.metrics.cards import share_series
from hami_node.metrics.cluster import own_series
from hami_node.metrics.cluster_use import MAX_SHARES, ClusterUse, PodUse, shares_of
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.extender import ExtenderMetrics
from hami_node.metrics.families import MAX_SETS, bounded
from hami_node.metrics.hami import hami_series
from hami_node.model import ContainerKind, Grant, Pod, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.reliability import shows

CLAIMS = 3000
GRANT = Grant(uuid=Uuid("GPU-real"), vendor=NVIDIA, memory_mib=1, cores=0)


def pod(name: str, namespace: str) -> Pod:
    return Pod(namespace=namespace, name=name, uid=f"u-{name}", node_name="n1")


def claiming(name: str, grants: tuple[Grant, ...], namespace: str = "loud") -> PodUse:
    held = PodGrants(
        containers=tuple((grant,) for grant in grants), kinds=(ContainerKind.APP,) * len(grants)
    )
    return PodUse(pod(name, namespace), "n1", held)


@shows(
    "E11",
    fault="the annotation of one pod claims thousands of shares, to flood the metrics page",
    happens="128 series of each kind are shown of it, and everybody else's are whole",
)
def test_claims_of_one_pod_do_not_fill_the_page() -> None:
    loud = claiming("loud", tuple(replace(GRANT, uuid=Uuid(f"GPU-{i}")) for i in range(CLAIMS)))
    use = ClusterUse(offered={}, pods=(loud, claiming("quiet", (GRANT,), "team-b")))
    for page in (own_series(use), hami_series(use, ("", ""), {})):
        lines = [line for line in "".join(page).splitlines() if not line.startswith("#")]
        assert sum('namespace="loud"' in line for line in lines) == 2 * MAX_SHARES
        assert sum('namespace="team-b"' in line for line in lines) == 2


def test_endless_name_of_a_card_is_not_shown() -> None:
    endless = claiming("loud", (replace(GRANT, uuid=Uuid("x" * 200_000)),))
    text = "".join(own_series(ClusterUse(offered={}, pods=(endless,))))
    assert len(text) < 1000


def test_daemon_shows_so_many_shares_of_a_pod_and_no_endless_names() -> None:
    loud = claiming("loud", tuple(replace(GRANT, uuid=Uuid(f"GPU-{i}")) for i in range(CLAIMS)))
    endless = claiming("q", (replace(GRANT, uuid=Uuid("x" * 200_000)),))
    metrics = DaemonMetrics("n1")
    pods = (loud, claiming("quiet", (GRANT,), "team-b"), endless)
    shares = [share for item in pods for share in shares_of(item, {}, {})]
    metrics.sources.append(lambda: share_series("n1", shares))
    lines = generate_latest(metrics.registry).decode().splitlines()
    shown = [line for line in lines if line.startswith("hami_node_allocation_memory_bytes{")]
    assert sum('namespace="loud"' in line for line in shown) == MAX_SHARES
    assert sum('namespace="team-b"' in line for line in shown) == 1


def test_two_grants_on_one_card_are_one_share() -> None:
    held = PodGrants(containers=((GRANT, GRANT),))
    (share,) = shares_of(PodUse(pod("p", "ns"), "n1", held), {}, {})
    assert share[2].memory_mib == 2 * GRANT.memory_mib


def test_counters_have_so_many_sets_of_labels() -> None:
    daemon, extender = DaemonMetrics("n1"), ExtenderMetrics()
    for number in range(MAX_SETS + 100):
        daemon.locks_removed.count(f"odd-{number}")
        extender.decisions.count("filter", f"odd-{number}")
    for registry, name in (
        (daemon.registry, "hami_node_locks_removed_total{"),
        (extender.registry, "hami_node_extender_decisions_total{"),
    ):
        lines = generate_latest(registry).decode().splitlines()
        series = [line for line in lines if line.startswith(name)]
        assert len(series) == MAX_SETS + 1
        assert any('"other"' in line and line.endswith(" 100.0") for line in series)
    sums = bounded((("GPU", str(number)), 1) for number in range(MAX_SETS + 100))
    assert len(sums) == MAX_SETS + 1
    assert sums["other", "other"] == 100
