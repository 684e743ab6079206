"""The names, kinds and labels of all series on the pages of daemon and extender, as recorded."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami_node.vendors.neuron import names as neuron_names
from tests.bench.daemon_rig import CARDS, NODE, RESOURCE, SLOTS, running_daemon
from tests.fakes.pods import Box
from tests.fakes.regions import lay_region, recorded_region
from tests.fakes.waiting import eventually
from tests.faults.process import page, port_of
from tests.integration.extender_rig import ExtenderRig, pod_manifest
from tests.integration.mig_rig import BY_ROWS, SPARE, MigRig, Row
from tests.integration.rig import LIMIT_S, Rig
from tests.nvml_stub.control import UUIDS, Stub, sequence

RECORDED: Final = Path(__file__).parents[1] / "fixtures" / "metric_names"


def shape(text: str) -> set[str]:
    """A line for each family and set of labels: `name kind labels`."""
    return {
        f"{family.name} {family.type} {','.join(sorted(sample.labels.keys() - {'le'}))}".rstrip()
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def assert_recorded(name: str, port: int) -> None:
    """The page comes to show what is recorded, and nothing else."""
    wanted = set((RECORDED / f"{name}.txt").read_text().splitlines())
    shown: set[str] = set()

    def is_shown() -> bool:
        shown.clear()
        shown.update(shape(page(port)[1]))
        return wanted <= shown

    try:
        eventually(is_shown, LIMIT_S)
    except AssertionError:
        pytest.fail(f"not shown: {sorted(wanted - shown)}; shown besides: {sorted(shown - wanted)}")
    assert shown - wanted == set()


def neuron_marks(node: dict[str, Any]) -> None:
    amounts = {neuron_names.RESOURCE_NEURON: "16", neuron_names.RESOURCE_NEURON_CORE: "32"}
    node["metadata"].setdefault("labels", {})[neuron_names.INSTANCE_TYPE] = "trn1.32xlarge"
    for kind in ("capacity", "allocatable"):
        node["status"].setdefault(kind, {}).update(amounts)


def test_series_of_a_daemon() -> None:
    flags = ("--usage-interval-s", "0.1", "--usage-metrics", "both", "--legacy-metrics", "true")
    with running_daemon(*flags) as rig:
        eventually(lambda: rig.kubelet.allocatable(RESOURCE) == CARDS * SLOTS, LIMIT_S)
        eventually(lambda: "event=serving" in rig.log, LIMIT_S)
        rig.api.edit("nodes", NODE, neuron_marks)
        for index, name in enumerate(("used", "unread")):
            rig.create_pod(name, UUIDS[index], 3000)
            assert rig.admit(name) == ""
        busy = recorded_region("v1.1-8be6d90-busy").content
        for name, content in (("used", busy), ("unread", b"no region")):
            lay_region(rig.root / "hook", f"uid-{name}_c", content)
        rig.stub.show(f"xid {next(sequence)} 3 31", f"xid {next(sequence)} 4 79", cards=CARDS)
        assert_recorded("daemon", port_of(rig))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_series_of_divided_cards(driver: Stub) -> None:
    with closing(MigRig(driver)) as rig:
        port = free_port()
        rig.launch(
            metrics_address=f"127.0.0.1:{port}",
            usage_interval_s="0.2",
            usage_metrics="both",
            legacy_metrics="true",
        )
        rig.show("fail nvmlDeviceCreateGpuInstanceWithPlacement 0 999")
        rig.divide("a", {"main": [Row(start=6)]})
        assert not rig.admit("a").is_admitted
        rig.show()
        rig.serve("b", Row(start=5))
        sick = rig.at(5)
        rig.hardware.run(sick.uuid, 77, used_mib=3000)
        rig.hardware.set_mode(UUIDS[SPARE], 1, 0)
        rig.show(f"xid {next(sequence)} {BY_ROWS} 95 {sick.gi} 0")
        assert_recorded("divided", port)


def test_series_of_an_extender() -> None:
    port = free_port()
    rig = ExtenderRig(
        metrics_address=f"127.0.0.1:{port}", card_metrics="both", legacy_metrics="true"
    )
    with closing(rig):
        rig.write_node("n0", has_identity=True)
        rig.start()
        quota = {"hard": {"limits.nvidia.com/gpumem": "100000"}}
        rig.api.create(
            "resourcequotas", {"metadata": {"name": "q", "namespace": "default"}, "spec": quota}
        )
        rig.api.create("pods", pod_manifest("p0", (Box(memory_mib=1000),), {}))
        rig.api.create("pods", pod_manifest("p1", (Box(memory_mib=1_000_000),), {}))
        server = rig.extender.parts.server
        for name in ("p0", "p1"):
            args = {"Pod": rig.api.read("pods", name, "default"), "NodeNames": ["n0"]}
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            connection.request("POST", "/filter", json.dumps(args))
            assert connection.getresponse().status == 200
            connection.close()
        assert_recorded("extender", port)


def test_scrape_waits_for_no_disk_and_no_allocate(node: Rig) -> None:
    port = free_port()
    daemon = node.start(metrics_address=f"127.0.0.1:{port}")
    locks = (daemon.one_at_a_time, daemon.ledger._lock, daemon.live._settling)
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        status, text = page(port)
    assert status == 200
    assert "hami_node_card_slots{" in text
