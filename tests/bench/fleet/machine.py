"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from hami_node import __version__
from tests.e2e.assets import program


def described() -> dict[str, str]:
    """Cores, processor, memory, versions, and how busy the machine is at this moment."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    return {
        "machine": f"{os.cpu_count()} cores, {cpu[1] if cpu else platform.machine()}, "
        f"{int(memory[1]) / 1048576 if memory else 0:.0f} GiB",
        "load average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "versions": f"hami-node {__version__}, Python {platform.python_version()}, "
        f"Linux {platform.release().split('-')[0]}, {_version('kube-apiserver')}, "
        f"{_version('etcd')}",
    }


def _version(name: str) -> str:
    path = program(name)
    if path is None:
        return f"no {name}"
    said = subprocess.run((path, "--version"), capture_output=True, text=True, check=False).stdout
    return said.splitlines()[0].replace("Version: ", "") if said else name


def printed(facts: dict[str, str]) -> str:
    """One line each."""
    return "\n".join(f"{name}: {value}" for name, value in facts.items())
