"""The page's server: who is answered, with what headers, and what answers say."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from hami_node.view.http.guard import HEADERS
from hami_node.view.http.page_files import page_files
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import (
    daemon_pod,
    holding_pod,
    node_object,
    pending_pod,
    slices_of,
    uuid_of,
)
from tests.fakes.view_rig import ViewRig
from tests.fakes.waiting import eventually

PATHS = ["/", "/app.js", "/api/summary", "/api/nodes", "/api/stream"]


@pytest.fixture(scope="module")
def api() -> Iterator[FaultyApiServer]:
    server = FaultyApiServer()
    for number in range(6):
        server.create("nodes", node_object(number, sick=(3,) if number == 2 else ()))
        for pod in slices_of(number):
            server.create("pods", pod)
    server.create("pods", pending_pod("ml", "too-big", memory_mib=50000))
    server.create("pods", pending_pod("web", "too-many", gpu=9))
    with server:
        yield server


@pytest.fixture(scope="module")
def rig(api: FaultyApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewRig]:
    folder = tmp_path_factory.mktemp("view")
    with ViewRig(folder, api, allowed_hosts=("cards.example.com",)) as made:
        yield made.wait_until_read()


def get(rig: ViewRig, path: str) -> Any:
    answer = rig.get(path)
    assert answer.status == 200, answer.body
    return answer.json


# -- who is answered -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:80", "", "10.0.0.1", None]
)
def test_other_names_are_not_answered(rig: ViewRig, path: str, host: str | None) -> None:
    answer = rig.get(path, host=host)
    # without any Host the parser or the guard refuses
    assert answer.status in (400, 421)
    assert b"--allowed-host" in answer.body or answer.status == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8450", "[::1]:1", "cards.example.com"])
def test_own_names_are_answered(rig: ViewRig, host: str) -> None:
    assert rig.get("/api/summary", host=host).status == 200


def test_two_hosts_are_refused(rig: ViewRig) -> None:
    assert rig.get("/", {"HOST": "evil.example"}).status == 400


def test_probe_is_answered_by_address_and_tells_nothing(rig: ViewRig) -> None:
    answer = rig.get("/healthz", host="10.1.2.3:8450")
    assert (answer.status, answer.body) == (200, b"ok\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/nodes", "/healthz"])
def test_nothing_but_reading_is_served(rig: ViewRig, method: str, path: str) -> None:
    answer = rig.get(path, method=method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/api/nodes", "/api/stream", "/app.js"])
def test_other_sites_get_nothing(rig: ViewRig, headers: dict[str, str], path: str) -> None:
    assert rig.get(path, headers).status == 403


def test_link_on_another_site_opens_the_page(rig: ViewRig) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert rig.get("/", headers).status == 200
    assert rig.get("/", {**headers, "Sec-Fetch-Dest": "iframe"}).status == 403


# -- headers and files -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/nodes", "/healthz", "/nope", "/api/node"])
def test_each_answer_has_the_security_headers(rig: ViewRig, path: str) -> None:
    answer = rig.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "set-cookie" not in answer.headers
    assert "access-control-allow-origin" not in answer.headers
    assert "server" not in answer.headers


def test_policy_forbids_all_but_the_page_itself() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize("path", sorted(page_files()))
def test_file_is_served_with_its_type_and_not_twice(rig: ViewRig, path: str) -> None:
    first = rig.get(path)
    assert first.headers["content-type"] == page_files()[path].content_type
    again = rig.get(path, {"If-None-Match": f'"x", {first.headers["etag"]}'})
    assert (again.status, again.body) == (304, b"")
    other = rig.get(path, {"If-None-Match": '"x"'})
    assert other.status == 200
    head = rig.get(path, method="HEAD")
    assert (head.status, head.body) == (200, b"")


def test_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere() -> None:
    for path, file in page_files().items():
        text = file.body.decode()
        assert not re.search(r"(?:src|href|url\()=?[\"'(]?\s*(?:https?:)?//", text), path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
        if path == "/":
            assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", text)
        imports = re.findall(r"from \"([^\"]+)\"", text)
        assert all(name.startswith("./") and name[1:] in page_files() for name in imports)


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//evil.example/",
        "/pages/app.js",
        "/api",
        "/api/nodes/",
    ],
)
def test_nothing_else_is_served(rig: ViewRig, path: str) -> None:
    assert rig.get(path).status == 404


def test_large_answers_are_packed_for_who_can_unpack(rig: ViewRig) -> None:
    plain = rig.get("/api/nodes")
    packed = rig.get("/api/nodes", {"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < len(plain.body) / 3
    assert json.loads(gzip.decompress(packed.body)) == plain.json


# -- what answers say ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/api/nodes?limit=101",
        "/api/nodes?offset=-1",
        "/api/nodes?offset=99999999999999999999",
        "/api/nodes?limit=%D9%A2",
        "/api/nodes?only=x",
        "/api/nodes?sort=__proto__",
        "/api/nodes?q=" + "x" * 101,
        "/api/pods?ns=" + "x" * 601,
        "/api/whatif?resource=cpu",
        "/api/whatif?count=x",
        "/api/whatif?memory=1e9",
    ],
)
def test_wrong_parameter_is_named_with_what_is_allowed(rig: ViewRig, path: str) -> None:
    answer = rig.get(path)
    assert answer.status == 400
    assert path.split("?")[1].split("=")[0] in answer.json["error"]


def test_no_parameter_breaks_an_answer(rig: ViewRig) -> None:
    draw = random.Random(7)
    pieces = ["", *"a0%\0\u202e'", *["-1", "ml/x", "gpu-00002", "nvidia.com/gpu"], "9" * 30]
    names = [
        "q",
        "ns",
        "name",
        "offset",
        "limit",
        "sort",
        "only",
        "count",
        "memory",
        "cores",
        "resource",
    ]
    paths = [
        "nodes",
        "node",
        "pods",
        "pod",
        "waiting",
        "problems",
        "rooms",
        "whatif",
        "options",
        "used",
    ]
    for _ in range(300):
        given = [
            (draw.choice(names), "".join(draw.choices(pieces, k=draw.randrange(1, 3))))
            for _ in range(draw.randrange(4))
        ]
        path = f"/api/{draw.choice(paths)}?{urlencode(given)}"
        answer = rig.get(path)
        assert answer.status in (200, 400, 404), path
        assert answer.status == 200 or answer.json["error"]


def test_nodes_are_windows_of_a_filtered_sorted_list(rig: ViewRig) -> None:
    found = get(rig, "/api/nodes?offset=1&limit=2")
    assert (found["total"], [row["name"] for row in found["rows"]]) == (
        6,
        ["gpu-00001", "gpu-00002"],
    )
    sick = get(rig, "/api/nodes?only=sick")
    assert [row["name"] for row in sick["rows"]] == ["gpu-00002"]
    assert sick["rows"][0]["problems"] == 1
    by_pod = get(rig, "/api/nodes?q=TRAIN-3-1+gpu-00003")
    assert by_pod["total"] == 0
    by_pod = get(rig, "/api/nodes?q=TRAIN-3-0-0")
    assert [row["name"] for row in by_pod["rows"]] == ["gpu-00003"]
    by_card = get(rig, f"/api/nodes?q={uuid_of(4, 1)}")
    assert [row["name"] for row in by_card["rows"]] == ["gpu-00004"]
    assert get(rig, "/api/nodes?ns=ml")["total"] < 6
    assert get(rig, "/api/nodes?ns=nobody")["rows"] == []
    full = [row["name"] for row in get(rig, "/api/nodes?sort=used")["rows"]]
    assert sorted(full) != full


def test_node_page_says_which_card_is_sick_and_why(rig: ViewRig) -> None:
    page = get(rig, "/api/node?name=gpu-00002")
    assert [card["ok"] for card in page["cards"]] == [True] * 3 + [False] + [True] * 4
    assert "XID 94" in page["cards"][3]["why"]
    (problem,) = page["problems"]
    assert problem["where"] == "node gpu-00002, card 3"
    assert "XID 94" in problem["why"]
    assert page["identity"] == "pod-resources"
    assert rig.get("/api/node?name=nobody").status == 404


def test_use_that_can_not_be_read_is_said(api: FaultyApiServer, rig: ViewRig) -> None:
    assert "no daemon was found" in get(rig, "/api/used?name=gpu-00001")["note"]
    api.create("pods", daemon_pod(3))
    eventually(lambda: "404" in get(rig, "/api/used?name=gpu-00003")["note"], 15.0)


def test_waiting_pods_say_why(rig: ViewRig) -> None:
    found = get(rig, "/api/waiting")
    assert [row["pod"] for row in found["rows"]] == ["ml/too-big", "web/too-many"]
    assert "CardInsufficientMemory" in found["rows"][0]["why"]
    assert get(rig, "/api/waiting?ns=web")["total"] == 1


def test_what_if_asks_the_engine_and_charges_nothing(rig: ViewRig) -> None:
    before = get(rig, "/api/rooms")
    fits = get(rig, "/api/whatif?count=2&memory=30000&ns=ml")
    assert len(fits["places"][0]["cards"]) == 2
    assert fits["places"][0]["cards"][0]["memory"] == 30000
    assert 1 < len(fits["places"]) < fits["most"]
    refused = get(rig, "/api/whatif?memory=50000")
    assert refused["places"] == []
    assert "request at most 40960 of nvidia.com/gpumem" in refused["cures"][0]
    assert sum(item["nodes"] for item in refused["reasons"]) == 6
    zero = get(rig, "/api/whatif?count=0")
    assert "places" not in zero
    assert get(rig, "/api/rooms") == before


def test_rooms_count_pods_of_a_size(rig: ViewRig) -> None:
    found = get(rig, "/api/rooms")
    assert found["largest"]["mib"] == 40960
    sizes = {item["mib"]: item for item in found["sizes"]}
    # 40960 MiB fit where a card is empty: no card of another kind is that large
    assert sizes[32768]["pods"] == sizes[32768]["cards"]
    assert sizes[1024]["pods"] > sizes[8192]["pods"] > sizes[32768]["pods"]


def test_pod_page_is_its_story_in_the_order_of_time(api: FaultyApiServer, rig: ViewRig) -> None:
    about = {"kind": "Pod", "namespace": "batch", "name": "train-3-0-0"}
    event = {
        "metadata": {"name": "e1", "namespace": "batch"},
        "involvedObject": {**about, "uid": "uid-batch-train-3-0-0"},
        "type": "Warning",
        "reason": "FailedScheduling",
        "message": "0/6 nodes",
        "count": 3,
        "lastTimestamp": "2026-11-22T12:00:03Z",
        "source": {"component": "hami-scheduler"},
    }
    other = {**event, "metadata": {"name": "e2", "namespace": "batch"}}
    other["involvedObject"] = {**about, "uid": "another"}
    for body in (event, other):
        api.create("events", body)
    page = get(rig, "/api/pod?name=batch/train-3-0-0")
    kinds = [step["kind"] for step in page["steps"]]
    assert kinds == ["created", "event", "reserved", "bound", "granted", "phase"]
    assert page["steps"][1]["count"] == 3
    assert page["node"] == "gpu-00003"
    assert page["held"][0]["index"] == 0
    assert rig.get("/api/pod?name=batch/nobody").status == 404


def test_events_that_may_not_be_read_are_said_and_the_rest_is_there(
    api: FaultyApiServer, rig: ViewRig
) -> None:
    for outcome, words in ((403, "your rights do not allow events"), (500, "does not answer")):
        api.fail_next("list", "events", outcome)
        page = get(rig, "/api/pod?name=batch/train-3-0-0")
        assert words in page["missing"]
        assert page["held"]


# -- what clients may use --------------------------------------------------------------------------


def test_head_that_is_too_long_or_never_ends_is_refused(rig: ViewRig) -> None:
    answer = rig.get("/api/nodes", {"X-Long": "x" * 20000})
    assert answer.status == 431
    with socket.create_connection(("127.0.0.1", rig.port), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x05hello\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 400")


def test_texts_that_anybody_may_write_are_cut(api: FaultyApiServer, tmp_path: Path) -> None:
    hostile = FaultyApiServer()
    long = "M" * 50_000
    hostile.create("nodes", node_object(0, model=long))
    for number in range(40):
        hostile.create("pods", holding_pod("ml", f"p{number}", 0, 0, 100))
    with hostile, ViewRig(tmp_path, hostile) as rig:
        rig.wait_until_read()
        answer = rig.get("/api/nodes")
        assert len(answer.body) < 12_000
        card = answer.json["rows"][0]["cards"][0]
        assert len(card["model"]) <= 300
        assert len(card["slices"]) == 24
        assert card["slots"] == [40, 10]
        assert len(rig.get("/api/node?name=gpu-00000").body) < 30_000
        assert "over-committed" in rig.get("/api/problems").json["rows"][0]["why"]
