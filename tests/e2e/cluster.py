"""A Kubernetes node from real parts on this machine: etcd, kube-apiserver, kube-controller-manager,
kube-scheduler, kube-proxy, containerd and kubelet. Needs root.

usage: python -m tests.e2e.cluster up                 start afresh, wait until the node is Ready
       python -m tests.e2e.cluster stop|start|restart PART...
       python -m tests.e2e.cluster images TAR...      import image archives into containerd
       python -m tests.e2e.cluster down               stop all, remove every trace
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.e2e import archive, containers, machine, parts
from tests.e2e.assets import KUBERNETES, PROGRAMS
from tests.e2e.waiting import LIMIT_S

STATE: Final = Path("/tmp/hami-e2e")
_LATE_PARTS: Final = ("kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
_STOP_ORDER: Final = (
    "kubelet",
    "kube-proxy",
    "kube-scheduler",
    "kube-controller-manager",
    "kube-apiserver",
    "etcd",
    "containerd",
)


class Cluster:
    """The cluster below one state folder; all state is on disk, so any process can hold it."""

    def __init__(self, root: Path = STATE, programs: Path = PROGRAMS) -> None:
        self.root, self.programs = root, programs
        if not (KUBERNETES / "kube-apiserver").exists():
            raise SystemExit(f"{KUBERNETES} has no kube-apiserver: run `make e2e-long` once")

    # -- processes ---------------------------------------------------------------------------------
    def start(self, name: str) -> None:
        """Start a part that does not run."""
        if self.pid(name) is not None:
            return
        path = self._path()
        command = parts.command(self.root, name)
        command[0] = shutil.which(command[0], path=path) or command[0]
        with open(self.root / "log" / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=dict(os.environ, PATH=path),
                cwd=self.root,
            )
        (self.root / "run" / f"{name}.pid").write_text(str(process.pid))
        process.returncode = 0  # not ours to wait for: it outlives this process

    def stop(self, name: str, signal_number: int = signal.SIGTERM, limit_s: float = 20) -> None:
        """End a part; kill it when it does not end in time."""
        pid = self.pid(name)
        if pid is None:
            return
        for number, wait_s in ((signal_number, limit_s), (signal.SIGKILL, 10.0)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + wait_s
            while self.pid(name) is not None and time.monotonic() < deadline:
                time.sleep(0.02)
            if self.pid(name) is None:
                break
        (self.root / "run" / f"{name}.pid").unlink(missing_ok=True)

    def restart(self, name: str, signal_number: int = signal.SIGTERM) -> None:
        """Stop and start one part."""
        self.stop(name, signal_number)
        self.start(name)

    def pid(self, name: str) -> int | None:
        """The process id of a running part."""
        try:
            pid = int((self.root / "run" / f"{name}.pid").read_text())
            stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, ValueError):
            return None
        if stat[0] == "Z":
            _reap(pid)
            return None
        return pid

    # -- tools -------------------------------------------------------------------------------------
    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        """Run kubectl as admin.

        Raises:
            RuntimeError: with what kubectl printed.
        """
        tool = KUBERNETES / "kubectl"
        config = parts.kubeconfig(self.root, parts.ADMIN)
        return _output((str(tool), f"--kubeconfig={config}", *args), stdin)

    def ctr(self, *args: str) -> str:
        """Run containerd's client in kubelet's namespace.

        Raises:
            RuntimeError: with what ctr printed.
        """
        address = f"--address={self._socket()}"
        return _output((str(self.programs / "ctr"), address, "-n", "k8s.io", *args))

    def log_tail(self, name: str, lines: int = 20) -> str:
        """The last lines that a part wrote."""
        path = self.root / "log" / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def _socket(self) -> Path:
        return self.root / "run/containerd.sock"

    def _path(self) -> str:
        return f"{KUBERNETES}:{self.programs}:/usr/local/sbin:/usr/sbin:/sbin:" + os.environ["PATH"]

    # -- life --------------------------------------------------------------------------------------
    def up(self) -> None:
        """Start everything afresh and wait until the node is Ready.

        Raises:
            SystemExit: a part does not come up; the ends of all logs are in the text.
        """
        began = time.monotonic()
        machine.refuse_foreign_kubelet(self.pid("kubelet"))
        self.down()  # what a killed run left: processes, mounts, links, pods' folders
        self.root.mkdir(parents=True)
        parts.write_files(self.root)
        machine.prepare(self.root)
        self.start("etcd")
        self._start_containerd()
        for name, entrypoint, env in (
            (parts.BUSYBOX, ("/bin/sh",), ()),
            (parts.CUDA, ("/bin/sh",), ("NVIDIA_VISIBLE_DEVICES=all",)),
            (parts.PAUSE, ("/bin/sleep", "2147483647"), ()),
        ):
            tar = self.root / "image.tar"
            archive.write_busybox(tar, name, self.root / "rootfs", entrypoint, env)
            self.import_image(tar)
        self.start("kube-apiserver")
        self.wait("kube-apiserver", self.is_api_ready)
        for name in _LATE_PARTS:
            self.start(name)
        self.wait("node Ready", self.is_node_ready)
        self.wait("default service account", self._has_service_account)
        config = parts.kubeconfig(self.root, parts.ADMIN)
        print(f"cluster up in {time.monotonic() - began:.1f} s; KUBECONFIG={config}")

    def import_image(self, tar: Path) -> None:
        """Give containerd an image archive."""
        self.ctr("images", "import", str(tar))

    def is_api_ready(self) -> bool:
        """Does the API server answer /readyz?"""
        return self.kubectl("get", "--raw", "/readyz") == "ok"

    def is_node_ready(self) -> bool:
        """Is the node's Ready condition True?"""
        path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "node", parts.NODE, "-o", path) == "True"

    def _has_service_account(self) -> bool:
        return bool(self.kubectl("get", "serviceaccount", "default", "-o", "name"))

    def wait(self, what: str, probe: Callable[[], object], limit_s: float = LIMIT_S) -> None:
        """Wait until the probe is true; its errors count as not yet.

        Raises:
            SystemExit: it stayed false; the ends of all logs are in the text.
        """
        deadline, seen = time.monotonic() + limit_s, "false"
        while time.monotonic() < deadline:
            try:
                if probe():
                    return
            except (RuntimeError, OSError) as error:
                seen = str(error)
            time.sleep(0.1)
        logs = sorted((self.root / "log").glob("*.log"))
        tails = "\n".join(f"--- {p.stem}\n{self.log_tail(p.stem, 8)}" for p in logs)
        raise SystemExit(f"gave up waiting for {what} after {limit_s} s ({seen})\n{tails}")

    def down(self) -> None:
        """Stop everything that `up` started and remove every trace of it."""
        for name in _STOP_ORDER:  # what a graceful end would write is removed with the rest
            self.stop(name, signal.SIGKILL)
        if (self.root / "containerd.toml").exists():  # also after a crash: all pods are ours
            containers.end_containers()
        containers.end_shims(self._socket())
        machine.clean(self.root, self.programs)

    def _start_containerd(self) -> None:
        self.start("containerd")
        self.wait("containerd", lambda: self.ctr("version"))


def _reap(pid: int) -> None:
    """Take the exit status of a part that this process started; others have their own parent."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _output(command: tuple[str, ...], stdin: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, input=stdin, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=["up", "down", "restart", "stop", "start", "images"])
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    cluster = Cluster()
    if args.verb == "up":
        cluster.up()
    elif args.verb == "down":
        cluster.down()
    for name in args.names:
        if args.verb == "images":
            cluster.import_image(Path(name))
        if args.verb in ("stop", "restart"):
            cluster.stop(name)
        if args.verb in ("start", "restart"):
            cluster.start(name)


if __name__ == "__main__":
    main()
