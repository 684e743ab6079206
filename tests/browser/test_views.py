"""Every view of the page, in a real browser."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from hami_node.wire.times import format_dashed
from tests.browser.screen import Screen
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import (
    daemon_pod,
    holding_pod,
    metrics_page,
    node_name,
    node_object,
    pending_pod,
    slices_of,
    uuid_of,
)
from tests.fakes.view_rig import ViewRig
from tests.fakes.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
KEEP: Final = "HAMI_NODE_SCREENSHOTS"
"""Set: the pictures of docs/command-line.md are made anew."""


def reported(ago_s: float = 5.0) -> str:
    return "Reported " + format_dashed(time.time() - ago_s)


def demo_event(pod: str, reason: str, message: str, kind: str = "Warning") -> dict[str, Any]:
    namespace, name = pod.split("/")
    return {
        "metadata": {"name": f"{name}.{reason}", "namespace": namespace},
        "involvedObject": {
            "kind": "Pod", "namespace": namespace, "name": name, "uid": f"uid-{namespace}-{name}",
        },
        "type": kind, "reason": reason, "message": message, "count": 2,
        "lastTimestamp": "2026-11-22T12:00:04Z", "source": {"component": "hami-scheduler"},
    }  # fmt: skip


@pytest.fixture(scope="module")
def api() -> Iterator[FaultyApiServer]:
    server = FaultyApiServer()
    for number in range(12):
        late = 900.0 if number == 4 else 5.0
        node = node_object(
            number,
            sick=(3,) if number == 2 else (),
            is_ready=number != 7,
            reported=reported(late),
        )
        server.create("nodes", node)
        for pod in slices_of(number):
            server.create("pods", pod)
        server.create("pods", daemon_pod(number))
    server.create("pods", pending_pod("ml", "llama-70b", gpu=2, memory_mib=49152))
    server.create("pods", pending_pod("search", "reindex", gpu=8, memory_mib=38000))
    server.create("events", demo_event("ml/llama-70b", "FailedScheduling", "0/12 nodes"))
    server.create("events", demo_event("batch/train-3-0-0", "Pulled", "image pulled", "Normal"))
    with server:
        yield server


@pytest.fixture(scope="module")
def rig(api: FaultyApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewRig]:
    with ViewRig(tmp_path_factory.mktemp("view"), api) as made:
        made.kube.pages["gpu-00002"] = metrics_page(slices_of(2))
        yield made.wait_until_read()


VIEWS = {
    "/nodes": ("gpu-00002", "1 sick", "not ready", "40 GiB free"),
    "/nodes?ns=ml&sort=used": ("gpu-0000",),
    "/node/gpu-00002": (
        "Card 7",
        "uncorrectable memory error (XID 94)",
        "sick: takes no pod",
        "memory used",
    ),
    "/waiting": ("ml/llama-70b", "CardInsufficientMemory", "2 x 49152 MiB"),
    "/pod/ml/llama-70b": ("What would help", "request at most 40960", "FailedScheduling"),
    "/pod/batch/train-3-0-0": ("a scheduler chose node gpu-00003", "bound", "image pulled"),
    "/whatif?count=2&memory=30000": ("It fits", "Fragmentation", "The largest slice"),
    "/whatif?count=1&memory=50000": ("It does not fit now", "What would help"),
    "/problems": ("node gpu-00002, card 3", "XID 94"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_shows_its_words_with_enough_contrast(
    browser: Browser, rig: ViewRig, scheme: str
) -> None:
    screen = Screen(browser, color_scheme=scheme)
    for view, words in VIEWS.items():
        screen.open(rig.server.url, view)
        for text in words:
            screen.wait_for(text, "main")
        assert screen.poor_contrasts() == [], view
    background = screen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 25, 27)") is (scheme == "dark")
    screen.check()
    screen.close()


def test_change_is_seen_without_a_reload(
    screen: Screen, api: FaultyApiServer, rig: ViewRig
) -> None:
    screen.open(rig.server.url)
    screen.wait_for("gpu-00000")
    bars = screen.page.locator(".row", has_text="gpu-00000").locator(".slice")
    bars.first.wait_for()
    before = bars.count()
    api.create("pods", holding_pod("ml", "newcomer", 0, 0, 8192))
    screen.page.locator('a.slice[aria-label="ml/newcomer"]').wait_for()
    eventually(lambda: bars.count() == before + 1, 60)
    screen.page.locator('a.slice[aria-label="ml/newcomer"]').click()
    screen.wait_for("ml/newcomer", "h1")
    api.delete("pods", "newcomer", "ml")
    screen.expected = ("404",)
    screen.wait_for("there is no pod", "body")


@pytest.mark.e2e_long
def test_search_filter_and_address(screen: Screen, rig: ViewRig) -> None:
    page = screen.page
    screen.open(rig.server.url)
    page.locator("#search").fill("train-3-0")
    screen.wait_for("1 node", ".found")
    screen.wait_for("3 pods: batch/train-3-0-0", ".pods")
    assert "q=train-3-0" in page.url
    page.locator("#search").fill("")
    page.get_by_label("Which nodes").select_option("sick")
    screen.wait_for("1 node", ".found")
    screen.open(rig.server.url, "/nodes?ns=ml")
    page.locator(".slice.ours").first.wait_for()
    assert page.locator(".slice.dim").count() > 0
    owners = page.locator(".slice.ours").evaluate_all("all => all.map((it) => it.ariaLabel)")
    assert all(owner.startswith("ml/") for owner in owners)


def test_keyboard_alone_is_enough(screen: Screen, rig: ViewRig) -> None:
    page = screen.page
    screen.open(rig.server.url)
    screen.wait_for("gpu-00002")
    for key in ("j", "ArrowDown", "j", "k"):
        page.keyboard.press(key)
    screen.wait_for("gpu-00001", ".row.active .name")
    page.keyboard.press("Enter")
    screen.wait_for("gpu-00001", "h1")
    page.keyboard.press("Escape")
    page.locator(".list").wait_for()
    for key, words in (("2", "llama-70b"), ("3", "What would a pod find?"), ("4", "XID 94")):
        page.keyboard.press(key)
        screen.wait_for(words, "main")
    page.keyboard.press("1")
    page.get_by_label("Which nodes").wait_for()  # the view before has a list and a search too
    page.keyboard.press("/")
    page.keyboard.type("gpu-00003")
    screen.wait_for("1 node", ".found")
    page.keyboard.press("Escape")
    screen.wait_for("12 nodes", ".found")
    page.keyboard.press("?")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog[open]").wait_for(state="detached")
    for theme in ("light", "dark", "system"):
        page.keyboard.press("t")
        page.wait_for_function("(is) => document.documentElement.dataset.theme === is", arg=theme)
    page.keyboard.press("End")
    screen.wait_for("gpu-00011", ".row.active .name")
    page.keyboard.press("/")
    page.keyboard.press("Tab")  # what has the focus is to be seen
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"


@pytest.mark.e2e_long
def test_rows_are_drawn_when_they_come_into_sight(screen: Screen, tmp_path: Path) -> None:
    large = FaultyApiServer()
    for number in range(400):
        large.create("nodes", node_object(number))
    with large, ViewRig(tmp_path, large) as rig:
        screen.open(rig.wait_until_read().server.url)
        screen.wait_for("400 nodes", ".found")
        screen.wait_for("gpu-00003")
        assert screen.elements() < 6000
        screen.page.keyboard.press("End")
        screen.wait_for("gpu-00399")


@pytest.mark.e2e_long
def test_theme_is_kept(screen: Screen, rig: ViewRig) -> None:
    screen.open(rig.server.url)
    for _ in range(2):
        screen.page.keyboard.press("t")
    screen.open(rig.server.url)
    assert screen.page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.e2e_long
def test_print_has_the_content_and_no_controls(screen: Screen, rig: ViewRig) -> None:
    screen.open(rig.server.url)
    screen.wait_for("gpu-00011")
    screen.page.emulate_media(media="print")
    assert not screen.page.locator("nav").is_visible()
    assert not screen.page.locator(".filters").is_visible()
    tops = screen.page.locator(".row").evaluate_all(
        "rows => rows.map((row) => row.getBoundingClientRect().top)"
    )
    assert len(tops) == 12
    assert tops == sorted(set(tops))
    assert screen.page.pdf().startswith(b"%PDF")


@pytest.mark.e2e_long
def test_narrow_window_needs_no_sideways_scrolling(browser: Browser, rig: ViewRig) -> None:
    screen = Screen(browser, viewport={"width": 390, "height": 800})
    for view in ("/nodes", "/node/gpu-00002", "/waiting", "/whatif?memory=1000"):
        screen.open(rig.server.url, view)
        screen.page.locator("main *").first.wait_for()
        wide = screen.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390, view
    screen.check()
    screen.close()


@pytest.mark.e2e_long
def test_outage_is_said_and_passes(screen: Screen, api: FaultyApiServer, rig: ViewRig) -> None:
    screen.open(rig.server.url)
    api.go_down()
    try:
        screen.wait_for("The API server is away since", "#stale")
        screen.wait_for("stale", "#live")
        assert screen.page.locator(".row").count() > 0
    finally:
        api.start()
    screen.page.wait_for_function("() => document.querySelector('#stale').hidden")
    screen.wait_for("live", "#live")


@pytest.mark.e2e_long
def test_page_without_a_stream_asks_now_and_then(
    screen: Screen, api: FaultyApiServer, tmp_path: Path
) -> None:
    with ViewRig(tmp_path, api, most_listeners=0) as rig:
        rig.wait_until_read()
        screen.expected = ("503",)
        screen.open(rig.server.url, is_live=False)
        screen.wait_for("every 15 s", "#live")
        screen.wait_for("12 nodes", ".found")


@pytest.mark.e2e_long
def test_page_finds_its_server_again(screen: Screen, api: FaultyApiServer, tmp_path: Path) -> None:
    screen.expected = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_CONNECTION_RESET")
    with ViewRig(tmp_path, api) as rig:
        port = rig.wait_until_read().port
        screen.open(rig.server.url)
    screen.wait_for("no connection", "#live")
    with ViewRig(tmp_path, api, bind=f"127.0.0.1:{port}"):
        screen.wait_for("live", "#live")


@pytest.mark.e2e_long
def test_page_in_the_background_gives_its_connection_back(
    screen: Screen, api: FaultyApiServer, tmp_path: Path
) -> None:
    turn = """(is) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => is });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with ViewRig(tmp_path, api) as rig:
        screen.open(rig.wait_until_read().server.url)
        assert rig.server.feed.listeners == 1
        screen.page.evaluate(turn, True)
        eventually(lambda: rig.server.feed.listeners == 0)
        screen.page.evaluate(turn, False)
        eventually(lambda: rig.server.feed.listeners == 1)


HOSTILE: Final = (
    "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    "\u202egnp.exe \x1b[31mred\x1b[0m \u200bjavascript:alert(1) \"'&amp;"
)


def test_hostile_texts_are_only_texts(screen: Screen, tmp_path: Path) -> None:
    hostile = FaultyApiServer()
    notes = {
        "hami-node.io/hand-over": HOSTILE,
        "hami-node.io/limiter": HOSTILE,
        "hami-node.io/allocate-identity": HOSTILE,
        "hami.io/mutex.lock": f"2026-11-22T12:00:00Z,{HOSTILE},{HOSTILE}",
        "hami-node.io/closed-cards": "{" + f'"{uuid_of(0, 3)}":' + '"<b>x\\u202e"}',
    }
    hostile.create("nodes", node_object(0, sick=(3,), model=HOSTILE, annotations=notes))
    name = "<img src=x onerror=window.hacked=3>"
    pod = holding_pod("<i>ns", name, 0, 0, 4096)
    pod["metadata"]["annotations"]["hami.io/vgpu-node"] = node_name(0)
    hostile.create("pods", pod)
    waiting = pending_pod("ml", "p", memory_mib=99999)
    waiting["spec"]["schedulerName"] = HOSTILE
    waiting["metadata"]["annotations"]["hami.io/gpu-scheduler-policy"] = HOSTILE
    hostile.create("pods", waiting)
    hostile.create("events", demo_event("ml/p", HOSTILE, HOSTILE))
    views = ("/nodes", "/node/gpu-00000", "/waiting", "/pod/ml/p", "/problems", "/whatif?memory=1",
             "/nodes?q=" + name, "/pod/" + HOSTILE, "/node/" + HOSTILE, "/" + HOSTILE,
             "/__proto__/x", "/constructor")  # fmt: skip
    screen.expected = ("404",)
    seen = ""
    with hostile, ViewRig(tmp_path, hostile) as rig:
        rig.wait_until_read()
        for view in views:
            screen.open(rig.server.url, view.replace("%", "%25").replace("#", ""))
            screen.page.locator("main *").first.wait_for()
            screen.page.wait_for_timeout(300)
            seen += screen.text("body")
            assert screen.page.evaluate("window.hacked") is None, view
            assert screen.page.locator("main img, main script, main i, main b").count() == 0
    assert "<script>window.hacked=1</script>" in seen
    assert "\\u202e" in seen
    assert "\\u001b[31m" in seen
    assert not set(seen) & {"\u202e", "\x1b", "\u200b"}


PICTURES: Final = {
    "nodes": ("/nodes", "light", "gpu-00008"),
    "nodes-dark": ("/nodes?ns=ml", "dark", "gpu-00008"),
    "node": ("/node/gpu-00002", "light", "Card 1"),
    "pod": ("/pod/ml/llama-70b", "light", "Node by node"),
    "what-if": ("/whatif?count=1&memory=20000&cores=30&ns=ml", "light", "It fits"),
}


@pytest.mark.e2e_long
@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_the_documentation(
    browser: Browser, rig: ViewRig, tmp_path: Path, name: str
) -> None:
    view, scheme, words = PICTURES[name]
    screen = Screen(browser, color_scheme=scheme, viewport={"width": 1100, "height": 640})
    screen.open(rig.server.url, view)
    screen.wait_for(words, "main")
    folder = IMAGES if KEEP in os.environ else tmp_path
    path = folder / f"view-{name}.png"
    screen.picture(path)
    assert 10_000 < path.stat().st_size < 150_000
    assert (IMAGES / path.name).exists()
    screen.check()
    screen.close()
