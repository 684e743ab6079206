"""Make what the end-to-end tests need: packages, the cluster's programs, the product's image.

usage: python -m tests.e2e.prepare            what `make e2e` needs
       python -m tests.e2e.prepare --older    an older Kubernetes, too, for `make e2e-long`

Everything slow is kept in $HAMI_E2E_ASSETS (default ~/.cache/hami-e2e/bin): about 12 minutes on
2 cores from nothing, seconds when nothing changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tests.e2e import product_image
from tests.e2e.assets import IMAGE_TAR, PROGRAMS, SOURCES

ROOT: Final = Path(__file__).parents[2]
_GO_NEEDED: Final = (1, 26, 0)
_KUBERNETES: Final = (
    "k8s.io/kubernetes",
    (
        *("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy"),
        *("kubelet", "kubectl"),
    ),
)
_OLDER: Final = "kubernetes-1.34"
_PROGRAMS: Final = {
    "kubernetes": _KUBERNETES,
    "containerd": (
        "github.com/containerd/containerd/v2",
        ("containerd", "containerd-shim-runc-v2", "ctr"),
    ),
    "nvidia-container-toolkit": (
        "github.com/NVIDIA/nvidia-container-toolkit",
        ("nvidia-cdi-hook", "nvidia-container-runtime"),
    ),
    "helm": ("helm.sh/helm/v3", ("helm",)),
    _OLDER: _KUBERNETES,
}
_CURRENT: Final = tuple(module for module in _PROGRAMS if module != _OLDER)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is being done, then how long it took."""
    began = time.monotonic()
    print(f"e2e: {what} ...", flush=True)
    yield
    print(f"e2e: {what}: {time.monotonic() - began:.1f} s", flush=True)


def check_machine(modules: tuple[str, ...]) -> None:
    """Name everything that is missing and that this script can't mend, at once.

    Raises:
        SystemExit: one line for each.
    """
    missing = []
    if os.geteuid() != 0:
        missing.append("root: kubelet and containerd mount file systems; run as root")
    if shutil.which("apt-get") is None:
        missing.append("apt-get: the tests take etcd, runc and CNI plugins from Debian packages")
    if not all(_is_module_current(module) for module in modules):
        version = _go_version()
        if version is None:
            missing.append("Go: the cluster's programs are built with it; install Go 1.26 or later")
        elif version < _GO_NEEDED:
            found = ".".join(map(str, version))
            missing.append(f"Go 1.26 or later: {found} is installed")
    if missing:
        raise SystemExit("e2e can't run here; missing:\n" + "\n".join(f"  - {m}" for m in missing))


def install_packages() -> None:
    """Install the Debian packages of apt.txt that are not there."""
    wanted = (Path(__file__).parent / "apt.txt").read_text().split()
    missing = [p for p in wanted if not _is_installed(p)]
    if not missing:
        return
    with step(f"installing {' '.join(missing)}"), _no_services():
        env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        for command in (
            ("apt-get", "update", "-qq"),
            ("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing),
        ):
            _run_quietly(command, env)


def install_browser_driver() -> None:
    """Install what drives the browser, into the environment that the tests run in."""
    if find_spec("playwright") is None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = project["optional-dependencies"]["browser"]
        with step(f"installing {' '.join(wanted)}"):
            command = (sys.executable, "-m", "pip", "install", "--quiet", *wanted)
            _run_quietly(command, dict(os.environ))


@contextmanager
def _no_services() -> Iterator[None]:
    """Packages with a service, such as prometheus, are installed without starting it."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def build_programs(modules: tuple[str, ...] = _CURRENT) -> None:
    """Build the cluster's programs unless they were built from these very files."""
    for module in modules:
        package, names = _PROGRAMS[module]
        if not _is_module_current(module):
            with step(f"building {', '.join(names)} {_wanted(module, package)} (minutes, once)"):
                _build(module, _wanted(module, package))
            _hash_file(module).write_text(_digest(module))


def _build(module: str, version: str) -> None:
    target = _target(module)
    target.mkdir(parents=True, exist_ok=True)
    env = dict(
        os.environ,
        CGO_ENABLED="1" if module == "nvidia-container-toolkit" else "0",  # it loads NVML
        CGO_CFLAGS="-O2 -Wno-deprecated-declarations",
        GOFLAGS="-buildvcs=false -trimpath -mod=mod",
    )
    with tempfile.TemporaryDirectory() as scratch:  # go may rewrite go.mod: not in the checkout
        folder = Path(shutil.copytree(SOURCES / module, Path(scratch, module)))
        ours = [f"./{path.parent.name}" for path in folder.glob("*/main.go")]
        flags = _flags(module, version)
        command = ("go", "build", *flags, "-o", f"{target}/", "tool", *ours)
        subprocess.run(command, check=True, cwd=folder, env=env)


def _flags(module: str, version: str) -> tuple[str, ...]:
    """What `go build` is told for that module."""
    return {
        "kubernetes": (
            "-ldflags",
            f"-s -w -X k8s.io/component-base/version.gitVersion={version} "
            "-X k8s.io/component-base/version.gitMajor=1 "
            f"-X k8s.io/component-base/version.gitMinor={version.split('.')[1]}",
        ),
        "containerd": (
            *("-tags", "no_btrfs no_devmapper no_zfs", "-ldflags"),
            f"-s -w -X github.com/containerd/containerd/v2/version.Version={version[1:]}",
        ),
        "nvidia-container-toolkit": (
            "-ldflags",
            # NVML's functions are looked up when they are first called, as in NVIDIA's own build
            "-s -w '-extldflags=-Wl,--export-dynamic,--unresolved-symbols=ignore-in-object-files,"
            "-z,lazy' "
            f"-X github.com/NVIDIA/nvidia-container-toolkit/internal/info.version={version[1:]}",
        ),
        "helm": ("-ldflags", f"-s -w -X helm.sh/helm/v3/internal/version.version={version}"),
    }[module.removesuffix(_OLDER.removeprefix("kubernetes"))]


def _target(module: str) -> Path:
    """Where its programs go: those of an older version have the same names, and a folder."""
    return PROGRAMS / module if module == _OLDER else PROGRAMS


def _is_module_current(module: str) -> bool:
    _, names = _PROGRAMS[module]
    if not all(os.access(_target(module) / name, os.X_OK) for name in names):
        return False
    return _hash_file(module).exists() and _hash_file(module).read_text() == _digest(module)


def _hash_file(module: str) -> Path:
    return PROGRAMS / f"{module}.sha256"


def _digest(module: str) -> str:
    """Of everything that the module's programs are built from."""
    files = sorted(path for path in (SOURCES / module).rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _wanted(module: str, package: str) -> str:
    """The version that go.mod asks for, as `v1.37.2`."""
    text = (SOURCES / module / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(package)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{SOURCES / module / 'go.mod'}: no version of {package}")
    return found[1]


def _go_version() -> tuple[int, ...] | None:
    if shutil.which("go") is None:
        return None
    shown = subprocess.run(("go", "env", "GOVERSION"), capture_output=True, text=True, check=True)
    return tuple(int(n) for n in re.findall(r"\d+", shown.stdout)[:3])


def _is_installed(package: str) -> bool:
    command = ("dpkg-query", "-W", "-f", "${db:Status-Status}", package)
    return subprocess.run(command, capture_output=True, check=False).stdout == b"installed"


def _run_quietly(command: tuple[str, ...], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> None:
    """Everything, in order; each step does nothing when it was done before."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--older", action="store_true", help="build an older Kubernetes, too")
    modules = (*_CURRENT, _OLDER) if parser.parse_args().older else _CURRENT
    check_machine(modules)
    install_packages()
    install_browser_driver()
    build_programs(modules)
    if not product_image.has_base():
        with step("making the base file system of the product's image (2 minutes, once)"):
            product_image.make_base()
    if not product_image.is_current():
        with step("building the product's image from the Dockerfile"):
            product_image.build()
    print(f"e2e: ready; programs in {PROGRAMS}, image {IMAGE_TAR.name}")


if __name__ == "__main__":
    main()
