from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.registry import CollectorRegistry

from hami_node.config.settings import MetricNames, Settings, make_settings
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.model import Uuid
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.usage.passes import Usage, UsagePasses
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import ContainerUse, HostUse, UnreadUse
from hami_node.record.ledger import Key
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.usage import Holder, UseFindings
from hami_node.vendors.spec import AnyVendor
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.ledgers import a_ledger, an_entry
from tests.fakes.live_kube import FakeCluster
from tests.fakes.waiting import eventually


def use(pod: str, memory_bytes: int = 7, limit_bytes: int | None = 100) -> ContainerUse:
    return ContainerUse(
        namespace="default", pod=pod, container="main", uuid=uuid(0), index=0, position=0,
        memory_bytes=memory_bytes, context_bytes=1, module_bytes=2, data_bytes=4,
        core_percent=30, limit_bytes=limit_bytes, core_limit_percent=None, last_kernel_s=None,
    )  # fmt: skip


class FakeReader:
    """`vendors.usage.UsageReader`: everybody uses a little."""

    def __init__(self) -> None:
        self.running: list[Mapping[Uuid, Collection[int]]] = []
        self.passes: list[bool] = []
        self.unclear: frozenset[Uuid] = frozenset()
        self.unread: tuple[UnreadUse, ...] = ()
        self.error: Exception | None = None
        self.limit_bytes: int | None = 100
        self.position = 0

    def read(
        self,
        holders: Sequence[Holder],
        running: Mapping[Uuid, Collection[int]],
        *,
        is_last: bool = False,
    ) -> UseFindings:
        if self.error is not None:
            raise self.error
        self.running.append(running)
        self.passes.append(is_last)
        return UseFindings(
            uses=tuple(
                replace(use(holder.pod, limit_bytes=self.limit_bytes), position=self.position)
                for holder in holders
            ),
            unread=self.unread,
            unclear=self.unclear,
        )


class Node:
    """One vendor's cards with a ledger."""

    def __init__(self, tmp_path: Path, interval_s: float = 5.0) -> None:
        self.settings = self.with_interval(interval_s, tmp_path)
        self.backend, self.reader = FakeBackend(card(0), card(1)), FakeReader()
        vendor: AnyVendor = NVIDIA_SPEC
        assert vendor.served is not None
        owner = VendorCards(
            NVIDIA_SPEC,
            replace(
                vendor.served,
                make_backend=lambda settings, clock, records: self.backend,
                make_usage_reader=lambda settings, clock: self.reader,
            ),
            lambda: self.settings,
            clock=FakeClock(),
            stop=threading.Event(),
            metrics=DeferredMetrics(),
        )
        owner.find_cards()
        owner.offer()
        self.ledger = a_ledger(an_entry("a"), an_entry("b"))
        self.beyond: list[Collection[Key]] = []
        self.metrics = DaemonMetrics(CollectorRegistry(), "n1", FakeClock())
        protocol = nvidia_protocol()
        live = LiveUse(
            watched=FakeCluster(), vendors=[protocol], ledger=self.ledger, clock=FakeClock()
        )
        self.passes = UsagePasses(
            settings=lambda: self.settings,
            metrics=self.metrics,
            vendor_cards=[owner],
            protocols=[protocol],
            ledger=self.ledger,
            live=live,
            clock=RealClock(),
            on_beyond=self.beyond.append,
        )

    @staticmethod
    def with_interval(interval_s: float, plugin_dir: Path) -> Settings:
        values = {"usage_interval_s": interval_s, "plugin_dir": plugin_dir}
        return make_settings(values, (NVIDIA_SPEC.settings,))

    def series(self, name: str) -> dict[str, float]:
        """Values by pod, or by UUID."""
        return {
            sample.labels.get("pod") or sample.labels["uuid"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"hami_node_{name}"
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_one_pass_is_kept_and_shown(node: Node) -> None:
    node.backend.used = {uuid(1): HostUse(memory_bytes=5)}
    node.passes.look()
    assert node.passes.usage.containers == (use("a"), use("b"))
    hosts = [(card.uuid, host) for card, host in node.passes.usage.hosts]
    assert hosts == [(uuid(1), HostUse(memory_bytes=5))]
    assert node.series("container_memory_used_bytes") == {"a": 7, "b": 7}
    assert node.series("card_memory_used_bytes") == {uuid(1): 5}


def test_series_of_an_ended_container_disappear(node: Node) -> None:
    node.passes.look()
    node.ledger.free({"uid-a"})
    node.passes.look()
    assert node.series("container_memory_used_bytes") == {"b": 7}


def test_unreadable_is_told_in_place_of_numbers(node: Node) -> None:
    lost = UnreadUse(namespace="default", pod="c", container="main", reason="size")
    node.reader.unread = (lost,)
    node.passes.look()
    assert node.passes.usage.unread == (lost,)
    assert node.series("container_usage_unreadable") == {"c": 1}


@pytest.mark.parametrize(
    ("limit_bytes", "is_beyond"),
    [(8000 << 20, False), (1, False), ((8000 << 20) + 1, True), (None, True), (0, True)],
)
def test_container_with_more_in_force_than_on_record_is_told(
    node: Node, limit_bytes: int | None, *, is_beyond: bool
) -> None:
    node.ledger.free({"uid-b"})
    node.ledger.put(an_entry("a", grants=f"{uuid(0)},NVIDIA,8000,20:;"))
    node.reader.limit_bytes = limit_bytes
    node.passes.look()
    expected = {("uid-a", "main", "NVIDIA")} if is_beyond else set()
    assert node.beyond[-1] == expected


def test_container_that_has_its_card_behind_others_is_told(node: Node) -> None:
    node.reader.position = 1
    node.passes.look()
    assert node.beyond[-1] == {("uid-a", "main", "NVIDIA"), ("uid-b", "main", "NVIDIA")}


def test_container_that_hides_its_limits_is_told(node: Node) -> None:
    node.reader.unread = (
        UnreadUse(namespace="default", pod="a", container="main", reason="impossible"),
    )
    node.reader.limit_bytes = 1
    node.passes.look()
    assert node.beyond[-1] == {("uid-a", "main", "NVIDIA")}


def test_processes_are_asked_for_where_the_reader_wants_them(node: Node) -> None:
    node.reader.unclear = frozenset({uuid(0)})
    node.passes.look()
    node.backend.used = {uuid(0): HostUse(processes=frozenset({5})), uuid(1): HostUse()}
    node.passes.look()
    assert node.backend.processes_wanted == [frozenset(), {uuid(0)}]
    assert node.reader.running[1] == {uuid(0): frozenset({5}), uuid(1): ()}


def test_bug_in_a_reader_leaves_no_numbers_and_the_daemon_alive(node: Node) -> None:
    node.passes.look()
    node.reader.error = ValueError("a bug")
    node.passes.look()
    assert node.series("container_memory_used_bytes") == {}
    node.reader.error = None
    node.passes.look()
    assert node.series("container_memory_used_bytes") == {"a": 7, "b": 7}


def test_host_use_of_a_card_that_is_not_offered_is_left_out(node: Node) -> None:
    node.backend.used = {uuid(7): HostUse(memory_bytes=5)}
    node.passes.look()
    assert node.passes.usage.hosts == ()


def running(node: Node, stop: threading.Event) -> threading.Thread:
    thread = threading.Thread(target=node.passes.run, args=(stop,))
    thread.start()
    return thread


def test_passes_go_on_until_stopped_and_the_last_one_knows(tmp_path: Path) -> None:
    node, stop = Node(tmp_path, interval_s=0.01), threading.Event()
    thread = running(node, stop)
    eventually(lambda: len(node.reader.passes) > 3)
    stop.set()
    node.passes.wake()
    thread.join(10)
    assert not thread.is_alive()
    assert node.reader.passes[-1] is True
    assert not any(node.reader.passes[:-1])


def test_switched_off_nothing_is_read_or_shown(tmp_path: Path) -> None:
    node, stop = Node(tmp_path, interval_s=0.01), threading.Event()
    thread = running(node, stop)
    try:
        eventually(lambda: bool(node.series("container_memory_used_bytes")))
        node.settings = Node.with_interval(0.0, tmp_path)
        eventually(lambda: node.passes.usage == Usage() and True in node.reader.passes)
        assert node.series("container_memory_used_bytes") == {}
        seen = len(node.reader.passes)
        node.passes.wake()
        node.settings = Node.with_interval(0.01, tmp_path)
        node.passes.wake()
        eventually(lambda: len(node.reader.passes) > seen)
    finally:
        stop.set()
        node.passes.wake()
        thread.join(10)


def test_shorter_interval_counts_at_once_when_woken(tmp_path: Path) -> None:
    node, stop = Node(tmp_path, interval_s=3600.0), threading.Event()
    thread = running(node, stop)
    try:
        eventually(lambda: len(node.reader.passes) == 1)
        node.passes.wake()
        node.settings = Node.with_interval(0.01, tmp_path)
        node.passes.wake()
        eventually(lambda: len(node.reader.passes) > 2)
    finally:
        stop.set()
        node.passes.wake()
        thread.join(10)


def test_off_from_the_start_reads_nothing(tmp_path: Path) -> None:
    node, stop = Node(tmp_path, interval_s=0.0), threading.Event()
    stop.set()
    node.passes.run(stop)
    assert node.reader.passes == []
    assert node.settings.usage_metrics is MetricNames.OWN
