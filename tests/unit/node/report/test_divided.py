"""What the metrics and the page with the settings show of divided cards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames
from hami_node.node.report.divided import divided_details, divided_series
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.on_node.parts import PartsState
from tests.fakes.cards import uuid
from tests.fakes.divided_node import DividedNode, own_part
from tests.fakes.ledgers import a_ledger, an_entry

Series = dict[str, list[tuple[dict[str, str], float]]]
OURS = own_part(7, 0)


class Shown(DividedNode):
    """A node with one card in MIG mode and the pod that has one of its two instances."""

    def __init__(
        self,
        tmp_path: Path,
        *own: PartView,
        names: MetricNames = MetricNames.OWN,
        has_legacy: bool = False,
    ) -> None:
        super().__init__(tmp_path, *own, usage_metrics=names, legacy_metrics=has_legacy)
        self.ledger = a_ledger(an_entry("gone"))
        self.metrics.sources.append(lambda: divided_series(self, {}))

    def series(self, *words: str) -> Series:
        text = generate_latest(self.metrics.registry).decode()
        found: Series = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if any(word in sample.name for word in words):
                    found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
        return found


def test_instances_by_state_and_owner(tmp_path: Path) -> None:
    found = Shown(tmp_path).series("_part")
    card = {"node": "n1", "uuid": uuid(0)}
    ours, other = found["hami_node_part_info"]
    kind = {"kind": "1g.5gb", "place": "0+1", "state": "live"}
    assert ours == ({**card, "part": OURS.uuid, **kind}, 1)
    assert (other[0]["state"], other[0]["place"]) == ("foreign", "1+1")
    whose = {"namespace": "ml", "pod": "train", "container": "main"}
    assert found["hami_node_container_part_info"] == [({**card, **whose, "part": OURS.uuid}, 1)]
    counts = {labels["state"]: value for labels, value in found["hami_node_card_parts"]}
    none: dict[str, float] = dict.fromkeys(map(str, PartState), 0)
    assert counts == {**none, "live": 1, "foreign": 1}


def test_mode_now_and_after_the_next_reset(tmp_path: Path) -> None:
    found = Shown(tmp_path).series("card_mode")
    labels = {"node": "n1", "uuid": uuid(0), "index": "0", "mode": "mig", "pending": ""}
    assert found == {"hami_node_card_mode_info": [(labels, 1)]}


def test_failed_calls(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    failures = {("nvmlDeviceCreateGpuInstanceWithPlacement", "no room"): 4}
    shown.parts.on_record = PartsState(failures=failures)
    found = shown.series("failures")
    function = "nvmlDeviceCreateGpuInstanceWithPlacement"
    labels = {"node": "n1", "function": function, "reason": "no room"}
    assert found["hami_node_part_call_failures_total"] == [(labels, 4)]


def test_pod_that_is_only_on_record_is_named(tmp_path: Path) -> None:
    stale = replace(OURS, pod_uid="uid-gone", state=PartState.STALE)
    found = Shown(tmp_path, stale).series("part_info")
    assert found["hami_node_part_info"][0][0]["state"] == "stale"
    (whose, _) = found["hami_node_container_part_info"][0]
    assert (whose["namespace"], whose["pod"]) == ("default", "gone")


def test_series_of_hamis_monitor_name_the_instance(tmp_path: Path) -> None:
    found = Shown(tmp_path, names=MetricNames.BOTH).series("mig_device")
    labels = {
        "zone": "vGPU", "namespace": "ml", "pod": "train", "container": "main",
        "vdevice_index": "0", "device_uuid": uuid(0), "mig_uuid": OURS.uuid, "profile": "1g.5gb",
        "gpu_instance_id": "7", "compute_instance_id": "0",
    }  # fmt: skip
    assert found == {"hami_mig_device_info": [(labels, 1)]}
    assert Shown(tmp_path).series("mig_device") == {}


def test_series_from_before_2_9_name_the_instance(tmp_path: Path) -> None:
    found = Shown(tmp_path, has_legacy=True).series("MigInfo", "mig_device")
    labels = {
        "zone": "vGPU", "podnamespace": "ml", "podname": "train", "ctrname": "main",
        "vdeviceid": "0", "deviceuuid": uuid(0), "instanceid": "7",
    }  # fmt: skip
    assert found == {"MigInfo": [(labels, 1)]}
    assert Shown(tmp_path, names=MetricNames.BOTH).series("MigInfo") == {}


def test_unfinished_instance_is_no_device_of_hamis_monitor(tmp_path: Path) -> None:
    half = replace(OURS, uuid="", numbers=(7,), state=PartState.MAKING)
    assert Shown(tmp_path, half, names=MetricNames.HAMI).series("mig_device") == {}


def test_node_without_divided_cards_has_no_such_series(tmp_path: Path) -> None:
    shown = Shown(tmp_path)
    shown.parts.on_record = PartsState()
    shown.backend.cards = ()
    shown.owner.scan()
    assert shown.series("part", "card_mode") == {}
    assert divided_details(shown) == {}


def test_page_has_cards_with_their_instances(tmp_path: Path) -> None:
    details = divided_details(Shown(tmp_path))
    (found,) = json.loads(json.dumps(details))["divided-cards"].values()
    (card,) = found["cards"]
    assert card["mode"] == "mig"
    assert [part["state"] for part in card["parts"]] == ["live", "foreign"]
