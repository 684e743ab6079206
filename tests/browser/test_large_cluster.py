"""5,000 nodes with 8 cards each: the page draws and asks for what is seen, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from hami_node.wire.values.timestamps import format_dashed
from tests.browser.screen import Screen
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import holding_pod, node_name, node_object, slices_of
from tests.fakes.view_rig import ViewRig

NODES = 5000
WITH_PODS = 400
MOST_ELEMENTS = 6000
SECONDS_TO_READ = 280.0


@pytest.fixture(scope="module")
def api() -> Iterator[FaultyApiServer]:
    server = FaultyApiServer()
    now = "Reported " + format_dashed(time.time())
    for number in range(NODES):
        server.create("nodes", node_object(number, reported=now))
        if number < WITH_PODS:
            for pod in slices_of(number):
                server.create("pods", pod)
    with server:
        yield server


@pytest.mark.e2e_long
@pytest.mark.timeout(600)
def test_large_cluster_is_fluid(
    screen: Screen, api: FaultyApiServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    page = screen.page
    with ViewRig(tmp_path_factory.mktemp("view"), api, pause_s=1.0, beat_s=15.0) as rig:
        screen.open(rig.server.url)  # shown while it is read
        began_s = time.monotonic()
        rig.wait_until_read(SECONDS_TO_READ)
        print(f"read: {time.monotonic() - began_s:.1f} s")
        screen.wait_for("5,000 nodes", ".found")

        before = screen.bytes
        screen.open(rig.server.url)
        screen.wait_for("5,000 nodes", ".found")
        screen.wait_for("gpu-00003")
        first = screen.bytes - before
        print(f"first view: {first} bytes, {screen.elements()} elements")
        assert first < 120_000
        assert screen.elements() < MOST_ELEMENTS

        began_s, most, before = time.monotonic(), 0, screen.bytes
        for part in range(1, 21):
            at = NODES * part // 20 - 1
            page.evaluate(
                "([list, at]) => document.querySelector(list).scrollTop = at * 62", [".list", at]
            )
            screen.wait_for(node_name(at))
            most = max(most, screen.elements())
        took_s, scrolled = time.monotonic() - began_s, screen.bytes - before
        print(f"20 jumps: {took_s:.2f} s, {scrolled} bytes, {most} elements at most")
        assert most < MOST_ELEMENTS
        assert scrolled < 20 * 20_000

        page.keyboard.press("Home")
        screen.wait_for("gpu-00003")
        page.wait_for_timeout(3000)
        before = screen.bytes
        later = "Reported " + format_dashed(time.time())
        for number in range(0, NODES, 10):
            api.annotate("nodes", node_name(number), {"hami.io/node-handshake": later})
        page.wait_for_timeout(3000)
        print(f"500 reports of nodes: {screen.bytes - before} bytes")
        assert screen.bytes - before < 10_000

        before = screen.bytes
        for number in range(50):
            api.create("pods", holding_pod("ml", f"far-{number}", 4000 + number, 0, 4096))
        page.wait_for_timeout(4000)
        print(f"50 changes out of sight: {screen.bytes - before} bytes")
        assert screen.bytes - before < 30_000

        before, began_s = screen.bytes, time.monotonic()
        api.create("pods", holding_pod("ml", "seen", 1, 3, 4096))
        page.locator('a.slice[aria-label="ml/seen"]').wait_for()
        print(
            f"a change in sight: {time.monotonic() - began_s:.2f} s, {screen.bytes - before} bytes"
        )
        assert screen.bytes - before < 60_000

        began_s = time.monotonic()
        page.locator("#search").fill("gpu-04321")
        screen.wait_for("1 node", ".found")
        print(f"search: {time.monotonic() - began_s:.2f} s")
        screen.open(rig.server.url, "/whatif?count=8&memory=40960")
        screen.wait_for("It fits")
        screen.open(rig.server.url, "/whatif?count=1&memory=50000")
        screen.wait_for("It does not fit now")
        assert screen.elements() < MOST_ELEMENTS
