"""What pods hold by kubelet's list, against what a scheduler wrote and what is counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hami_node.model import Node, Pod
from hami_node.ports import EventNote, HeldContainer
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.codec import decode_neuron_register
from hami_node.vendors.neuron.node.auditor import FOLDER, SIGNS_S, NeuronAuditor, read_signs
from hami_node.vendors.neuron.node.check import NeuronShape, cores_listed
from hami_node.vendors.neuron.node.reports import NeuronPublication
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.spec import AuditOutlets
from hami_node.wire.objects import decode_node, decode_pod
from tests.fakes.clock import FakeClock

NEURON, CORE = names.RESOURCE_NEURON, names.RESOURCE_NEURON_CORE
SHAPE = NeuronShape(devices=16, cores_per_device=2, instance_type="trn1.32xlarge")
COUNTED = {NEURON: "16", CORE: "32"}
TRN = Node(name="n1", labels={names.INSTANCE_TYPE: "trn1.32xlarge"}, capacity=COUNTED)


def pod(
    name: str, *, devices: int = 0, cores: int = 0, ids: str = "", grants: str | None = None
) -> Pod:
    """A running pod; `grants` are what the extender counts, by default those of its ids."""
    each = [int(number) for number in ids.split(",") if number]
    if grants is None and devices:
        grants = "".join(f"n1-AWSNeuron-{n},AWSNeuron,0,3:" for n in each) + ";"
    elif grants is None:
        grants = "".join(f"n1-AWSNeuron-{n // 2},AWSNeuron,0,{1 << n % 2}:" for n in each) + ";"
    notes = {names.NEURON_IDS: ids, names.POD_NEURON_ALLOCATED: grants if each else ""}
    limits = {key: str(n) for key, n in ((NEURON, devices), (CORE, cores)) if n}
    return decode_pod(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "annotations": {key: text for key, text in notes.items() if text},
            },
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        }
    )


@dataclass
class Audit:
    """An auditor, and what came of it."""

    root: Path = Path("/nowhere")
    events: list[EventNote] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        outlets = AuditOutlets(
            notify=self.events.append,
            count=self.counted.append,
            sysfs_root=self.root,
            clock=self.clock,
        )
        self.auditor = NeuronAuditor(neuron_protocol(), outlets)

    def look(self, *pods: Pod, node: Node = TRN, **held: dict[str, tuple[str, ...]]) -> Audit:
        shown = {
            f"uid-{name}": (
                HeldContainer(namespace="default", pod=name, container="main", device_ids=ids),
            )
            for name, ids in held.items()
        }
        self.auditor.audit(node, pods, shown)
        return self

    def closed(self) -> dict[str, int]:
        """Closed cores by device."""
        return {uuid.rpartition("-")[2]: found.cores for uuid, found in self.auditor.closed.items()}

    def published(self, node: Node = TRN) -> dict[int, int]:
        """The masks of usable cores that schedulers read."""
        publication = NeuronPublication(NeuronResources(), lambda: self.auditor.closed)
        text = publication.desired(node, 0.0)[names.NODE_NEURON_REGISTER] or ""
        return {d.index: d.cores if d.healthy else 0 for d in decode_neuron_register(text)}


@pytest.mark.parametrize(
    ("held", "cores"),
    [
        ({NEURON: ("3",)}, {6, 7}),
        ({names.RESOURCE_NEURON_OLD: ("0", "1")}, {0, 1, 2, 3}),
        ({CORE: ("5", "4")}, {4, 5}),
        ({NEURON: ("0",), CORE: ("31",)}, {0, 1, 31}),
        ({"cpu": ("x",)}, set()),
        ({NEURON: ("16",)}, None),
        ({NEURON: ("neuron0",)}, None),
        ({CORE: ("-1",)}, None),
        ({CORE: ("١",)}, None),
        ({CORE: ("9" * 5000,)}, None),
    ],
)
def test_kubelets_ids_are_numbers_of_devices_and_cores(
    held: dict[str, tuple[str, ...]], cores: set[int] | None
) -> None:
    item = HeldContainer(namespace="n", pod="p", container="c", device_ids=held)
    assert cores_listed((item,), NeuronResources(), SHAPE) == cores


def test_pod_that_holds_what_was_written_closes_nothing() -> None:
    found = Audit().look(pod("a", devices=4, ids="0,1,2,3"), a={NEURON: ("3", "1", "0", "2")})
    assert (found.events, found.closed(), found.auditor.drifted) == ([], {}, 0)


def test_single_device_that_aws_chose_otherwise_drifts_and_is_closed() -> None:
    found = Audit().look(pod("a", devices=1, ids="15"), a={NEURON: ("3",)})
    assert found.events == [], "AWS's plugin does not read the ids of a request for one"
    assert found.auditor.drifted == 1
    assert found.closed() == {"3": 3}
    (closed,) = found.auditor.closed.values()
    assert closed.reason == "cores 6,7 are held by default/a, to which 30,31 were given"
    assert found.published()[3] == 0
    assert found.published()[15] == 3, "the extender counts that one itself"


def test_several_devices_otherwise_than_written_are_a_finding() -> None:
    found = Audit().look(pod("a", devices=4, ids="0,1,2,3"), a={NEURON: ("4", "5", "6", "8")})
    assert found.counted == [
        "ids-not-consecutive",
        "other-cores-than-written",
        "devices-not-a-valid-set",
    ]
    assert found.closed() == {"4": 3, "5": 3, "6": 3, "8": 3}
    found.look(pod("a", devices=4, ids="0,1,2,3"), a={NEURON: ("4", "5", "6", "8")})
    assert len(found.events) == 3, "each is reported once"
    assert {event.reason for event in found.events} == {"NeuronGrantInvalid"}


def test_pod_without_any_reservation_closes_what_it_holds() -> None:
    found = Audit().look(pod("a", cores=1), pod("b"), a={CORE: ("9",)}, b={NEURON: ("0",)})
    assert found.closed() == {"0": 3, "4": 2}
    assert found.published()[4] == 1, "the other core is free"
    assert found.auditor.drifted == 0


def test_core_of_a_device_that_another_pod_holds_whole_is_a_finding() -> None:
    pods = pod("a", devices=1), pod("b", cores=1)
    found = Audit().look(*pods, a={NEURON: ("2",)}, b={CORE: ("5",)})
    assert found.counted == ["cores-of-another-pod"] * 2
    assert {event.message for event in found.events} == {
        "cores-of-another-pod: cores 5 belong to default/b",
        "cores-of-another-pod: cores 5 belong to default/a",
    }


def test_reservation_of_another_scheduler_is_closed_too() -> None:
    aws = pod("a", devices=1, ids="7", grants="")
    found = Audit().look(aws, a={NEURON: ("7",)})
    assert found.auditor.drifted == 0
    assert found.closed() == {"7": 3}, "our extender does not count it"


def test_closed_cores_open_with_the_pods_end() -> None:
    found = Audit().look(pod("a"), a={NEURON: ("2",)})
    assert found.closed()
    assert found.look().closed() == {}
    assert found.look(pod("a"), node=Node(name="n1"), a={NEURON: ("2",)}).closed() == {}


# -- health ----------------------------------------------------------------------------------------
def lay_driver(root: Path, devices: int = 16, physical: int = 2) -> Path:
    """The driver's files of healthy devices."""
    for device in range(devices):
        folder = root / FOLDER / f"neuron{device}"
        (folder / "stats/hardware/health_status").mkdir(parents=True)
        (folder / "core_count").write_text(f"{physical}\n")
        for name in ("mem_ecc", "sram_ecc", "mem_ecc_repairable"):
            (folder / f"stats/hardware/{name}_uncorrected").write_text("0\n")
        (folder / "stats/hardware/health_status/unhealthy_components").write_text("\n")
        for core in range(physical):
            for name in ("hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error"):
                status = folder / f"neuron_core{core}/stats/status/{name}"
                status.mkdir(parents=True)
                (status / "total").write_text("0\n")
    return root / FOLDER


@pytest.mark.parametrize(
    ("file", "text", "cores"),
    [
        ("stats/hardware/mem_ecc_uncorrected", "2\n", 3),
        ("stats/hardware/sram_ecc_uncorrected", "1", 3),
        ("stats/hardware/health_status/unhealthy_components", "0x4\n", 3),
        ("neuron_core1/stats/status/hw_nc_ue_error/total", "1\n", 2),
        ("neuron_core0/stats/status/hw_dma_abort_error/total", "7\n", 1),
        pytest.param("stats/hardware/mem_ecc_repairable_uncorrected", "9\n", 0, id="repairable"),
        pytest.param("stats/hardware/mem_ecc_uncorrected", "none\n", 0, id="no-number"),
        pytest.param("stats/hardware/mem_ecc_uncorrected", "\udcff" * 9, 0, id="nonsense"),
        pytest.param("stats/hardware/mem_ecc_uncorrected", "1" * 4096, 0, id="endless"),
    ],
)
def test_errors_that_the_driver_counts_close_the_device_or_the_core(
    tmp_path: Path, file: str, text: str, cores: int
) -> None:
    folder = lay_driver(tmp_path)
    assert read_signs(tmp_path, 16, 2) == {}
    (folder / "neuron5" / file).write_text(text, errors="surrogateescape")
    assert {device: sign.cores for device, sign in read_signs(tmp_path, 16, 2).items()} == (
        {5: cores} if cores else {}
    )


def test_errors_of_a_physical_core_are_those_of_the_logical_one(tmp_path: Path) -> None:
    folder = lay_driver(tmp_path, 1, physical=8)
    (folder / "neuron0/neuron_core5/stats/status/hw_hbm_ue_error/total").write_text("1\n")
    assert read_signs(tmp_path, 1, 4)[0].cores == 0b0100
    assert "core 2" in read_signs(tmp_path, 1, 4)[0].reason


def test_device_that_the_driver_lost_is_closed_and_no_driver_says_nothing(tmp_path: Path) -> None:
    lay_driver(tmp_path, 15)
    assert read_signs(tmp_path, 16, 2)[15].reason == "the driver does not have the device"
    assert read_signs(tmp_path / "elsewhere", 16, 2) == {}


def test_signs_are_read_again_after_a_while(tmp_path: Path) -> None:
    folder = lay_driver(tmp_path)
    found = Audit(root=tmp_path).look()
    (folder / "neuron5/stats/hardware/mem_ecc_uncorrected").write_text("1")
    assert found.look().closed() == {}
    found.clock.advance(SIGNS_S)
    assert found.look().closed() == {"5": 3}
    assert found.published()[5] == 0
    found.look(pod("a"), a={CORE: ("10",)})
    (closed,) = found.auditor.closed.values()
    assert "mem_ecc_uncorrected; cores 10 are held by default/a" in closed.reason


@pytest.mark.parametrize(
    ("reason", "is_healthy"),
    [
        ("NeuronHasNoError", True),
        ("NeuronHasError_SRAM_UNCORRECTABLE_ERROR", False),
        ("NeuronHasError_DMA_ERROR", False),
        ("", True),
    ],
)
@pytest.mark.parametrize("status", ["True", "False"])
def test_condition_of_the_node_problem_detector_counts_by_its_reason(
    reason: str, is_healthy: bool, status: str
) -> None:
    condition = {"type": "NeuronHealth", "status": status, "reason": reason}
    node = decode_node(
        {
            "metadata": {"name": "n1", "labels": dict(TRN.labels)},
            "status": {"capacity": COUNTED, "conditions": [condition]},
        }
    )
    assert set(Audit().look(node=node).published(node).values()) == {3 if is_healthy else 0}
