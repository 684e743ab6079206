from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from hami_node.errors import ConfigError
from hami_node.metrics.cards import AllocationReading, CardReading
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.metrics.pages import MAX_CONNECTIONS
from hami_node.metrics.server import MetricsServer, Probes
from hami_node.model import Device, Uuid
from hami_node.vendors.neuron.spec import NEURON_SPEC
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.documents import every_metric
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows


class HandClock(RealClock):
    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


CARD = Device(
    uuid=Uuid("GPU-1"),
    index=0,
    vendor=NVIDIA,
    model="NVIDIA A100-SXM4-40GB",
    slots=10,
    memory_mib=81920,
    cores=200,
    pci_bus="00000000:3B:00.0",
    numa=1,
)
ON_CARD = {"node": "n1", "uuid": "GPU-1", "index": "0", "type": "NVIDIA A100-SXM4-40GB"}


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def metrics(clock: HandClock) -> DaemonMetrics:
    assert NEURON_SPEC.counter is not None
    return DaemonMetrics(CollectorRegistry(), "n1", clock, [NEURON_SPEC.counter])


def page(metrics: DaemonMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def scraped(metrics: DaemonMetrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(page(metrics)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_card_series_use_base_units_and_the_same_labels(metrics: DaemonMetrics) -> None:
    metrics.set_cards(
        (
            CardReading(
                card=CARD,
                physical_memory_mib=40960,
                slots_used=3,
                memory_granted_mib=1024,
                cores_granted=30,
            ),
        )
    )
    found = scraped(metrics)
    expected = {
        "hami_node_card_healthy": 1,
        "hami_node_card_slots": 10,
        "hami_node_card_slots_used": 3,
        "hami_node_card_memory_physical_bytes": 40960 * 2**20,
        "hami_node_card_memory_bytes": 81920 * 2**20,
        "hami_node_card_memory_granted_bytes": 2**30,
        "hami_node_card_cores_ratio": 2,
        "hami_node_card_cores_granted_ratio": 0.3,
    }
    for name, value in expected.items():
        assert found[name] == [(ON_CARD, value)], name
    (info,) = found["hami_node_card_info"]
    assert info[0]["pci_bus"] == "00000000:3B:00.0"
    assert info[0]["numa"] == "1"
    assert "hami_node_card_unhealthy" not in found


def test_unhealthy_card_says_why_and_recovers(metrics: DaemonMetrics) -> None:
    sick = replace(CARD, healthy=False, unhealthy_reason="XID 79")
    metrics.set_cards((CardReading(card=sick),))
    found = scraped(metrics)
    assert found["hami_node_card_healthy"] == [(ON_CARD, 0)]
    assert found["hami_node_card_unhealthy"] == [({**ON_CARD, "reason": "XID 79"}, 1)]
    metrics.set_cards((CardReading(card=CARD),))
    assert "hami_node_card_unhealthy" not in scraped(metrics)


def test_series_of_a_lost_card_and_an_ended_container_vanish(metrics: DaemonMetrics) -> None:
    held = AllocationReading(
        namespace="ns", pod="p", container="c", uuid="GPU-1", memory_mib=512, cores=25
    )
    metrics.set_cards((CardReading(card=CARD),))
    metrics.set_allocations((held,))
    labels = {"node": "n1", "namespace": "ns", "pod": "p", "container": "c", "uuid": "GPU-1"}
    found = scraped(metrics)
    assert found["hami_node_allocation_memory_bytes"] == [(labels, 512 * 2**20)]
    assert found["hami_node_allocation_cores_ratio"] == [(labels, 0.25)]
    metrics.set_cards(())
    metrics.set_allocations(())
    found = scraped(metrics)
    assert "hami_node_allocation_memory_bytes" not in found
    assert "hami_node_card_slots" not in found


def test_two_grants_on_one_card_are_one_series(metrics: DaemonMetrics) -> None:
    held = AllocationReading(
        namespace="ns", pod="p", container="c", uuid="GPU-1", memory_mib=512, cores=25
    )
    metrics.set_allocations((held, held))
    ((_, value),) = scraped(metrics)["hami_node_allocation_memory_bytes"]
    assert value == 2**30


def test_allocate_is_counted_by_result_and_timed(metrics: DaemonMetrics) -> None:
    metrics.count_allocate("ok", 0.001)
    metrics.count_allocate("ok", 0.004)
    metrics.count_allocate("refused", 99.0)
    found = scraped(metrics)
    assert found["hami_node_allocate_total"] == [
        ({"node": "n1", "result": "ok"}, 2),
        ({"node": "n1", "result": "refused"}, 1),
    ]
    buckets = {labels["le"]: value for labels, value in found["hami_node_allocate_seconds_bucket"]}
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.005"]) == (1, 1, 2)
    assert (buckets["10.0"], buckets["+Inf"]) == (2, 3)
    assert found["hami_node_allocate_seconds_count"] == [({"node": "n1"}, 3)]
    assert found["hami_node_allocate_seconds_sum"][0][1] == pytest.approx(99.005)


def test_counters_and_states_are_exposed(metrics: DaemonMetrics) -> None:
    metrics.count_api_request("patch", "pods", 200)
    metrics.count_api_request("patch", "pods", 200)
    metrics.count_api_request("get", "nodes", 0)
    metrics.count_registration("nvidia.com/gpu")
    metrics.set_registered("nvidia.com/gpu", False)
    metrics.count_registration("nvidia.com/gpu")
    metrics.set_registered("nvidia.com/gpu", True)
    metrics.count_lock_removed("stale")
    metrics.count_event_dropped()
    metrics.count_config_loaded()
    metrics.count_config_failure()
    metrics.count_for_vendor("neuron_violations", "P2")
    metrics.count_xid("GPU-1", 31, is_ignored=True)
    metrics.set_simulated(True)
    metrics.set_limiters([("v2.8.1", "ab")], is_missing=True, is_defective=True)
    metrics.set_handshake_unanswered(True)
    api = scraped(metrics)["hami_node_api_requests_total"]
    patched = {"node": "n1", "verb": "patch", "resource": "pods", "code": "200"}
    unanswered = {"node": "n1", "verb": "get", "resource": "nodes", "code": "0"}
    assert api == [(patched, 2), (unanswered, 1)]
    found = {name: [value for _, value in rows] for name, rows in scraped(metrics).items()}
    assert found["hami_node_registrations_total"] == [2]
    for name in (
        "registered",
        "locks_removed_total",
        "events_dropped_total",
        "config_generation",
        "config_reload_failures_total",
        "neuron_violations_total",
        "xid_events_total",
        "simulated",
        "limiter_missing",
        "limiter_defective",
        "handshake_unanswered",
        "build_info",
    ):
        assert found[f"hami_node_{name}"] == [1], name
    assert scraped(metrics)["hami_node_handshake_unanswered"][0][0]["try_format"] == "csv9"


def test_ages_grow_until_marked_again(metrics: DaemonMetrics, clock: HandClock) -> None:
    assert "hami_node_report_age_seconds" not in scraped(metrics)
    metrics.mark_reported()
    metrics.watch_pass_age("nvml", lambda: clock.at - 95)
    clock.at += 40
    found = scraped(metrics)
    assert found["hami_node_report_age_seconds"][0][1] == 40
    assert found["hami_node_backend_pass_age_seconds"] == [({"node": "n1", "backend": "nvml"}, 45)]
    metrics.mark_reported()
    assert scraped(metrics)["hami_node_report_age_seconds"][0][1] == 0


def test_alertable_counters_stand_at_zero_from_the_start(metrics: DaemonMetrics) -> None:
    found = scraped(metrics)
    for name in ("config_reload_failures_total", "events_dropped_total", "simulated"):
        assert found[f"hami_node_{name}"][0][1] == 0


def test_family_without_series_is_not_on_the_page(metrics: DaemonMetrics) -> None:
    shown = {line.split()[2] for line in page(metrics).splitlines() if line.startswith("# TYPE")}
    assert shown == {
        "hami_node_build_info",
        "hami_node_simulated",
        "hami_node_allocate_seconds",
        "hami_node_config_generation",
        "hami_node_config_reload_failures_total",
        "hami_node_limiter_missing",
        "hami_node_limiter_defective",
        "hami_node_events_dropped_total",
        "hami_node_foreign_pods",
        "hami_node_init_reruns",
        "hami_node_record_drift_pods",
        "hami_node_record_write_failures_total",
    }


def test_moments_of_creation_are_not_on_the_page(metrics: DaemonMetrics) -> None:
    metrics.count_allocate("ok", 0.001)
    assert "_created" not in page(metrics)


def test_labels_are_cut_to_a_length_that_prometheus_keeps(metrics: DaemonMetrics) -> None:
    metrics.count_allocate("x" * 500, 0.001)
    sick = replace(CARD, healthy=False, unhealthy_reason="y" * 500)
    metrics.set_cards((CardReading(card=sick),))
    found = scraped(metrics)
    assert found["hami_node_allocate_total"][0][0]["result"] == "x" * 120
    assert found["hami_node_card_unhealthy"][0][0]["reason"] == "y" * 120


def test_card_that_is_offered_twice_is_one_series(metrics: DaemonMetrics) -> None:
    metrics.set_cards((CardReading(card=CARD), CardReading(card=CARD, slots_used=2)))
    found = scraped(metrics)
    assert found["hami_node_card_slots_used"] == [(ON_CARD, 2)]
    assert len(found["hami_node_card_info"]) == 1


def test_card_whose_real_memory_is_unknown_has_no_such_series(metrics: DaemonMetrics) -> None:
    other = replace(CARD, uuid=Uuid("GPU-2"))
    metrics.set_cards((CardReading(card=CARD, physical_memory_mib=1), CardReading(card=other)))
    found = scraped(metrics)
    assert found["hami_node_card_memory_physical_bytes"] == [(ON_CARD, 2**20)]
    assert len(found["hami_node_card_memory_bytes"]) == 2


def test_a_scrape_never_sees_half_a_set_of_cards(metrics: DaemonMetrics) -> None:
    cards = [replace(CARD, uuid=Uuid(f"GPU-{i}"), index=i) for i in range(8)]
    full = tuple(CardReading(card=card) for card in cards)
    families = ("card_info", "card_healthy", "card_cores_granted_ratio")
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            metrics.set_cards(())
            metrics.set_cards(full)

    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(change)
        sizes = set()
        for _ in range(50):
            found = scraped(metrics)
            sizes.add(tuple(len(found.get(f"hami_node_{name}", ())) for name in families))
        stop.set()
        changing.result(10)
    assert sizes <= {(0, 0, 0), (8, 8, 8)}


def test_what_is_counted_early_is_counted_when_the_metrics_come(metrics: DaemonMetrics) -> None:
    deferred = DeferredMetrics()
    deferred.note(lambda m: m.count_config_loaded())
    deferred.note(lambda m: m.count_registration("nvidia.com/gpu"))
    deferred.note(lambda m: m.set_registered("nvidia.com/gpu", False))
    deferred.put(metrics)
    deferred.note(lambda m: m.count_registration("example.com/card"))
    found = scraped(metrics)
    assert found["hami_node_config_generation"][0][1] == 1
    states = {labels["resource"]: value for labels, value in found["hami_node_registered"]}
    counts = {labels["resource"]: value for labels, value in found["hami_node_registrations_total"]}
    assert states == {"nvidia.com/gpu": 0, "example.com/card": 1}
    assert counts == {"nvidia.com/gpu": 1, "example.com/card": 1}


def test_names_follow_the_prefix_and_suffix_rules() -> None:
    families = every_metric()
    assert len({family.name for family in families}) == len(families) > 25
    for family in families:
        assert family.name.startswith("hami_node_")
        assert family.type in {"counter", "gauge", "histogram"}
        for sample in family.samples:
            labels = list(sample.labels)
            assert labels[0] == "node"
            is_of_holders = "_allocation_" in family.name or "_container_" in family.name
            assert not {"namespace", "pod"} & set(labels) or is_of_holders
            is_total = sample.name.endswith("_total")
            assert is_total == (family.type == "counter") or sample.name.endswith("_created")


def test_counting_from_many_threads_loses_nothing(metrics: DaemonMetrics) -> None:
    def count(_: int) -> None:
        for _ in range(200):
            metrics.count_api_request("get", "pods", 200)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert scraped(metrics)["hami_node_api_requests_total"][0][1] == 1600


class Served:
    def __init__(self, metrics: DaemonMetrics) -> None:
        self.live, self.ready = "", ""
        self.block = threading.Event()
        self.block.set()
        probes = Probes(
            live={"threads": lambda: self.live, "blocked": self._wait},
            ready={"kubelet": lambda: self.ready},
        )
        self.server = MetricsServer(
            "127.0.0.1:0", metrics.registry, probes, lambda: {"split-count": 10}
        ).start()

    def _wait(self) -> str:
        return "" if self.block.wait(20) else "blocked"

    def fetch(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def served(metrics: DaemonMetrics) -> Iterator[Served]:
    made = Served(metrics)
    yield made
    made.block.set()
    made.server.close()


def test_metrics_page_shows_ours_and_the_process(served: Served) -> None:
    status, text = served.fetch("/metrics")
    assert status == 200
    assert 'hami_node_build_info{node="n1",version=' in text
    assert "process_resident_memory_bytes" in text
    assert "hami_node_log_lines_dropped_total 0.0" in text


@pytest.mark.parametrize(
    ("path", "live", "ready", "status", "body"),
    [
        pytest.param("/healthz", "", "not registered", 200, "ok\n", id="live_is_not_ready"),
        pytest.param("/healthz", "reporter died", "", 503, "threads: reporter died\n", id="dead"),
        pytest.param("/readyz", "", "", 200, "ok\n", id="ready"),
        pytest.param(
            "/readyz", "", "not registered", 503, "kubelet: not registered\n", id="not_ready"
        ),
        pytest.param(
            "/other", "", "", 404, "/metrics /healthz /readyz /config\n", id="unknown_page"
        ),
    ],
)
def test_probe_names_the_reason(
    served: Served, path: str, live: str, ready: str, status: int, body: str
) -> None:
    served.live, served.ready = live, ready
    assert served.fetch(path) == (status, body)


def test_config_page_shows_the_effective_settings(served: Served) -> None:
    status, text = served.fetch("/config?x=1")
    assert (status, json.loads(text)) == (200, {"split-count": 10})


def test_too_many_connections_are_hung_up_and_the_server_lives_on(served: Served) -> None:
    served.block.clear()
    address = ("127.0.0.1", served.server.port)
    idle = [socket.create_connection(address, 20) for _ in range(MAX_CONNECTIONS)]
    for connection in idle:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
    eventually(lambda: len(served.server._server._served) == MAX_CONNECTIONS)
    refused = socket.create_connection(address, 20)
    assert refused.recv(1) == b""
    served.block.set()
    assert all(connection.recv(64).startswith(b"HTTP/1.0 200") for connection in idle)
    for connection in [*idle, refused]:
        connection.close()
    assert answers_again(served)


@shows(
    "E4",
    fault="slow connections take all places of the port for metrics",
    happens="the longest waiting one makes way; every page is answered meanwhile",
)
def test_clients_that_send_their_request_slowly_keep_nobody_out(served: Served) -> None:
    address = ("127.0.0.1", served.server.port)
    slow = [socket.create_connection(address, 20) for _ in range(2 * MAX_CONNECTIONS)]
    for connection in slow:
        with suppress(OSError):
            connection.sendall(b"G")
    for path in ("/healthz", "/readyz", "/metrics", "/config"):
        assert served.fetch(path)[0] == 200
    for connection in slow:
        connection.close()


@shows(
    "E4",
    fault="a pod opens connections to the port for probes without end",
    happens="its own make way; kubelet's stays",
)
def test_client_outlasts_a_crowd_from_elsewhere(served: Served) -> None:
    address = ("127.0.0.1", served.server.port)
    with socket.create_connection(address, 20) as probe:
        probe.sendall(b"GET /healthz HTTP/1.0\r\n")
        crowd = [
            socket.create_connection(address, 20, source_address=("127.0.0.2", 0))
            for _ in range(2 * MAX_CONNECTIONS)
        ]
        probe.sendall(b"\r\n")
        assert probe.recv(64).startswith(b"HTTP/1.0 200")
    for connection in crowd:
        connection.close()


def test_request_has_one_deadline_however_steady_it_comes(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port), 20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.0\r\n")
        connection.settimeout(0.2)
        began_s, ended = RealClock().monotonic(), False
        while not ended:
            assert RealClock().monotonic() - began_s < 60
            try:
                connection.sendall(b"a: b\r\n")
                ended = connection.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                ended = True
    assert served.fetch("/healthz")[0] == 200


def answers_again(served: Served) -> bool:
    """The places are given back a moment after the answers."""
    for _ in range(100):
        try:
            return served.fetch("/readyz")[0] == 200
        except (ConnectionError, http.client.HTTPException):
            threading.Event().wait(0.05)
    return False


def test_garbage_request_does_no_harm(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.server.port), 20) as connection:
        connection.sendall(b"\x00\xff garbage\r\n\r\n")
        assert b"400" in connection.recv(4096)
    assert served.fetch("/readyz")[0] == 200


def test_taken_port_is_refused_with_a_hint(served: Served) -> None:
    address = f"127.0.0.1:{served.server.port}"
    with pytest.raises(ConfigError, match=r"metrics-address.*choose another address"):
        MetricsServer(address, CollectorRegistry(), Probes(), dict)


def test_port_alone_listens_for_ipv4() -> None:
    server = MetricsServer(":0", CollectorRegistry(), Probes(), dict).start()
    try:
        socket.create_connection(("127.0.0.1", server.port), 20).close()
    finally:
        server.close()


def test_daemon_is_built_and_counts_without_prometheus_client() -> None:
    code = "import sys, hami_node.node.daemon as _; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


def test_record_shows_entries_by_source_drift_and_rebuilds() -> None:
    metrics = DaemonMetrics(CollectorRegistry(), "n1", FakeClock())
    metrics.set_record({"served": 3, "adopted": 1}, drifted_pods=2)
    metrics.count_record_rebuilt("damaged")
    metrics.count_record_failure()
    value = metrics.registry.get_sample_value
    assert value("hami_node_record_entries", {"node": "n1", "source": "adopted"}) == 1
    assert value("hami_node_record_drift_pods", {"node": "n1"}) == 2
    assert value("hami_node_record_rebuilt_total", {"node": "n1", "reason": "damaged"}) == 1
    assert value("hami_node_record_write_failures_total", {"node": "n1"}) == 1
