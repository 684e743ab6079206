"""The daemon as its own process, on the NVML stand-in or a real driver, for measurements."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hami_node.simulate.kubelet import SimulatedKubelet
from hami_node.wire.objects import decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.limiter import lay_limiter
from tests.nvml_stub.build import build
from tests.nvml_stub.control import Stub

NODE = "bench-node"
RESOURCE = "nvidia.com/gpu"
CARDS = 8
SLOTS = 10


@dataclass
class DaemonRig:
    """A running daemon with everything around it."""

    root: Path
    kubelet: SimulatedKubelet
    api: FaultyApiServer
    process: subprocess.Popen[bytes]
    began_s: float
    spawn: Callable[[], subprocess.Popen[bytes]]
    driver: Stub | None = None

    @property
    def stub(self) -> Stub:
        """The driver's stand-in."""
        assert self.driver is not None, "this daemon has a real driver"
        return self.driver

    def start_again(self) -> None:
        """Start the daemon anew after it has ended; its log goes on."""
        self.process.wait(20)
        self.process = self.spawn()

    @property
    def log(self) -> str:
        """What the daemon has logged so far."""
        return (self.root / "daemon.log").read_text()

    def rss_mib(self) -> float:
        """Resident memory of the daemon, MiB. Check: grep VmRSS /proc/PID/status."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def cpu_s(self) -> float:
        """Processor time of the daemon so far, seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def create_pod(self, name: str, uuid: str, memory_mib: int) -> None:
        """A pod as HAMi's scheduler leaves it: reserved and bound."""
        grants = f"{uuid},NVIDIA,{memory_mib},1:;"
        limits = {RESOURCE: "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": "1"}
        self.api.create(
            "pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"uid-{name}",
                    "annotations": {
                        "hami.io/vgpu-devices-allocated": grants,
                        "hami.io/vgpu-devices-to-allocate": grants,
                        "hami.io/bind-phase": "allocating",
                        "hami.io/vgpu-node": NODE,
                    },
                },
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "c", "resources": {"limits": limits}}],
                },
                "status": {"phase": "Pending"},
            },
        )

    def admit(self, name: str) -> str:
        """Let kubelet admit it; "" or the refusal."""
        pod = decode_pod(self.api.read("pods", name, "default"))
        return self.kubelet.admit(pod, RESOURCE).refusal


VERSIONS = {"kubeletVersion": "v1.34.0", "containerRuntimeVersion": "containerd://2.1.4"}


@contextmanager
def running_daemon(
    *flags: str,
    env: Mapping[str, str] | None = None,
    driver: Sequence[str] = (),
    prepare: Callable[[Stub], None] = lambda _: None,
) -> Iterator[DaemonRig]:
    """Start everything on the driver's stand-in, yield while the daemon runs, stop everything.

    `env` replaces variables of the daemon, such as the one that leads to the stand-in, which
    `driver` has more lines for; `prepare` changes it before the daemon starts.
    """
    with tempfile.TemporaryDirectory(prefix="hb") as folder:
        root = Path(folder)
        stub = Stub(build(root / "lib"), root / "nvml.txt")
        stub.show(*driver, cards=CARDS)
        prepare(stub)
        found = {"LD_LIBRARY_PATH": str(root / "lib"), "NVML_STUB_FILE": str(root / "nvml.txt")}
        with daemon_in(root, flags, found | dict(env or {})) as rig:
            rig.driver = stub
            yield rig


@contextmanager
def daemon_in(root: Path, flags: Sequence[str], env: Mapping[str, str]) -> Iterator[DaemonRig]:
    """Start kubelet, API server and the daemon in this folder; `env` leads to the driver."""
    (root / "plugins").mkdir()
    lay_limiter(root / "hook")
    kubelet = SimulatedKubelet(root / "plugins", root / "pr" / "kubelet.sock")
    kubelet.start()
    with FaultyApiServer() as api:
        api.create("nodes", {"metadata": {"name": NODE}, "status": {"nodeInfo": VERSIONS}})
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "MALLOC_ARENA_MAX": "1",  # as the image sets it
            "NODE_NAME": NODE,
            "KUBECONFIG": str(api.write_kubeconfig(root / "kubeconfig")),
            "HOOK_PATH": str(root / "hook"),
            # no runtime made this process, so auto would find nothing to go by
            "DEVICE_LIST_STRATEGY": "envvar",
            "HAMI_NODE_VISIBLE_DEVICES_FORM": "bare",
        } | dict(env)
        command = [
            *(sys.executable, "-m", "hami_node", "run"),
            *("--plugin-dir", str(root / "plugins")),
            *("--record-dir", str(root / "record")),
            *("--pod-resources-socket", str(root / "pr" / "kubelet.sock")),
            *("--metrics-address", "127.0.0.1:0"),
            *flags,
        ]

        def spawn() -> subprocess.Popen[bytes]:
            with (root / "daemon.log").open("ab") as log:
                return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        began_s = time.monotonic()
        rig = DaemonRig(root, kubelet, api, spawn(), began_s, spawn)
        try:
            yield rig
        finally:
            rig.process.terminate()
            rig.process.wait(20)
    kubelet.stop()
