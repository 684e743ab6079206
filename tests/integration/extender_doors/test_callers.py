"""Who is answered on the port for decisions: the holder of one certificate, and nobody else."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.api_server import FaultyApiServer
from tests.fakes.reviews import review_of
from tests.fakes.waiting import eventually
from tests.integration.extender_process import (
    CALLER,
    LIMIT_S,
    Mounted,
    Replica,
    call,
    context_of,
    tls_flags,
)
from tests.reliability import shows

POD = {
    "metadata": {"name": "p", "namespace": "default", "uid": "u"},
    "spec": {"containers": [{"name": "c"}]},
}
FILTER = {"Pod": POD, "Nodes": None, "NodeNames": ["n0"]}


class Doors:
    """A replica, the certificates it knows, and those that callers show."""

    def __init__(self, folder: Path, api: FaultyApiServer) -> None:
        self.secrets = Mounted(folder, api)
        # Seventy days ago, and again when those certificates were about to end.
        self.secrets.certify("--days=40", days_later=-70)
        self.secrets.certify("--days=40", days_later=-35)
        self.server = self.secrets.mount("hami-node-extender-tls")
        self.caller = self.secrets.mount(CALLER)
        self.replica = Replica(folder / "replica", api, *tls_flags(self.server))
        self.replica.wait_ready()

    def filter(self, pair: Path | None, ca: Path | None = None) -> int:
        """The status of a call with this certificate; 0 where the handshake is refused."""
        context = context_of((ca or self.caller) / "ca.crt", pair)
        try:
            return call(self.replica.decisions, context, "/filter", FILTER)[0]
        except OSError:
            return 0


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    with FaultyApiServer() as api:
        made = Doors(tmp_path, api)
        try:
            yield made
        finally:
            made.replica.end()


@shows(
    "E4",
    fault="a pod of a tenant calls /filter or /bind",
    happens="only the certificate of kube-scheduler is answered; every other is refused",
)
def test_only_the_named_client_is_answered(doors: Doors) -> None:
    assert doors.filter(doors.caller) == 200
    assert doors.filter(None) == 0
    assert doors.filter(doors.server) == 0, "a server's certificate is no client's"
    # another name, signed by the same authority
    doors.secrets.certify("--client=other", "--client-secret=other-tls")
    other = doors.secrets.mount("other-tls")
    assert doors.filter(other) == 403
    # the right name, signed by another authority
    doors.secrets.certify("--client-secret=foreign-tls", "--authority-secret=foreign-authority")
    assert doors.filter(doors.secrets.mount("foreign-tls"), doors.caller) == 0


def test_webhook_answers_the_api_server_and_nothing_but_reviews(doors: Doors) -> None:
    context, port = context_of(doors.caller / "ca.crt"), doors.replica.webhook
    status, answer = call(port, context, "/webhook", review_of(POD))
    assert (status, answer["response"]["allowed"]) == (200, True)
    for path in ("/filter", "/bind", "/metrics", "/healthz"):
        assert call(port, context, path, FILTER)[0] == 404


@shows(
    "E4",
    fault="the certificates and their authority are renewed while kube-scheduler runs on",
    happens="the old and the new certificate are accepted, in any order of their arrival",
)
def test_renewal_cuts_nobody_off(doors: Doors, tmp_path: Path) -> None:
    started = tmp_path / "as-kube-scheduler-started"
    shutil.copytree(doors.caller, started)
    at_start = context_of(started / "ca.crt", started)  # it reads the authority once
    port = doors.replica.decisions
    before = tmp_path / "before"
    shutil.copytree(doors.caller, before)
    doors.secrets.certify("--days=40")  # they are about to end again: the next authority signs
    new = doors.secrets.mount(CALLER)
    assert (new / "tls.crt").read_bytes() != (before / "tls.crt").read_bytes()
    assert doors.filter(new, started) == 200, "kube-scheduler's files came first"
    doors.secrets.mount("hami-node-extender-tls")
    eventually(lambda: "certificate_reloaded" in doors.replica.log(), LIMIT_S)
    assert call(port, at_start, "/filter", FILTER)[0] == 200, "it trusts what it read at its start"
    assert doors.filter(new, started) == 200
    assert doors.filter(before, started) == 200
