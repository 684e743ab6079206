"""The stream of changes, and what the page says when the API server or rights are missing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.extender.http.serving import ServerLimits
from hami_node.view.feed import KEPT, MAX_NAMES, Change
from hami_node.wire.times import format_dashed
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import holding_pod, node_object, pending_pod
from tests.fakes.view_rig import ViewRig
from tests.fakes.waiting import eventually


@pytest.fixture
def api() -> Iterator[FaultyApiServer]:
    server = FaultyApiServer()
    for number in range(3):
        server.create("nodes", node_object(number))
    with server:
        yield server


def test_change_is_told_with_the_nodes_that_changed(api: FaultyApiServer, tmp_path: Path) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        with rig.listen() as page:
            assert page.headers["content-type"].startswith("text/event-stream")
            assert page.next("change")[2]["nodes"] is None
            api.create("pods", holding_pod("ml", "p", 1, 0, 4096))
            _, _, data = page.next("change")
            assert data["nodes"] == ["gpu-00001"]
            assert data["summary"]["holders"] == 1
            api.create("pods", pending_pod("ml", "big", memory_mib=99999))
            _, _, data = page.next("change")
            assert (data["waiting"], data["summary"]["waiting"]) == (True, 1)


def test_page_that_comes_back_gets_what_it_missed(api: FaultyApiServer, tmp_path: Path) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        with rig.listen() as page:
            _, mark, _ = page.next("change")
        eventually(lambda: rig.server.feed.listeners == 0)
        api.create("pods", holding_pod("ml", "p", 2, 0, 4096))
        eventually(lambda: rig.server.feed.summary()["holders"] == 1)
        with rig.listen(mark) as page:
            assert page.next("change")[2]["nodes"] == ["gpu-00002"]
        many = frozenset(f"n{number}" for number in range(MAX_NAMES + 1))
        for changes in ([many], [frozenset({f"n{number}"}) for number in range(KEPT + 1)]):
            for names in changes:
                rig.server.feed.publish(Change(nodes=names), rig.server.feed.summary())
            with rig.listen(mark) as page:
                assert page.next("change")[2]["nodes"] is None
        with rig.listen("0badcafe.7") as page:
            assert page.next("change")[2]["nodes"] is None


def test_silence_is_broken_by_beats(api: FaultyApiServer, tmp_path: Path) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        with rig.listen() as page:
            page.next("change")
            assert [page.next()[0] for _ in range(3)] == ["beat"] * 3


def reported(ago_s: float) -> str:
    return "Reported " + format_dashed(time.time() - ago_s)


def test_reports_of_nodes_are_not_told(api: FaultyApiServer, tmp_path: Path) -> None:
    key = "hami.io/node-handshake"
    api.annotate("nodes", "gpu-00000", {key: reported(60)})
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        first = rig.get("/api/nodes").json["reported"][0]
        with rig.listen() as page:
            page.next("change")
            for ago_s in range(40, 0, -5):
                api.annotate("nodes", "gpu-00000", {key: reported(ago_s)})
            eventually(lambda: rig.get("/api/nodes").json["reported"][0] > first + 50)
            assert [page.next()[0] for _ in range(2)] == ["beat"] * 2


def test_node_that_is_late_is_told_and_when_it_reports_again(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        assert rig.server.feed.summary()["late"] == 3
        with rig.listen() as page:
            page.next("change")
            api.annotate("nodes", "gpu-00001", {"hami.io/node-handshake": reported(1)})
            _, _, data = page.next("change")
            assert (data["nodes"], data["summary"]["late"]) == (["gpu-00001"], 2)
        assert rig.get("/api/nodes?only=late").json["total"] == 2


def test_listeners_are_limited_and_the_rest_may_ask(api: FaultyApiServer, tmp_path: Path) -> None:
    with ViewRig(tmp_path, api, most_listeners=3) as rig:
        rig.wait_until_read()
        pages = [rig.listen() for _ in range(3)]
        late = rig.listen()
        assert late.status == 503
        assert late.headers["retry-after"] == "15"
        late.close()
        assert rig.get("/api/summary").json["nodes"] == 3
        for page in pages:
            page.close()
        eventually(lambda: rig.server.feed.listeners == 0)
        with rig.listen() as page:
            assert page.status == 200


def test_page_that_reads_nothing_is_cut_off_and_delays_nobody(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    limits = ServerLimits(answer_s=0.5, unread_answer_s=1.0)
    with ViewRig(tmp_path, api, limits=limits, pause_s=0.0, beat_s=0.01) as rig:
        rig.wait_until_read()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            deaf.connect(("127.0.0.1", rig.port))
            deaf.sendall(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: rig.server.feed.listeners == 1)
            number = 0

            def is_gone() -> bool:
                nonlocal number
                number += 1
                for _ in range(20):
                    names = frozenset(f"{number}-{i}-{'x' * 60}" for i in range(150))
                    summary = {**rig.server.feed.summary(), "filler": "x" * 20_000}
                    change = Change(nodes=names)
                    rig.server.feed.publish(change, summary)
                return rig.server.feed.listeners == 0

            with rig.listen() as page:
                page.next("change")
            eventually(is_gone, 30.0)


def test_outage_is_said_with_its_time_and_the_page_goes_on_after(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        api.go_down()
        eventually(lambda: rig.server.feed.summary()["stale"] is not None, 20.0)
        stale = rig.server.feed.summary()["stale"]
        assert stale["since"] > 1_700_000_000
        assert stale["why"]
        assert rig.get("/api/nodes").json["total"] == 3
        page = rig.get("/api/pod?name=ml/p")
        assert page.status == 404
        api.start()
        eventually(lambda: rig.server.feed.summary()["stale"] is None, 20.0)
        api.create("pods", holding_pod("ml", "p", 1, 0, 4096))
        eventually(lambda: rig.server.feed.summary()["holders"] == 1, 20.0)


def test_quotas_that_may_not_be_read_are_said_and_the_rest_works(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    api.fail_next("list", "resourcequotas", 403, times=1_000_000)
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        eventually(lambda: rig.server.feed.summary()["missing"])
        (missing,) = rig.server.feed.summary()["missing"]
        assert missing.startswith("resourcequotas: ")
        assert rig.server.feed.summary()["stale"] is None
        assert rig.get("/api/whatif?memory=1000").json["places"]


def test_page_writes_nothing_to_the_cluster(api: FaultyApiServer, tmp_path: Path) -> None:
    with ViewRig(tmp_path, api) as rig:
        rig.wait_until_read()
        for path in ("/api/nodes", "/api/whatif?memory=1", "/api/pod?name=ml/p"):
            rig.get(path)
    verbs = {(request.verb, request.resource) for request in api.requests(user_agent="view")}
    assert {verb for verb, _ in verbs} <= {"list", "watch"}
    assert {resource for _, resource in verbs} == {"nodes", "pods", "resourcequotas"}
