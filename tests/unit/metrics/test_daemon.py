from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import ConfigError
from hami_node.metrics.cards import card_series
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.server import MAX_CONNECTIONS, MetricsServer, Probes
from hami_node.model import Device, Uuid
from hami_node.vendors.neuron.spec import NEURON_SPEC
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.documents import every_metric
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows

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
    physical_memory_mib=40960,
)
ON_CARD = {"node": "n1", "uuid": "GPU-1", "index": "0", "type": "NVIDIA A100-SXM4-40GB"}


@pytest.fixture
def metrics() -> DaemonMetrics:
    assert NEURON_SPEC.counter is not None
    return DaemonMetrics("n1", [NEURON_SPEC.counter])


Series = dict[str, list[tuple[dict[str, str], float]]]


def page(metrics: DaemonMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def scraped(metrics: DaemonMetrics) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(page(metrics)):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def shown(*cards: DeviceUsage) -> Series:
    """The series of these cards, under their own types."""
    metrics = DaemonMetrics("n1")
    metrics.sources.append(lambda: card_series("n1", [(use, use.device.model) for use in cards]))
    return scraped(metrics)


def test_card_series_use_base_units_and_the_same_labels() -> None:
    found = shown(DeviceUsage(device=CARD, slots_used=3, memory_used_mib=1024, cores_used=30))
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


def test_unhealthy_card_says_why() -> None:
    found = shown(DeviceUsage(device=replace(CARD, healthy=False, unhealthy_reason="XID 79")))
    assert found["hami_node_card_healthy"] == [(ON_CARD, 0)]
    assert found["hami_node_card_unhealthy"] == [({**ON_CARD, "reason": "XID 79"}, 1)]


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


def test_counters_are_exposed(metrics: DaemonMetrics) -> None:
    metrics.api_requests.count("patch", "pods", 200)
    metrics.api_requests.count("patch", "pods", 200)
    metrics.api_requests.count("get", "nodes", 0)
    metrics.locks_removed.count("stale")
    metrics.events_dropped.count()
    metrics.record_rebuilt.count("damaged")
    metrics.record_failures.count()
    metrics.of_vendors["neuron_violations"].count("P2")
    found = scraped(metrics)
    patched = {"node": "n1", "verb": "patch", "resource": "pods", "code": "200"}
    unanswered = {"node": "n1", "verb": "get", "resource": "nodes", "code": "0"}
    assert found["hami_node_api_requests_total"] == [(patched, 2), (unanswered, 1)]
    for name, labels in {
        "locks_removed_total": {"reason": "stale"},
        "events_dropped_total": {},
        "record_rebuilt_total": {"reason": "damaged"},
        "record_write_failures_total": {},
        "neuron_violations_total": {"rule": "P2"},
    }.items():
        assert found[f"hami_node_{name}"] == [({"node": "n1", **labels}, 1)], name
    assert "hami_node_build_info" in found


def test_alertable_counters_stand_at_zero_from_the_start(metrics: DaemonMetrics) -> None:
    found = scraped(metrics)
    for name in ("record_write_failures_total", "events_dropped_total"):
        assert found[f"hami_node_{name}"][0][1] == 0


def test_family_without_series_is_not_on_the_page(metrics: DaemonMetrics) -> None:
    shown = {line.split()[2] for line in page(metrics).splitlines() if line.startswith("# TYPE")}
    assert shown == {
        "hami_node_build_info",
        "hami_node_allocate_seconds",
        "hami_node_events_dropped_total",
        "hami_node_record_write_failures_total",
    }


def test_moments_of_creation_are_not_on_the_page(metrics: DaemonMetrics) -> None:
    metrics.count_allocate("ok", 0.001)
    assert "_created" not in page(metrics)


def test_labels_are_cut_to_a_length_that_prometheus_keeps(metrics: DaemonMetrics) -> None:
    metrics.count_allocate("x" * 500, 0.001)
    assert scraped(metrics)["hami_node_allocate_total"][0][0]["result"] == "x" * 120
    sick = replace(CARD, healthy=False, unhealthy_reason="y" * 500)
    found = shown(DeviceUsage(device=sick))
    assert found["hami_node_card_unhealthy"][0][0]["reason"] == "y" * 120


def test_card_that_is_offered_twice_is_one_series() -> None:
    found = shown(DeviceUsage(device=CARD), DeviceUsage(device=CARD, slots_used=2))
    assert found["hami_node_card_slots_used"] == [(ON_CARD, 2)]
    assert len(found["hami_node_card_info"]) == 1


def test_card_whose_real_memory_is_unknown_has_no_such_series() -> None:
    other = replace(CARD, uuid=Uuid("GPU-2"), physical_memory_mib=None)
    found = shown(DeviceUsage(device=CARD), DeviceUsage(device=other))
    assert found["hami_node_card_memory_physical_bytes"] == [(ON_CARD, 40960 * 2**20)]
    assert len(found["hami_node_card_memory_bytes"]) == 2


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
            metrics.api_requests.count("get", "pods", 200)

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
    eventually(lambda: sum(served.server._clients.values()) == MAX_CONNECTIONS)
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
    happens="the longest waiting of them make way; kubelet's probes are answered",
)
def test_probes_are_answered_beside_a_crowd_that_comes_without_end(served: Served) -> None:
    address, stop = ("127.0.0.1", served.server.port), threading.Event()

    def crowd() -> None:
        opened: deque[socket.socket] = deque()
        while not stop.is_set():
            with suppress(OSError):
                opened.append(socket.create_connection(address, 20))
            if len(opened) > 2 * MAX_CONNECTIONS:
                opened.popleft().close()
        for connection in opened:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(crowd)
        answers = {served.fetch("/healthz") for _ in range(50)}
        stop.set()
        coming.result(20)
    assert answers == {(200, "ok\n")}


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


def test_daemon_is_built_without_prometheus_client() -> None:
    code = "import sys, hami_node.node.daemon as _; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.strip() == b"False"
