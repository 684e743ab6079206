"""Annotations that say otherwise than the ledger are shown, once."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from hami_node.node.report.drift import Drift
from hami_node.record.ledger import Entry
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.ledgers import a_ledger, an_entry
from tests.unit.node.holdings.uses import VENDOR, a_pod


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{uuid(0)},NVIDIA,1000,0:;", 0),
        (f"{uuid(0)},NVIDIA,999,0:;", 1),
        (f"{uuid(1)},NVIDIA,1000,0:;", 1),
        ("", 1),
        ("rubbish,,:", 1),
    ],
    ids=["same", "less", "another-card", "removed", "broken"],
)
def test_look_counts_pods_that_differ(text: str, wanted: int) -> None:
    pod = a_pod()
    edited = replace(pod, annotations={**pod.annotations, nvidia_names.POD_ALLOCATED: text})
    assert Drift(a_ledger(an_entry()), [VENDOR]).look([edited]) == wanted


@pytest.mark.parametrize(
    "entry",
    [
        an_entry(lender="other"),
        an_entry(container=""),
        an_entry("q"),
        an_entry(vendor="acme.example/chip", resource="acme.example/chip", grants=""),
    ],
    ids=["borrowed", "of-no-container", "of-a-pod-that-is-gone", "of-a-card-that-others-serve"],
)
def test_look_leaves_out_what_can_not_be_compared(entry: Entry) -> None:
    assert Drift(a_ledger(entry), [VENDOR]).look([a_pod(memory_mib=7)]) == 0


def test_look_ended_pod_does_not_count() -> None:
    assert Drift(a_ledger(an_entry()), [VENDOR]).look([a_pod(memory_mib=7, phase="Failed")]) == 0


def test_look_logs_the_begin_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    drift = Drift(a_ledger(an_entry()), [VENDOR])
    with caplog.at_level(logging.INFO):
        for memory_mib in (1000, 7, 7, 8, 1000, 1000):
            drift.look([a_pod(memory_mib=memory_mib)])
    assert [record.message for record in caplog.records] == [
        "annotations_differ_from_record",
        "annotations_as_recorded",
    ]
