"""kubelet, the API server, cards, files: what goes away comes back, and nothing is lost by it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from hami_node.model import Device
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.simulated import SimulatedBackend
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box, Part, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig, inside
from tests.reliability import shows

SMALL = Box(memory_mib=1000)


def serve(rig: Rig, name: str, card: int = 0) -> None:
    """The next pod works: reserve, bind, admit."""
    rig.place(name, [SMALL], {"main": [Part(uuid=uuid(card), memory_mib=1000)]})
    answer = rig.admit(name)
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(card)
    assert rig.bind_phase(name) == names.PHASE_SUCCESS


def start_while(node: Rig, late: Callable[[], object]) -> None:
    """Start the daemon, and at the same time do what it has to wait for."""
    thread = threading.Thread(target=late)
    thread.start()
    node.start()
    thread.join()


def after_a_while(act: Callable[[], object]) -> None:
    """Act when the daemon has looked in vain."""
    threading.Event().wait(0.3)
    act()


# -- kubelet ---------------------------------------------------------------------------------------
def test_kubelet_restarts_often_the_daemon_is_registered_anew_each_time(rig: Rig) -> None:
    chance = random.Random(8)
    pause = threading.Event()
    for n in range(8):
        pause.wait(chance.random() * 0.05)
        for ours in rig.plugins.glob("hami-*.sock"):
            if chance.random() < 0.5:
                ours.unlink()
        seen = len(rig.kubelet.registrations)
        rig.kubelet.restart()
        eventually(lambda: len(rig.kubelet.registrations) > seen, LIMIT_S)  # noqa: B023 - used at once
        rig.wait_registered()
        if n % 4 == 3:
            serve(rig, f"p{n}", n % 4)
    names_seen = [endpoint for _, endpoint in rig.kubelet.registrations]
    assert len(names_seen) == len(set(names_seen)), "a socket name was used twice"
    assert len(list(rig.plugins.glob("hami-*.sock"))) <= 2


def test_own_socket_removed_the_daemon_registers_another(rig: Rig) -> None:
    before = rig.kubelet.registrations[-1][1]
    (rig.plugins / before).unlink()
    eventually(lambda: rig.kubelet.registrations[-1][1] != before, LIMIT_S)
    rig.wait_registered()
    serve(rig, "p")


def test_kubelet_absent_at_start_is_waited_for(node: Rig) -> None:
    node.kubelet.stop()
    start_while(node, lambda: after_a_while(node.kubelet.start))
    serve(node, "p")


def test_foreign_sockets_and_files_in_the_folder_are_left_alone(rig: Rig) -> None:
    foreign = rig.plugins / "nvidia-gpu.sock"
    foreign.touch()
    rig.restart()
    assert foreign.exists()
    rig.wait_registered()


# -- API server ------------------------------------------------------------------------------------
def test_outage_devices_stay_and_pods_are_refused_cleanly_then_everything_converges(
    rig: Rig,
) -> None:
    pod = rig.place("p", [SMALL], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    rig.api.go_down()
    assert rig.kubelet.allocatable(GPU) == rig.card_count * SLOTS
    refused = rig.kubelet.admit(pod, GPU)
    assert not refused.is_admitted
    assert "delete and recreate the pod" in refused.refusal
    rig.write_cards(lost=[1])
    rig.wait_registered((rig.card_count - 1) * SLOTS)
    rig.api.start()
    eventually(
        lambda: (
            [card.healthy for card in decode_register(rig.register_text)]
            == [True, False, True, True]
        ),
        LIMIT_S,
    )
    rig.set_phase("p", "Failed")
    serve(rig, "next", 2)


@shows(
    "R7",
    fault="a pod comes and goes while the watch is down, which never shows it",
    happens="what it held is free as soon as the API server says that it has no such pod",
)
def test_pod_that_the_watch_has_never_shown_is_asked_for(rig: Rig) -> None:
    serve(rig, "other", 1)
    rig.api.fail_next("watch", "pods", "hang")
    rig.api.expire_watches()
    text = f"{Part(uuid=uuid(3), memory_mib=1000)};"
    rig.api.create("pods", pod_body("brief", [SMALL], reservation(text)))
    answer = rig.kubelet.admit(rig.pod("brief"), GPU)
    assert answer.is_admitted, answer.refusal
    rig.wait_followed_up("brief")
    rig.kubelet.remove("default", "brief")
    rig.api.delete("pods", "brief", "default")
    rig.api.expire_watches()
    rig.api.faults.clear()
    daemon = rig.daemon
    assert daemon is not None
    cluster = daemon.cluster
    assert cluster is not None
    eventually(lambda: [entry.pod for entry in cluster.node.ledger.entries()] == ["other"], LIMIT_S)


def test_start_without_the_api_server_registers_first_and_serves_later(node: Rig) -> None:
    node.api.go_down()

    def late() -> None:
        node.wait_registered()
        node.api.start()

    start_while(node, late)
    serve(node, "p")


# -- cards -----------------------------------------------------------------------------------------


@shows(
    "N11",
    fault="a vendor's reading of the cards ends with an error that nobody expected",
    happens="the cards are unhealthy with the reason, and read again; the daemon runs on",
)
def test_scan_that_fails_in_any_way_is_made_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (ZeroDivisionError(), ValueError("rubbish"), UnicodeError(), KeyError(1)):

        def fails(_: SimulatedBackend) -> tuple[Device, ...]:
            raise error  # noqa: B023 - called before the next one

        with monkeypatch.context() as patch:
            patch.setattr(SimulatedBackend, "scan", fails)
            rig.write_cards(lost=[0])
            rig.wait_registered(0)
            assert type(error).__name__ in rig.cards[1].unhealthy_reason
        rig.write_cards()
        rig.wait_registered()


def test_one_stays_without_cards_until_the_driver_appears(node: Rig) -> None:
    node.write_cards(driver_down="not loaded yet")
    start_while(node, lambda: after_a_while(node.write_cards))
    serve(node, "p")


# -- configuration ---------------------------------------------------------------------------------
def config(split_count: object) -> str:
    return f"nvidia:\n  deviceSplitCount: {split_count}\n"


@pytest.mark.parametrize("bad", ["nvidia: [", config("many"), config(20_000)], ids=str.strip)
def test_bad_configuration_keeps_the_settings_and_is_counted(node: Rig, bad: str) -> None:
    node.config_path.write_text(config(10), encoding="utf-8")
    node.start()
    node.config_path.write_text(bad, encoding="utf-8")
    eventually(lambda: node.metric("config_reload_failures_total") == 1, LIMIT_S)
    assert node.kubelet.allocatable(GPU) == node.card_count * SLOTS
    serve(node, "p")
    node.config_path.write_text(config(3), encoding="utf-8")
    node.wait_registered(node.card_count * 3)


# -- restarts of the daemon ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lock", "is_freed"),
    [
        ("2099-01-01T00:00:00Z,default,gone", True),
        ("2099-01-01T00:00:00Z,default,served", True),
        ("2099-01-01T00:00:00Z,default,served-2", False),
        ("2020-01-01T00:00:00Z", True),
        ("2099-01-01T00:00:00Z", False),
    ],
    ids=["pod-gone", "pod-served", "name-only-begins-alike", "expired", "ownerless-and-young"],
)
def test_lock_that_nobody_needs_is_freed_at_start(rig: Rig, lock: str, is_freed: bool) -> None:
    serve(rig, "served")
    rig.place("served-2", [SMALL], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    rig.stop()
    rig.api.annotate("nodes", NODE, {names.NODE_LOCK: lock})
    rig.start()
    if is_freed:
        eventually(lambda: not rig.lock_text, LIMIT_S)
    else:
        serve(rig, "other")
        assert rig.lock_text == lock
