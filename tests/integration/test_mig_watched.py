"""What people see of a node that divides its cards: the whole daemon on the driver's stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hami_node.inspection.cluster import inspect
from hami_node.inspection.views import ClusterView
from hami_node.node.report.part_errors import EVENT
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.nvidia.nvml.use import sees_all_processes
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire.objects import decode_node, decode_pod
from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import BY_ROWS, BY_TEMPLATE, SLOTS, SPARE, MigRig, Row, Slot
from tests.integration.rig import LIMIT_S
from tests.nvml_stub.control import UUIDS, Stub, sequence
from tests.reliability import shows

MIB = 1 << 20
STATE = "nvidia.com/mig.config.state"
CARD = UUIDS[BY_ROWS]


class WatchedRig(MigRig):
    """With pages, and numbers of what containers use."""

    def launch(self, slots: int = SLOTS, **flags: str) -> None:
        """Looked at often."""
        given = {"usage_interval_s": "0.2", "usage_metrics": "both", "report_interval_s": "0.2"}
        super().launch(slots, **given | flags)

    def values(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The series of a metric, by some of their labels."""
        assert self.daemon is not None
        assert self.daemon.cluster is not None
        return {
            tuple(sample.labels.get(label, "") for label in labels): sample.value
            for family in self.daemon.cluster.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name
        }

    def view(self) -> ClusterView:
        """What `inspect` makes of the cluster."""
        node = decode_node(self.api.read("nodes", NODE))
        pods = [decode_pod(body) for body in self.api.list("pods")]
        return inspect([node], pods, [nvidia_protocol()], 0.0)

    def unhealthy(self) -> list[str]:
        cards = decode_register(self.notes.get(nvidia_names.NODE_REGISTER, ""))
        return [str(card.uuid) for card in cards if not card.healthy]


@pytest.fixture
def rig(driver: Stub) -> Iterator[WatchedRig]:
    with closing(WatchedRig(driver)) as made:
        made.launch()
        yield made


def test_memory_of_each_instance_is_its_pods(rig: WatchedRig) -> None:
    rig.serve("a", Row(profile="2g.10gb", start=0), Row(start=6))
    rig.serve("b", Slot(slot=1))
    large, small = rig.at(0).uuid, rig.at(6).uuid
    (templated,) = rig.hardware.uuids(UUIDS[BY_TEMPLATE])
    rig.hardware.run(large, 77, used_mib=3000)
    rig.hardware.run(templated, 78, used_mib=2000)
    wanted = {
        ("a", CARD, large): 3000 * MIB,
        ("a", CARD, small): 0,
        ("b", UUIDS[BY_TEMPLATE], templated): 2000 * MIB,
    }
    used = "hami_node_container_memory_used_bytes"
    eventually(lambda: rig.values(used, "pod", "uuid", "part") == wanted, LIMIT_S)
    limits = rig.values("hami_node_container_memory_limit_bytes", "pod", "part")
    assert limits == {
        ("a", large): 9856 * MIB,
        ("a", small): 4864 * MIB,
        ("b", templated): 9856 * MIB,
    }
    idle = {(small,): 0} if sees_all_processes() else {}
    shown = rig.values("hami_node_container_processes", "part")
    assert shown == {(large,): 1, (templated,): 1} | idle
    assert rig.values("hami_node_container_core_use_ratio", "pod") == {}
    assert rig.values("hami_node_card_core_use_ratio", "uuid") == {}
    infos = rig.values("hami_mig_device_info", "pod", "vdevice_index", "mig_uuid", "profile")
    assert set(infos) == {
        ("a", "0", large, "2g.10gb"), ("a", "1", small, "1g.5gb"), ("b", "0", templated, "2g.10gb"),
    }  # fmt: skip


def test_inspect_metrics_and_page_agree_on_instances(rig: WatchedRig) -> None:
    rig.serve("a", Row(start=6))
    ours = rig.at(6)
    foreign = rig.hardware.make(CARD, "2g.10gb", 0)

    def seen() -> set[tuple[str, str, str]]:
        return {(part.uuid, part.state, part.holder) for part in rig.view().parts}

    wanted = {(ours.uuid, "live", "default/a/main"), (foreign.uuid, "foreign", "")}
    eventually(lambda: seen() == wanted, LIMIT_S)
    (card, *_) = rig.view().divided
    free = {kind.name: kind.free for kind in card.kinds}
    assert (free["1g.5gb"], free["2g.10gb"], free["3g.20gb"]) == ((2, 3, 4, 5), (2, 4), ())
    states = rig.values("hami_node_part_info", "part", "state")
    assert set(states) == {(ours.uuid, "live"), (foreign.uuid, "foreign")}
    whose = rig.values("hami_node_container_part_info", "part", "namespace", "pod", "container")
    assert set(whose) == {(ours.uuid, "default", "a", "main")}
    assert rig.view().problems == ()


def test_numbers_of_a_card_agree_everywhere(rig: WatchedRig) -> None:
    """As a whole card counts its largest instance; nothing is scaled."""
    rig.serve("a", Row(profile="3g.20gb", start=4))
    largest = 40192
    (registered, *_) = decode_register(rig.register_text)
    assert (registered.memory_mib, registered.cores) == (largest, 100)
    seen = {card.uuid: card for card in rig.view().cards}[CARD]
    assert (seen.memory_mib, seen.memory_used_mib, seen.cores_used) == (largest, 19968, 43)
    total = rig.values("hami_node_card_memory_bytes", "uuid")[CARD,]
    assert total == largest * MIB
    eventually(
        lambda: rig.values("hami_node_card_memory_granted_bytes", "uuid")[CARD,] == 19968 * MIB,
        LIMIT_S,
    )
    held = rig.values("hami_node_allocation_memory_bytes", "pod", "uuid")
    assert held == {("a", CARD): 19968 * MIB}


def test_card_that_waits_for_a_change_of_its_mode_is_told_everywhere(rig: WatchedRig) -> None:
    rig.serve("a", Row(start=6))
    rig.hardware.set_mode(UUIDS[SPARE], 1, 0)
    eventually(lambda: rig.unhealthy() == [UUIDS[SPARE]], LIMIT_S)
    eventually(lambda: rig.view().divided[SPARE].pending == "off", LIMIT_S)
    shown = rig.view().divided[SPARE]
    assert shown.mode == "mig"
    assert "waits for a reset of the card" in shown.problem
    modes = rig.values("hami_node_card_mode_info", "uuid", "mode", "pending")
    assert (UUIDS[SPARE], "mig", "off") in modes
    assert (CARD, "mig", "") in modes
    rig.serve("b", Row(start=5))


def test_hands_off_is_told_everywhere_and_is_over_with_its_reason(rig: WatchedRig) -> None:
    rig.serve("a", Row(start=6))

    def label(value: str | None) -> None:
        def mark(body: dict[str, Any]) -> None:
            body["metadata"]["labels"] = {STATE: value} if value else {}

        rig.api.edit("nodes", NODE, mark)

    label("pending")
    eventually(lambda: rig.values("hami_node_parts_hands_off", "node") == {(NODE,): 1}, LIMIT_S)
    eventually(lambda: STATE in rig.view().divided[0].hands_off, LIMIT_S)
    assert rig.places() == [("1g.5gb", 6)]
    label(None)
    eventually(lambda: rig.view().divided[0].hands_off == "", LIMIT_S)
    eventually(lambda: rig.unhealthy() == [], LIMIT_S)


def test_failed_calls_and_instances_that_can_not_go_are_counted(rig: WatchedRig) -> None:
    rig.show("fail nvmlDeviceCreateGpuInstanceWithPlacement 0 999")
    rig.divide("a", {"main": [Row(start=6)]})
    assert not rig.admit("a").is_admitted
    rig.show()
    failures = rig.values("hami_node_part_call_failures_total", "function", "reason")
    assert sum(failures.values()) >= 1
    rig.serve("b", Row(start=5))
    rig.hardware.run(rig.at(5).uuid, 77)
    rig.delete("b")
    states = {("live",): 0, ("stale",): 1}

    def counted() -> bool:
        found = rig.values("hami_node_card_parts", "uuid", "state")
        return {(state,): found[CARD, state] for (state,) in states} == states

    eventually(counted, LIMIT_S)
    eventually(lambda: "stale" in [part.state for part in rig.view().parts], LIMIT_S)
    (stale,) = (part for part in rig.view().parts if part.state == "stale")
    assert stale.why
    rig.hardware.end(rig.at(5).uuid)
    rig.wait_places()


@shows(
    "M19",
    fault="the driver blames a reset XID on one MIG instance, 200 times",
    happens="its pod gets one Event with the remedy; the card stays healthy and serves others",
)
def test_hazard_19_an_error_of_an_instance_is_said_to_its_pod_alone(rig: WatchedRig) -> None:
    rig.serve("a", Row(start=6))
    rig.serve("b", Row(start=5))
    sick = rig.at(6)
    events = [f"xid {next(sequence)} {BY_ROWS} 95 {sick.gi} 0" for _ in range(200)]
    rig.show(*events)
    name = "hami_node_container_part_xid_events_total"
    counted = {("a", sick.uuid, "95"): 200.0}
    eventually(lambda: rig.values(name, "pod", "part", "xid") == counted, LIMIT_S)
    eventually(lambda: rig.events(EVENT) != [], LIMIT_S)
    (message,) = rig.events(EVENT)
    assert f"container main, 1g.5gb {sick.uuid} of card {BY_ROWS}: XID 95" in message
    assert "hami.io/device-cordon" in message
    assert rig.unhealthy() == []
    rig.serve("c", Row(start=4))
