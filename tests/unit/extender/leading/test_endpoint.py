"""The leader's address in the EndpointSlice: written while it leads, and by nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hami_node.errors import Conflict, Forbidden, NotFound
from hami_node.extender.leading.endpoint import (
    CHECK_S,
    CONFLICT_RETRY_S,
    RETRY_S,
    LeaderEndpoint,
    Place,
)
from tests.fakes.clock import RealClock
from tests.reliability import shows


def place(ip: str) -> Place:
    return Place(namespace="s", slice_name="e", pod=f"pod-{ip}", ip=ip, port=8443)


@dataclass
class Slices:
    """One EndpointSlice, replaced only by who has read its newest version."""

    body: dict[str, Any] = field(
        default_factory=lambda: {"addressType": "IPv4", "endpoints": None, "metadata": {}}
    )
    version: int = 1
    writes: int = 0
    before_write: Callable[[], None] = lambda: None

    def request(self, method: str, path: str, *, body: object = None) -> bytes:
        assert path == "/apis/discovery.k8s.io/v1/namespaces/s/endpointslices/e"
        if method == "GET":
            version = {"resourceVersion": str(self.version)}
            return json.dumps({**self.body, "metadata": version}).encode()
        given: Any = body
        act, self.before_write = self.before_write, lambda: None
        act()
        if given["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("written since", 409)
        self.body, self.version, self.writes = given, self.version + 1, self.writes + 1
        return b"{}"

    def served(self) -> list[str]:
        return [ip for item in self.body["endpoints"] or () for ip in item["addresses"]]


def endpoint(slices: Slices, ip: str, is_leading: Callable[[], bool]) -> LeaderEndpoint:
    return LeaderEndpoint(slices, lambda: place(ip), RealClock(), is_leading)


def test_leader_writes_once_and_then_only_checks() -> None:
    slices = Slices()
    ours = endpoint(slices, "192.0.2.1", lambda: True)
    assert [ours.step() for _ in range(3)] == [CHECK_S] * 3
    assert (slices.served(), slices.writes) == (["192.0.2.1"], 1)
    assert slices.body["ports"] == [{"name": "https", "protocol": "TCP", "port": 8443}]


def test_what_somebody_else_wrote_is_put_right() -> None:
    slices = Slices()
    ours = endpoint(slices, "192.0.2.1", lambda: True)
    ours.step()
    wrongs: tuple[dict[str, Any], ...] = (
        {"endpoints": []},
        {"endpoints": None},
        {"ports": []},
        {"endpoints": [{"addresses": ["192.0.2.9"]}]},
        {"endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": False}}]},
        {"endpoints": 7},
    )
    for wrong in wrongs:
        slices.body |= wrong
        ours.step()
        assert slices.served() == ["192.0.2.1"]


@shows(
    "E12",
    fault="a former leader wakes up in the middle of writing its address",
    happens="its write is refused; the new leader alone stands in the EndpointSlice",
)
def test_write_that_is_delayed_past_a_change_of_leader_is_refused() -> None:
    slices = Slices()
    new = endpoint(slices, "192.0.2.2", lambda: True)
    former = endpoint(slices, "192.0.2.1", lambda: True)
    slices.before_write = lambda: assert_equal(new.step(), CHECK_S)
    assert former.step() == CONFLICT_RETRY_S
    assert slices.served() == ["192.0.2.2"]


def assert_equal(found: object, wanted: object) -> None:
    assert found == wanted


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NotFound("no such slice", 404), "apply the manifests"),
        (Forbidden("no right", 403), "retried"),
        (ValueError("a bug"), "retried"),
    ],
)
def test_failure_is_logged_once_with_its_cure_and_retried(
    error: Exception, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def request(self, method: str, path: str, *, body: object = None) -> bytes:
            raise error

    ours = LeaderEndpoint(Broken(), lambda: place("192.0.2.1"), RealClock(), lambda: True)
    assert [ours.step() for _ in range(3)] == [RETRY_S] * 3
    (record,) = caplog.records
    assert record.message == "leader_endpoint_not_written"
    assert hint in str(vars(record))


def test_slice_of_the_other_address_family_is_named() -> None:
    slices = Slices()
    assert endpoint(slices, "2001:db8::1", lambda: True).step() == RETRY_S
    slices.body["addressType"] = "IPv6"
    assert endpoint(slices, "2001:db8::1", lambda: True).step() == CHECK_S
    assert slices.served() == ["2001:db8::1"]
