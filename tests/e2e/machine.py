"""What the cluster changes on the machine outside its own folders, and how each is undone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.e2e import assets
from tests.e2e.containers import pod_cgroups
from tests.e2e.parts import NODE_IP

KUBELET_DIR: Final = Path("/var/lib/kubelet")  # device-plugins/ below it is a constant in kubelet
NODE_DIR: Final = assets.NODE_DIR
_MARK: Final = KUBELET_DIR / ".e2e"  # says that we made what lies in KUBELET_DIR
_SYSCTLS: Final = ("net.ipv4.ip_forward", "net.ipv4.conf.all.route_localnet")
_CHAIN_PREFIXES: Final = ("KUBE-", "CNI-")


def refuse_foreign_kubelet(our_pid: int | None) -> None:
    """kubelet's folder is emptied by us: never on a machine that is somebody's node.

    Raises:
        SystemExit: another kubelet runs here, or its folder holds pods.
    """
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, name, state = re.split(r" \(|\) ", stat.read_text())
        except (OSError, ValueError):
            continue  # the process ended meanwhile, or has a name that is not kubelet's
        if name == "kubelet" and state[0] != "Z" and int(pid) != our_pid:
            raise SystemExit(
                f"a kubelet that is not ours runs here (pid {pid}): "
                "this machine is a node, nothing was touched"
            )
    if (KUBELET_DIR / "pods").exists() and not _MARK.exists():
        raise SystemExit(
            f"{KUBELET_DIR}/pods is there and not ours: this machine is a node, nothing was touched"
        )


def prepare(root: Path) -> None:
    """Mark kubelet's folder as ours, route between pods, make the node's own address."""
    KUBELET_DIR.mkdir(parents=True, exist_ok=True)
    _MARK.touch()
    before = {name: _sysctl(name) for name in _SYSCTLS}
    (root / "sysctl.json").write_text(json.dumps(before))
    for name in _SYSCTLS:
        Path("/proc/sys", *name.split(".")).write_text("1\n")
    _run("ip", "link", "add", "e2e-node", "type", "bridge")
    _run("ip", "addr", "add", f"{NODE_IP}/32", "dev", "e2e-node")
    _run("ip", "link", "set", "e2e-node", "up")


def clean(root: Path, programs: Path) -> None:
    """Undo everything; harmless when there is nothing to undo.

    Raises:
        SystemExit: a mount can't be undone; a folder with one in it is not deleted.
    """
    _remove_links()
    _unmount(root)
    if (programs / "kube-proxy").exists():
        _try(str(programs / "kube-proxy"), "--cleanup")
    for tool in ("iptables", "ip6tables"):
        for table in ("nat", "filter", "mangle"):
            _remove_chains(tool, table)
    _remove_cgroups()
    if (root / "sysctl.json").exists():
        for name, value in json.loads((root / "sysctl.json").read_text()).items():
            Path("/proc/sys", *name.split(".")).write_text(f"{value}\n")
    if mounted := _mounts(root):
        raise SystemExit(f"still mounted, so nothing is deleted: {', '.join(mounted)}")
    if root.exists():
        for folder in (root, NODE_DIR):
            shutil.rmtree(folder, ignore_errors=True)
    if _MARK.exists():
        shutil.rmtree(KUBELET_DIR)


def _remove_links() -> None:
    listed = _try("ip", "-j", "link", "show", "master", "e2e0")
    for link in json.loads(listed or "[]"):
        _try("ip", "link", "del", link["ifname"])
    for namespace in Path("/run/netns").glob("cni-*"):
        _try("ip", "netns", "del", namespace.name)
    for name in ("e2e-node", "e2e0"):
        _try("ip", "link", "del", name)


def _unmount(root: Path) -> None:
    for point in reversed(_mounts(root)):
        _try("umount", "-l", point)


def _mounts(root: Path) -> list[str]:
    """Mount points in our folders, oldest first; kubelet mounts its own folder onto itself."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    own = (str(root), str(NODE_DIR), *([str(KUBELET_DIR)] if _MARK.exists() else []))
    return [p for p in points if p in own or p.startswith(tuple(f"{o}/" for o in own))]


def _remove_chains(tool: str, table: str) -> None:
    """Delete kubelet's, kube-proxy's and CNI's chains and the rules that lead to them, at once."""
    rules = _try(f"{tool}-save", "-t", table).splitlines()
    chains = [r[1:].split()[0] for r in rules if r.startswith(":")]
    ours = [c for c in chains if c.startswith(_CHAIN_PREFIXES)]
    lines = [f"*{table}"]
    for rule in rules:
        words = rule.split()
        if words[:1] == ["-A"] and words[1] not in ours and any(w in ours for w in words):
            lines.append(f"-D {rule.removeprefix('-A ')}")
    lines += [f"{verb} {chain}" for verb in ("-F", "-X") for chain in ours]
    if len(lines) > 1:
        text = "\n".join([*lines, "COMMIT", ""])
        command = (f"{tool}-restore", "--noflush", "--wait")
        done = subprocess.run(command, input=text, check=False, capture_output=True, text=True)
        if done.returncode:
            print(f"left behind: chains of {tool} in {table}: {done.stderr.strip()}")


def _remove_cgroups() -> None:
    for pods in pod_cgroups():
        folders = [p for p in pods.rglob("*") if p.is_dir()]
        for folder in (*sorted(folders, key=lambda p: -len(p.parts)), pods):
            try:
                folder.rmdir()
            except OSError as error:
                print(f"left behind: {folder}: {error.strerror}")


def _sysctl(name: str) -> str:
    return Path("/proc/sys", *name.split(".")).read_text().strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> str:
    """Output of a clean-up command; one that finds nothing to clean may fail."""
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout
