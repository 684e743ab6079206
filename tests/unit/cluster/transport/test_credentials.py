"""Kubeconfigs and service accounts: what is read from them, and what is said about broken ones."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.transport.connection import Connection, Sender
from hami_node.cluster.transport.credentials import load_configuration
from hami_node.errors import ConfigError, Forbidden, KubeError
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock

SERVER = "https://10.0.0.1:6443"


def write(path: Path, cluster: Mapping[str, object], user: Mapping[str, object] | None) -> Path:
    """A kubeconfig with one context."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config))
    return path


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_token_and_server_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "k", {"server": f"{SERVER}/"}, {"token": "t"})
    configuration = load_configuration(path)
    assert configuration.host == SERVER
    assert configuration.verify_ssl is True
    assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer t"


def test_user_without_anything_is_anonymous(tmp_path: Path) -> None:
    configuration = load_configuration(write(tmp_path / "k", {"server": SERVER}, None))
    assert configuration.get_api_key_with_prefix("BearerToken") is None


def test_token_file_is_read_for_each_request(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    path = write(tmp_path / "k", {"server": SERVER}, {"tokenFile": "token"})
    configuration = load_configuration(path)
    assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer second"


def test_password_becomes_basic_authentication(tmp_path: Path) -> None:
    path = write(tmp_path / "k", {"server": SERVER}, {"username": "me", "password": "pw"})
    header = load_configuration(path).get_api_key_with_prefix("BearerToken")
    assert header == f"Basic {b64('me:pw')}"


def test_files_are_looked_for_beside_the_kubeconfig(tmp_path: Path) -> None:
    user = {"client-certificate": "me.crt", "client-key": "/etc/me.key"}
    path = write(tmp_path / "k", {"server": SERVER, "certificate-authority": "ca.crt"}, user)
    configuration = load_configuration(path)
    assert configuration.ssl_ca_cert == str(tmp_path / "ca.crt")
    assert configuration.cert_file == str(tmp_path / "me.crt")
    assert configuration.key_file == "/etc/me.key"


def test_inline_certificates_become_files_in_memory(tmp_path: Path) -> None:
    user = {"client-certificate-data": b64("CERT"), "client-key-data": b64("KEY")}
    cluster = {"server": SERVER, "certificate-authority-data": b64("CA")}
    configuration = load_configuration(write(tmp_path / "k", cluster, user))
    assert configuration.ca_cert_data == "CA"
    for _ in range(2):  # each new connection reads them
        assert Path(configuration.cert_file).read_text() == "CERT"
        assert Path(configuration.key_file).read_text() == "KEY"
    assert [entry.name for entry in tmp_path.iterdir()] == ["k"]


def test_tls_and_proxy_settings_are_read(tmp_path: Path) -> None:
    cluster = {
        "server": SERVER,
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
    }
    configuration = load_configuration(write(tmp_path / "k", cluster, None))
    assert configuration.verify_ssl is False
    assert configuration.tls_server_name == "kubernetes"
    assert configuration.proxy == "http://proxy:3128"


def test_exec_plugin_is_asked_for_a_token(tmp_path: Path) -> None:
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "made-by-a-program"},
    }
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", f"print('''{json.dumps(answer)}''')"],
            "interactiveMode": "Never",
        }
    }
    configuration = load_configuration(write(tmp_path / "k", {"server": SERVER}, user))
    assert configuration.host == SERVER
    assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer made-by-a-program"


BROKEN = {
    "empty": ("", "kubeconfig"),
    "no yaml": ("{", "kubeconfig"),
    "not utf-8": (b"\xff\xfe\xff", "kubeconfig"),
    "a list": ("[]", "kubeconfig"),
    "wrong type": ("{current-context: 7}", "current-context"),
    "no context": ("{current-context: c}", "contexts in the file: none"),
    "no cluster": (
        "{current-context: c, contexts: [{name: c, context: {cluster: k}}]}",
        "clusters in the file: none",
    ),
    "no server": (
        "{current-context: c, contexts: [{name: c, context: {cluster: k}}], "
        "clusters: [{name: k, cluster: {}}]}",
        "server",
    ),
    "bad base64": (
        "{current-context: c, contexts: [{name: c, context: {cluster: k}}], "
        "clusters: [{name: k, cluster: {server: x, certificate-authority-data: '***'}}]}",
        "certificate-authority-data",
    ),
}


@pytest.mark.parametrize(("content", "named"), BROKEN.values(), ids=BROKEN)
def test_broken_kubeconfig_names_file_and_field(
    tmp_path: Path, content: str | bytes, named: str
) -> None:
    path = tmp_path / "broken"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load_configuration(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KUBECONFIG"):
        load_configuration(tmp_path / "none")
    path = write(tmp_path / "k", {"server": SERVER}, {"tokenFile": "missing"})
    with pytest.raises(ConfigError, match="tokenFile"):
        load_configuration(path)


# -- service account -------------------------------------------------------------------------------

ENVIRON = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("first")
    (tmp_path / "ca.crt").write_text("CA")
    return tmp_path


def test_service_account_is_read(account: Path) -> None:
    configuration = load_configuration(None, account, ENVIRON)
    assert configuration.host == "https://10.0.0.1:443"
    assert configuration.ssl_ca_cert == str(account / "ca.crt")
    assert configuration.get_api_key_with_prefix("BearerToken").split() == ["bearer", "first"]


def test_ipv6_service_address_is_bracketed(account: Path) -> None:
    environ = {**ENVIRON, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    assert load_configuration(None, account, environ).host == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_service_account_without_a_file_says_what_to_do(account: Path, missing: str) -> None:
    (account / missing).unlink()
    with pytest.raises(ConfigError, match=r"service account.*KUBECONFIG"):
        load_configuration(None, account, ENVIRON)


def test_outside_of_a_cluster_without_kubeconfig_says_what_to_do(account: Path) -> None:
    with pytest.raises(ConfigError, match=r"Service host/port is not set.*KUBECONFIG"):
        load_configuration(None, account, {})


def test_rotated_service_account_token_is_used_when_the_old_one_is_refused(account: Path) -> None:
    with FaultyApiServer(token="first") as server:
        server.create("nodes", {"metadata": {"name": "n1"}})

        def load() -> object:
            configuration = load_configuration(None, account, ENVIRON)
            configuration.host = server.url
            configuration.refresh_api_key_hook = None  # reads the file once a minute at most
            return configuration

        connection = Connection(load, user_agent="test", clock=RealClock())
        kube = KubeClient(Sender(connection), component="daemon", clock=RealClock())
        assert kube.read_node("n1").name == "n1"
        server.token = "second"
        with pytest.raises(Forbidden):
            kube.read_node("n1")
        (account / "token").write_text("second")
        assert kube.read_node("n1").name == "n1"
        (account / "token").unlink()
        server.token = "third"
        with pytest.raises(KubeError):
            kube.read_node("n1")
        kube.close()
