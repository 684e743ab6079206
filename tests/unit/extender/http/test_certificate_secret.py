"""`hami-node certify` against a simulated API server: what it writes, keeps, renews, refuses."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.errors import Conflict
from hami_node.extender.http.certificate_secret import CertificateSecret, Target, certify
from hami_node.extender.http.certify import Pair, Subject, service_names, why_renew
from tests.fakes.api_server import FaultyApiServer

NOW_S = 1_800_000_000.0
YEAR_S = 365 * 86_400
SECRET, SPACE = "hami-node-extender-tls", "hami-system"
CLIENT, AUTHORITY = "hami-node-scheduler-client-tls", "hami-node-authority"
KEYS = {"tls.crt", "tls.key", "ca.crt"}
WEBHOOKS = "mutatingwebhookconfigurations"
Json = dict[str, Any]


@pytest.fixture
def server() -> Iterator[FaultyApiServer]:
    with FaultyApiServer() as running:
        yield running


@pytest.fixture
def webhook(server: FaultyApiServer) -> None:
    service = {"name": "hami-node-webhook", "namespace": SPACE, "path": "/webhook"}
    webhooks = [{"name": "vgpu.hami.io", "clientConfig": {"service": service}, "timeoutSeconds": 9}]
    server.create(WEBHOOKS, {"metadata": {"name": "hami-node"}, "webhooks": webhooks})


def call(server: FaultyApiServer, tmp_path: Path, *args: str, now_s: float = NOW_S) -> Result:
    file = server.write_kubeconfig(tmp_path / "kubeconfig")
    parts = Programs(now=lambda: now_s, env=lambda: {"KUBECONFIG": str(file)})
    return CliRunner().invoke(main, ["certify", *args], obj=parts)


def stored(server: FaultyApiServer, name: str = SECRET) -> Json:
    data: Json = server.read("secrets", name, SPACE)["data"]
    return data


def bundle_of_the_webhook(server: FaultyApiServer) -> str:
    (found,) = server.read(WEBHOOKS, "hami-node")["webhooks"]
    assert found["timeoutSeconds"] == 9
    assert found["clientConfig"]["service"]["path"] == "/webhook"
    return str(found["clientConfig"].get("caBundle", ""))


@pytest.mark.usefixtures("webhook")
def test_certify_writes_secret_and_webhook_and_keeps_them(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    done = call(server, tmp_path)
    assert done.exit_code == 0, done.output
    assert "made, valid until 2037-01-" in done.output
    assert "webhook hami-node: caBundle written" in done.output
    first = stored(server)
    assert set(first) == set(stored(server, CLIENT)) == KEYS
    assert b"PRIVATE KEY" in base64.b64decode(first["tls.key"])
    assert stored(server, CLIENT)["ca.crt"] == first["ca.crt"]
    assert first["tls.key"] not in (stored(server, CLIENT)["tls.key"], stored(server, AUTHORITY))
    assert bundle_of_the_webhook(server) == first["ca.crt"]

    server.forget_requests()
    again = call(server, tmp_path, now_s=NOW_S + 4 * YEAR_S)
    assert "kept, valid until 2037-01-" in again.output
    assert "webhook hami-node: caBundle kept" in again.output
    assert {request.verb for request in server.requests()} == {"get"}


@pytest.mark.usefixtures("webhook")
def test_certify_fills_the_empty_secret_of_the_manifests(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    labels = {"app": "hami-node-certificate"}
    for name in (SECRET, CLIENT, AUTHORITY):
        server.create("secrets", {"metadata": {"name": name, "namespace": SPACE, "labels": labels}})
    assert call(server, tmp_path).exit_code == 0
    assert not server.requests(verb="create", resource="secrets")
    assert server.read("secrets", SECRET, SPACE)["metadata"]["labels"] == labels
    assert set(stored(server)) == set(stored(server, CLIENT)) == KEYS


@pytest.mark.usefixtures("webhook")
def test_certify_renews_and_goes_on_trusting_the_old_one(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    call(server, tmp_path)
    server.edit("secrets", SECRET, lambda secret: secret["data"].update(more="eA=="), SPACE)
    first = stored(server)
    done = call(server, tmp_path, now_s=NOW_S + 3625 * 86_400)
    assert "renewed, valid until 2046-12-" in done.output
    assert "it ends on 2037-01-" in done.output
    second = stored(server)
    assert second["tls.crt"] != first["tls.crt"]
    assert second["more"] == "eA=="
    authorities, before = base64.b64decode(second["ca.crt"]), base64.b64decode(first["ca.crt"])
    assert authorities.startswith(before), "who trusts the first one only can go on"
    assert authorities.count(b"BEGIN CERTIFICATE") == 2, "the following one is announced"
    assert (
        why_renew(
            Pair(
                certificate=base64.b64decode(second["tls.crt"]),
                key=base64.b64decode(second["tls.key"]),
            ),
            before,
            Subject(names=service_names("hami-node-webhook", SPACE)),
            NOW_S + 3625 * 86_400,
        )
        == ""
    ), "no restart is needed"
    assert bundle_of_the_webhook(server) == second["ca.crt"]


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("value", ["%%%", "eA=="], ids=["no-base64", "no-certificate"])
def test_certify_replaces_what_it_cannot_read(
    server: FaultyApiServer, tmp_path: Path, value: str
) -> None:
    data = dict.fromkeys(("tls.crt", "tls.key", "ca.crt"), value)
    server.create("secrets", {"metadata": {"name": SECRET, "namespace": SPACE}, "data": data})
    assert call(server, tmp_path).exit_code == 0
    assert b"BEGIN CERTIFICATE" in base64.b64decode(stored(server)["tls.crt"])


@pytest.mark.usefixtures("webhook")
def test_dry_run_says_what_it_would_do_and_writes_nothing(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    done = call(server, tmp_path, "--dry-run")
    assert done.exit_code == 0
    assert "would be made" in done.output
    assert "caBundle would be written" in done.output
    assert {request.verb for request in server.requests()} == {"get"}
    assert bundle_of_the_webhook(server) == ""


@pytest.mark.usefixtures("webhook")
def test_certify_repairs_a_webhook_that_trusts_another(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    call(server, tmp_path)

    def spoil(configuration: Json) -> None:
        configuration["webhooks"][0]["clientConfig"]["caBundle"] = "eA=="

    server.edit(WEBHOOKS, "hami-node", spoil)
    assert "caBundle written" in call(server, tmp_path).output
    assert bundle_of_the_webhook(server) == stored(server)["ca.crt"]


def test_certify_without_the_webhook_keeps_the_secret_and_ends_with_3(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    done = call(server, tmp_path)
    assert done.exit_code == 3
    assert "mutatingwebhookconfigurations/hami-node" in done.output
    assert stored(server)


def test_certify_with_an_empty_webhook_writes_the_secret_only(
    server: FaultyApiServer, tmp_path: Path
) -> None:
    done = call(server, tmp_path, "--webhook", "", "--namespace", "gpu", "--days", "400")
    assert done.exit_code == 0
    assert "webhook" not in done.output
    assert server.read("secrets", SECRET, "gpu")["data"]
    assert not server.requests(resource=WEBHOOKS)


@pytest.mark.usefixtures("webhook")
def test_certify_that_may_not_write_ends_with_3(server: FaultyApiServer, tmp_path: Path) -> None:
    server.fail_next("create", "secrets", 403)
    done = call(server, tmp_path)
    assert done.exit_code == 3
    assert done.output.startswith("error: ")
    assert bundle_of_the_webhook(server) == ""


class Racing:
    """An API in which somebody else wrote the Secret between our reading and our writing."""

    def request(
        self, method: str, path: str, *, body: object = None, content_type: str | None = None
    ) -> bytes:
        del path, body, content_type
        if method == "GET":
            return b'{"metadata": {"name": "s", "resourceVersion": "7"}}'
        raise Conflict("written by somebody else", 409)


def test_certify_never_overwrites_what_another_wrote_meanwhile() -> None:
    holder = CertificateSecret(secret="s", subject=Subject(names=service_names("s", "n")))
    target = Target(namespace="n", authority_secret="a", holders=(holder,), webhook="", days=9)
    with pytest.raises(Conflict):
        list(certify(Racing(), target, NOW_S))


@pytest.mark.parametrize("days", ["0", "99999", "x"])
def test_days_out_of_range_are_wrong_usage(
    server: FaultyApiServer, tmp_path: Path, days: str
) -> None:
    assert call(server, tmp_path, "--days", days).exit_code == 2
