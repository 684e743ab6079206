"""The node object holds what it should, whatever others write beside, over or before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from tests.fakes.cards import MODEL, uuid
from tests.fakes.pods import NODE, Box, pod_body
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig

OFTEN = "2"


def test_nothing_changes_only_the_handshake_is_written(node: Rig) -> None:
    node.start(report_interval_s=OFTEN)
    text = node.register_text
    eventually(lambda: nvidia_names.NODE_HANDSHAKE in node.notes)
    first = node.notes[nvidia_names.NODE_HANDSHAKE]
    eventually(lambda: node.notes[nvidia_names.NODE_HANDSHAKE] != first, LIMIT_S)
    assert node.register_text == text
    node.api.forget_requests()
    eventually(lambda: len(node.api.requests(verb="patch")) >= 3, LIMIT_S)
    asked = {(request.verb, request.resource) for request in node.api.requests()}
    assert asked == {("patch", "nodes")}


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("Requesting_2024-01-02 03:04:05", "on-request"),
        ("Deleted_2024-01-02 03:04:05", "on-request"),
        ("Requesting_2024-01-02 03:04:05", "always"),
    ],
    ids=["requesting", "deleted", "requesting-always"],
)
def test_question_of_a_scheduler_is_answered_at_the_next_report(
    node: Rig, word: str, mode: str
) -> None:
    node.start(handshake=mode, report_interval_s=OFTEN)
    node.api.annotate("nodes", NODE, {nvidia_names.NODE_HANDSHAKE: word})
    eventually(lambda: node.notes[nvidia_names.NODE_HANDSHAKE].startswith("Reported "), LIMIT_S)


def test_handshake_off_leaves_the_question_standing(node: Rig) -> None:
    word = "Requesting_2024-01-02 03:04:05"
    node.api.annotate("nodes", NODE, {nvidia_names.NODE_HANDSHAKE: word})
    node.start(handshake="off", report_interval_s=OFTEN)
    node.write_cards(lost=[0])
    eventually(lambda: not decode_register(node.register_text)[0].healthy, LIMIT_S)
    assert node.notes[nvidia_names.NODE_HANDSHAKE] == word


def ask_until(rig: Rig, word: str, is_true: Callable[[], bool]) -> None:
    """A scheduler asks again and again: a report under way may overwrite one question."""

    def asked() -> bool:
        if rig.notes.get(nvidia_names.NODE_HANDSHAKE) != word:
            rig.api.annotate("nodes", NODE, {nvidia_names.NODE_HANDSHAKE: word})
        return is_true()

    eventually(asked, LIMIT_S)


def test_dotted_question_of_2_4_changes_the_form_and_a_dashed_one_changes_it_back(
    node: Rig,
) -> None:
    node.start(report_interval_s=OFTEN)
    assert node.register_text.startswith("[")
    dotted, dashed = "Requesting_2024.01.02 03:04:05", "Requesting_2024-01-02 03:04:05"
    ask_until(node, dotted, lambda: node.register_text.count(",") == 6 * 4)
    assert node.register_text.startswith(f"{uuid(0)},10,40960,100,NVIDIA-{MODEL},0,true:")
    node.restart(report_interval_s=OFTEN)
    assert node.register_text.count(",") == 6 * 4, "our own Reported must not undo the mark"
    ask_until(node, dashed, lambda: node.register_text.startswith("["))


def test_socket_of_pod_resources_gone_the_promise_goes_too_and_comes_back(node: Rig) -> None:
    node.start(report_interval_s=OFTEN)
    assert node.notes[names.NODE_IDENTITY] == names.IDENTITY_POD_RESOURCES
    hidden = node.socket.with_suffix(".hidden")
    node.socket.rename(hidden)
    eventually(lambda: names.NODE_IDENTITY not in node.notes, LIMIT_S)
    hidden.rename(node.socket)
    eventually(lambda: names.NODE_IDENTITY in node.notes, LIMIT_S)


def test_a_thousand_pods_with_foreign_and_malformed_annotations_disturb_nobody(
    node: Rig,
) -> None:
    texts = (
        "",
        ";;;;",
        "GPU-x,NVIDIA",
        "GPU-x,DCU,1,1:;",
        "\u0000\ufffd,,,:;",
        f"{uuid(0)},NVIDIA,99999999999999999999,1:;",
        "," * 500,
        "GPU-x,NVIDIA,-1,-1:;" * 20,
    )
    plain = [Box(cards=0)]
    wanting = [Box(memory_mib=1)]
    for n in range(1024):  # each text beside each other one
        notes = {
            nvidia_names.POD_ALLOCATED: texts[n % 8],
            nvidia_names.POD_TO_ALLOCATE: texts[n // 8 % 8],
            "hami.io/dcu-devices-allocated": texts[n // 64 % 8],
        }
        boxes = wanting if n % 10 == 0 else plain
        phase = ("Running", "Succeeded", "Failed", "Pending")[n % 4]
        node.api.create("pods", pod_body(f"x{n}", boxes, notes, phase=phase))
    node.start()
    node.serve_one("p", 1, 5000)
