"""A kubelet with another root: the plugins' folder stays, the pod-resources socket is elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.fakes.waiting import eventually
from tests.integration.rig import Rig
from tests.reliability import shows


@shows(
    "D11",
    fault="kubelet runs with another --root-dir: it registers us, its pod-resources socket moved",
    happens="log and refusals name the setting, and the roots that distributions use",
)
def test_moved_socket_is_explained_where_people_look(
    node: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = tmp_path / "pod-resources" / "kubelet.sock"
    with caplog.at_level(logging.WARNING):
        node.start(pod_resources_socket=str(elsewhere))
        for name in ("a", "b"):
            node.place_one(name)
        refusal = node.admit("a").refusal
    logged = " ".join(str(vars(record)) for record in caplog.records)
    for text in (refusal, logged):
        for part in (f"{elsewhere} is not there", "--pod-resources-socket", "/var/lib/k0s/kubelet"):
            assert part in text
    eventually(lambda: "hami-node.io/allocate-identity" not in node.notes)
