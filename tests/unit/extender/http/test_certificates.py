"""Which certificate is used once its files are replaced, and which are refused."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import ConfigError
from hami_node.extender.http.certificates import Certificates, TlsFiles
from hami_node.extender.http.server import ExtenderServer
from tests.unit.extender.http.test_server import ECHO

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with the openssl program"
)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Two self-signed pairs for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("pairs")
    made = {}
    for name in ("old", "new"):
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        command = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        made[name] = (certificate, key)
    return made


class Secret:
    """A mounted Secret as kubelet writes it: files are links through `..data`, which is swapped."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.cert_file, self.key_file = folder / "tls.crt", folder / "tls.key"

    @property
    def files(self) -> TlsFiles:
        return TlsFiles(cert_file=self.cert_file, key_file=self.key_file)

    def publish(self, certificate: Path, key: Path) -> None:
        self.count += 1
        version = self.folder / f"..{self.count}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate.read_bytes())
        (version / "tls.key").write_bytes(key.read_bytes())
        (self.folder / "..next").symlink_to(version.name)
        (self.folder / "..next").rename(self.folder / "..data")
        for name in ("tls.crt", "tls.key"):
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")


@pytest.fixture
def secret(tmp_path: Path, pairs: dict[str, tuple[Path, Path]]) -> Secret:
    made = Secret(tmp_path)
    made.publish(*pairs["old"])
    return made


@pytest.mark.parametrize("broken", ["mismatch", "garbage", "missing"])
def test_broken_new_pair_keeps_the_old_one_and_is_said_once(
    broken: str,
    secret: Secret,
    pairs: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    certificates = Certificates(secret.files)
    before = certificates._newest
    if broken == "mismatch":
        secret.publish(pairs["new"][0], pairs["old"][1])
    elif broken == "garbage":
        secret.publish(garbage, garbage)
    else:
        secret.key_file.unlink()
    for _ in range(3):
        certificates.refresh()
    assert certificates._newest is before
    assert [r.message for r in caplog.records] == ["certificate_refused"]


def test_unchanged_files_are_not_loaded_again(secret: Secret) -> None:
    certificates = Certificates(secret.files)
    before = certificates._newest
    secret.publish(secret.cert_file, secret.key_file)
    certificates.refresh()
    assert certificates._newest is before


def test_old_tls_is_refused(secret: Secret) -> None:
    certificates = Certificates(secret.files)
    assert certificates.newest.minimum_version is ssl.TLSVersion.TLSv1_2


def test_unusable_pair_is_a_config_error_that_names_the_files(
    secret: Secret, pairs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    missing = tmp_path / "missing.crt"
    cases: list[tuple[TlsFiles, str]] = [
        (replace(secret.files, cert_file=missing), "missing.crt"),
        (replace(secret.files, key_file=pairs["new"][1]), "new.key"),
        (replace(secret.files, client_ca_file=missing), "missing.crt"),
    ]
    for files, named in cases:
        server = ExtenderServer("127.0.0.1:0", ECHO, tls=files)
        with pytest.raises(ConfigError, match=named):
            server.start()
        server.close()


def test_encrypted_key_is_an_error_and_no_question(
    secret: Secret, pairs: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:abcd", "-out", str(locked)]
    subprocess.run([*command, "-in", str(pairs["old"][1])], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="unencrypted"):
        Certificates(replace(secret.files, key_file=locked))
