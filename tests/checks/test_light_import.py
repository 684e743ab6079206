"""What the daemon loads of `kubernetes`, that a release which changes this is noticed, and that
nobody else is hurt by it."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kubernetes
import pytest

from hami_node.cluster.transport import connection, credentials
from hami_node.cluster.transport.light_import import import_light

ROOT = Path(__file__).parents[2]
PACKAGE = Path(kubernetes.__file__).parent
TRIM = ROOT / "daemonset/trim-kubernetes"
LOADED = [
    "kubernetes.client",
    "kubernetes.client.configuration",
    "kubernetes.client.exceptions",
    "kubernetes.client.rest",
    "kubernetes.config.config_exception",
    "kubernetes.config.incluster_config",
    "kubernetes.utils._retry_base",
    "kubernetes.utils.keepalive",
    "kubernetes.utils.retry",
]
"""All that is loaded. A release that needs more must be looked at: what does it cost the daemon?"""
SHOW_LOADED = (
    "import sys, hami_node.cluster.watching.views\n"
    "print(*sorted(name for name in sys.modules if name.partition('.')[0] == 'kubernetes'))"
)


def run(code: str, *, packages: Path | None = None) -> str:
    """The output of a fresh interpreter, which finds `kubernetes` in `packages` first."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(packages),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment(packages: Path | None) -> dict[str, str]:
    added = {} if packages is None else {"PYTHONPATH": str(packages)}
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **added}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with a `kubernetes` of links to the real one: files in it may be replaced."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "kubernetes", ignore=ignored, copy_function=os.symlink)
    return tmp_path


# -- light -----------------------------------------------------------------------------------------


def test_client_and_watches_load_no_heavy_modules() -> None:
    code = (
        "import sys, hami_node.cluster.watching.views\n"
        "heavy = ('pydantic', 'requests', 'requests_oauthlib', 'oauthlib', 'websocket',\n"
        "         'aiohttp', 'dateutil', 'kubernetes.client.models', 'kubernetes.client.api',\n"
        "         'kubernetes.dynamic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_exactly_the_known_parts_are_loaded() -> None:
    assert run(SHOW_LOADED).split() == LOADED


# -- what is used of it ----------------------------------------------------------------------------


def used(of: str) -> Iterator[str]:
    """The attributes that our code reads or sets on a name that ends so."""
    for module in (connection, credentials):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.Attribute):
                continue
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            if name == of or (of == "configuration" and name == "_configuration"):
                yield node.attr


def test_every_attribute_of_a_configuration_that_we_use_exists() -> None:
    (module,) = import_light("kubernetes.client.configuration")
    names = set(used("configuration")) - {"Configuration"}
    assert {"host", "api_key", "socket_options", "retries", "tls_server_name"} <= names
    missing = sorted(name for name in names if not hasattr(module.Configuration(), name))
    assert not missing, "a release without them would ignore what we set"


@pytest.mark.parametrize(
    ("alias", "module"),
    [
        ("_rest", "kubernetes.client.rest"),
        ("_keepalive", "kubernetes.utils.keepalive"),
        ("_incluster", "kubernetes.config.incluster_config"),
        ("_errors", "kubernetes.config.config_exception"),
        ("kube_config", "kubernetes.config.kube_config"),
    ],
)
def test_every_name_that_we_use_exists(alias: str, module: str) -> None:
    (found,) = import_light(module)
    names = set(used(alias))
    assert names
    assert not [name for name in names if not hasattr(found, name)]


def test_what_we_set_reaches_the_connections() -> None:
    (configuration, rest, keepalive) = import_light(
        "kubernetes.client.configuration", "kubernetes.client.rest", "kubernetes.utils.keepalive"
    )
    wanted = configuration.Configuration()
    wanted.retries = False
    wanted.connection_pool_maxsize = 8
    wanted.socket_options = keepalive.tcp_keepalive_socket_options(idle=15, interval=5, count=3)
    wanted.tls_server_name = "kubernetes"
    made = rest.RESTClientObject(wanted).pool_manager.connection_pool_kw
    assert made["retries"].total is False
    assert made["maxsize"] == 8
    assert made["socket_options"] == wanted.socket_options
    assert made["server_hostname"] == "kubernetes"


# -- the rest of the package -----------------------------------------------------------------------


def test_whole_package_can_be_imported_afterwards() -> None:
    code = (
        "import hami_node.cluster.watching.views\n"
        "import kubernetes, kubernetes.config, kubernetes.utils\n"
        "from kubernetes.client import Configuration\n"
        "from hami_node.cluster.transport.credentials import _configuration\n"
        "assert _configuration.Configuration is Configuration\n"
        "print(kubernetes.__version__, kubernetes.config.load_kube_config.__name__,\n"
        "      kubernetes.client.CoreV1Api.__name__)"
    )
    assert run(code).split()[1:] == ["load_kube_config", "CoreV1Api"]


# -- the image's build -----------------------------------------------------------------------------


def trim(packages: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TRIM), sys.executable, str(packages)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(None),
        cwd=ROOT,
    )


def size_mib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def test_image_holds_a_small_package_that_serves(packages: Path) -> None:
    assert size_mib(packages) > 60
    done = trim(packages)
    assert done.returncode == 0, done.stderr
    assert size_mib(packages) < 3
    assert run(SHOW_LOADED, packages=packages).split() == LOADED
    code = (
        "import sys, pytest\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider', '-k', 'exec_plugin',\n"
        "                    'tests/unit/cluster/transport/test_credentials.py'])\n"
        "import kubernetes\n"
        "print(code == 0, kubernetes.__file__)"
    )
    *_, last = run(code, packages=packages).splitlines()
    assert last == f"True {packages}/kubernetes/__init__.py"


def test_image_is_not_built_when_the_light_import_breaks(packages: Path) -> None:
    (packages / "kubernetes" / "client/api_client.py").unlink()
    assert trim(packages).returncode != 0
