"""The daemon on a real card: what it reports, hands over, counts and costs.

No setting of a card is changed.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hami_node.kubelet_api import deviceplugin_pb2 as kubelet_api
from hami_node.model import Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire.objects import decode_pod
from tests.bench.daemon_rig import NODE, RESOURCE, SLOTS, DaemonRig, daemon_in
from tests.bench.test_daemon import IDLE_S, allocate_ms, show, wait
from tests.fakes.waiting import eventually
from tests.faults.process import page, port_of
from tests.nvml_stub.build import gcc

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

LIMIT_S = 20.0
MIB = 2**20
TAKEN_MIB = 2048
"""What the program takes of the card."""
NUMBERS = sum(range(256))
"""What the card writes and the program adds up."""


def told(*fields: str) -> list[dict[str, str]]:
    """What nvidia-smi says of each card."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [dict(zip(fields, row, strict=True)) for row in rows]


@contextmanager
def node(folder: Path, *flags: str) -> Iterator[DaemonRig]:
    """A daemon on this machine's driver, that hands cards over by CDI specs of its own."""
    found = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    own = (
        *("--driver-root", "/", "--driver-root-ctr-path", "/"),
        *("--cdi-spec-dir", str(folder / "cdi")),
    )
    cdi = {"DEVICE_LIST_STRATEGY": "cdi-cri", "HAMI_NODE_VISIBLE_DEVICES_FORM": "auto"}
    # Not below `folder`, for a unix socket's path has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="hg") as root,
        daemon_in(Path(root), (*own, *flags), found | cdi) as rig,
    ):
        try:
            wait(lambda: "event=node_reported" in rig.log)
            yield rig
        finally:
            print(rig.log[-6000:])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that lets the first card work."""
    target = tmp_path_factory.mktemp("program") / "program"
    source = Path(__file__).with_name("program.c")
    subprocess.run([gcc(), "-Wall", "-o", target, source, "-ldl"], check=True, timeout=60)
    return target


def serve(rig: DaemonRig, name: str, uuid: str) -> kubelet_api.ContainerAllocateResponse:
    """The answer that a pod's container with a small slice gets."""
    rig.create_pod(name, uuid, 4096)
    admission = rig.kubelet.admit(decode_pod(rig.api.read("pods", name, "default")), RESOURCE)
    assert admission.refusal == ""
    return admission.responses["c"]


def boxed(
    folder: Path, answer: kubelet_api.ContainerAllocateResponse, *words: str
) -> subprocess.Popen[str]:
    """Start a program with just what the answer and the node's CDI specs name."""
    nodes: list[tuple[str, str]] = []
    mounts: list[tuple[str, str]] = []
    env = dict(answer.envs)
    specs = [json.loads(path.read_text()) for path in (folder / "cdi").glob("*.json")]
    named = {device.name for device in answer.cdi_devices}
    assert named, "the answer names no CDI device"
    for spec in specs:
        chosen = [d for d in spec["devices"] if f"{spec['kind']}={d['name']}" in named]
        edits = [d["containerEdits"] for d in chosen]
        for edit in (*edits, *((spec["containerEdits"],) if chosen else ())):
            nodes += [
                (n.get("hostPath") or n["path"], n["path"]) for n in edit.get("deviceNodes", ())
            ]
            mounts += [(m["hostPath"], m["containerPath"]) for m in edit.get("mounts", ())]
            env |= dict(text.split("=", 1) for text in edit.get("env", ()))
    assert nodes, "no spec has the named device"
    # The hook would write the folders into ld.so.cache; this machine's container has no hook.
    folders = sorted({inside.rpartition("/")[0] for _, inside in mounts if ".so" in inside})
    env["LD_LIBRARY_PATH"] = ":".join(folders)
    allowed = folder / f"{time.monotonic_ns()}.json"
    allowed.write_text(json.dumps({"nodes": nodes, "mounts": mounts, "env": env}))
    command = ["unshare", "--mount", "--fork", sys.executable, "-m", "tests.gpu.boxed"]
    return subprocess.Popen(
        [*command, str(allowed), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def first_line(started: subprocess.Popen[str]) -> str:
    """What the program says once the card has worked, or why it has not."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


def value(rig: DaemonRig, series: str, **labels: str) -> float | None:
    """A series of the metrics page; None where it is not there."""
    _, text = page(port_of(rig))
    for line in text.splitlines():
        found = re.fullmatch(r"(\w+)\{([^}]*)\} (\S+)", line)
        if found and found[1] == series:
            pairs = dict(re.findall(r'(\w+)="([^"]*)"', found[2]))
            if labels.items() <= pairs.items():
                return float(found[3])
    return None


def test_cards_are_registered_as_nvidia_smi_has_them(tmp_path: Path) -> None:
    fields = ("index", "uuid", "name", "memory.total", "pci.bus_id", "mig.mode.current")
    cards = told(*fields)
    print(f"\n{cards} driver {told('driver_version')} {platform.platform()}")
    with node(tmp_path) as rig:
        text = rig.api.read("nodes", NODE)["metadata"]["annotations"][nvidia_names.NODE_REGISTER]
        print(text)
        found = {card.uuid: card for card in decode_register(text)}
        assert set(found) == {card["uuid"] for card in cards}
        for card in cards:
            one = found[Uuid(card["uuid"])]
            assert one.model == card["name"]
            assert one.index == int(card["index"])
            assert one.memory_mib == int(card["memory.total"])
            assert one.slots == SLOTS
            assert one.healthy is (card["mig.mode.current"] != "Enabled")
            bus = value(rig, "hami_node_card_info", uuid=one.uuid, pci_bus=card["pci.bus_id"])
            assert bus == 1.0
        wait(lambda: rig.kubelet.allocatable(RESOURCE) == SLOTS * len(cards))


def test_answer_is_enough_for_a_program_and_its_use_is_counted(
    tmp_path: Path, program: Path
) -> None:
    uuid = told("uuid")[0]["uuid"]
    with node(tmp_path) as rig:
        series = "hami_node_card_memory_used_bytes"
        eventually(lambda: value(rig, series, uuid=uuid) is not None, LIMIT_S)
        before = value(rig, series, uuid=uuid) or 0.0
        started = boxed(tmp_path, serve(rig, "a", uuid), str(program), str(TAKEN_MIB))
        try:
            line = first_line(started)
            digits = uuid.removeprefix("GPU-").replace("-", "")
            assert line == f"devices 1 first {digits} sum {NUMBERS}"
            used = before + TAKEN_MIB * MIB

            def is_counted() -> bool:
                now = value(rig, series, uuid=uuid)
                return now is not None and used <= now < used + 2048 * MIB

            eventually(is_counted, LIMIT_S)
            smi = int(told("memory.used")[0]["memory.used"]) * MIB
            ours = value(rig, series, uuid=uuid) or 0.0
            # one of them may count what the driver keeps for itself
            assert abs(ours - smi) <= 1024 * MIB
            print(f"  used by nvidia-smi {smi / MIB:.0f} MiB, by us {ours / MIB:.0f} MiB")
        finally:
            started.communicate("", timeout=60)
        assert started.returncode == 0


def test_program_without_the_answers_nodes_finds_no_card(tmp_path: Path, program: Path) -> None:
    uuid = told("uuid")[0]["uuid"]
    with node(tmp_path) as rig:
        answer = serve(rig, "a", uuid)
        started = boxed(tmp_path, answer, str(program), "16")
        assert "sum" in first_line(started)
        started.communicate("", timeout=60)
        for path in (tmp_path / "cdi").glob("*.json"):
            spec = json.loads(path.read_text())
            for edit in (spec["containerEdits"], *(d["containerEdits"] for d in spec["devices"])):
                edit["deviceNodes"] = [
                    n for n in edit.get("deviceNodes", ()) if n["path"][-1].isalpha()
                ]
            path.write_text(json.dumps(spec))
        without = boxed(tmp_path, answer, str(program), "16")
        line = first_line(without)
        without.communicate("", timeout=60)
        assert line.startswith("failed cu")
        assert without.returncode == 2


def test_programs_own_fault_is_counted_and_costs_no_card(tmp_path: Path, program: Path) -> None:
    uuid = told("uuid")[0]["uuid"]
    with node(tmp_path) as rig:
        started = boxed(tmp_path, serve(rig, "a", uuid), str(program), "16", "fault")
        line = first_line(started)
        started.communicate("", timeout=60)
        assert line.startswith("failed cuCtxSynchronize"), line

        def is_counted() -> bool:
            return value(rig, "hami_node_xid_events_total", uuid=uuid, ignored="true") is not None

        eventually(is_counted, LIMIT_S)
        _, text = page(port_of(rig))
        print(re.findall(r"hami_node_xid_events_total\{.*", text))
        assert value(rig, "hami_node_card_healthy", uuid=uuid) == 1.0
        again = boxed(tmp_path, serve(rig, "b", uuid), str(program), "16")
        assert f"sum {NUMBERS}" in first_line(again)
        again.communicate("", timeout=60)


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_what_it_costs(tmp_path: Path, strategy: str) -> None:
    cards = told("uuid")
    flags = ("--device-list-strategy", strategy)
    registered = []
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        with node(folder, *flags) as rig:
            registered.append((rig.kubelet.registrations[0][0] - rig.began_s) * 1e3)
    (tmp_path / "last").mkdir()
    with node(tmp_path / "last", *flags) as rig:
        wait(lambda: rig.kubelet.allocatable(RESOURCE) == SLOTS * len(cards))
        for i in range(SLOTS):
            serve(rig, f"p{i}", cards[0]["uuid"])
        inside = allocate_ms(rig, "ok")
        cpu_s, began_s = rig.cpu_s(), time.monotonic()
        time.sleep(min(IDLE_S, 20))
        used = (rig.cpu_s() - cpu_s) / (time.monotonic() - began_s) * 100
        print(f"\nmachine: {platform.platform()}, {os.cpu_count()} cores; {told('name')}")
        show(f"start of process to registered, {strategy}", registered, "ms")
        show("Allocate inside the daemon, API patch included", inside, "ms")
        print(f"  resident memory {rig.rss_mib():.1f} MiB; idle {used:.2f} % of a core")
