"""TLS between client and server: the authority of the kubeconfig decides, and nothing else."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.cluster.client import KubeClient, connect
from hami_node.errors import KubeError
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl program"
)


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """(certificate, key) for 127.0.0.1, signed by itself."""
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path, "server")


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[FaultyApiServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with FaultyApiServer(tls=context, token="t") as server:
        server.create("nodes", {"metadata": {"name": "n1"}})
        yield server


def client_of(server: FaultyApiServer, folder: Path, authority: Path | None) -> KubeClient:
    kubeconfig = server.write_kubeconfig(folder / "kubeconfig", ca_file=authority)
    return connect(kubeconfig, component="daemon", clock=RealClock())


def test_right_authority_is_accepted_also_after_an_outage(
    secure: FaultyApiServer, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    kube = client_of(secure, tmp_path, certificate[0])
    assert kube.read_node("n1").name == "n1"
    secure.go_down()
    secure.start()
    assert kube.read_node("n1").name == "n1"
    kube.close()


def test_another_authority_is_refused_and_said(secure: FaultyApiServer, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, "other")
    kube = client_of(secure, tmp_path, other)
    with pytest.raises(KubeError, match=r"TLS with https://127\.0\.0\.1:\d+ failed.*certificate"):
        kube.read_node("n1")
    kube.close()


def test_who_asks_for_no_checks_is_not_warned_of_each_request(
    secure: FaultyApiServer, tmp_path: Path
) -> None:
    path = secure.write_kubeconfig(tmp_path / "kubeconfig")
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    path.write_text(json.dumps(document))
    code = (
        "import sys; from pathlib import Path; from hami_node.clock import SystemClock; "
        "from hami_node.cluster.client import connect; "
        "kube = connect(Path(sys.argv[1]), component='test', clock=SystemClock()); "
        "print(kube.read_node('n1').name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("n1\n", "")
