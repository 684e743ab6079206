"""What the daemon loads of `kubernetes`, and that nobody else is hurt by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hami_node.cluster.light_import import import_light


def run(code: str) -> str:
    """The output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_client_and_watches_load_no_heavy_modules() -> None:
    code = (
        "import sys, hami_node.cluster.views\n"
        "heavy = ('pydantic', 'requests', 'requests_oauthlib', 'oauthlib', 'websocket',\n"
        "         'aiohttp', 'dateutil', 'kubernetes.client.models', 'kubernetes.client.api',\n"
        "         'kubernetes.dynamic')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_whole_package_can_be_imported_afterwards() -> None:
    code = (
        "import hami_node.cluster.views\n"
        "import kubernetes, kubernetes.config, kubernetes.utils\n"
        "from kubernetes.client import Configuration\n"
        "from hami_node.cluster.credentials import _configuration\n"
        "assert _configuration.Configuration is Configuration\n"
        "print(kubernetes.__version__, kubernetes.config.load_kube_config.__name__,\n"
        "      kubernetes.client.CoreV1Api.__name__)"
    )
    assert run(code).split()[1:] == ["load_kube_config", "CoreV1Api"]


def test_whole_package_imported_before_is_used() -> None:
    code = (
        "import kubernetes\n"
        "from hami_node.cluster.credentials import _configuration\n"
        "assert _configuration.Configuration is kubernetes.client.Configuration\n"
        "print(kubernetes.config.load_kube_config.__name__)"
    )
    assert run(code).strip() == "load_kube_config"


def test_missing_module_raises_import_error() -> None:
    with pytest.raises(ImportError):
        import_light("kubernetes.client.no_such_part")
