"""A real extender before a simulated API server, and what no test may leave behind."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_http.calls import (
    BIG_MIB,
    NODES,
    TIME_LIMIT_S,
    create,
    exchange,
    pods_of,
    serve_one,
)
from tests.integration.extender_rig import ExtenderRig


@pytest.fixture(scope="package")
def rig() -> Iterator[ExtenderRig]:
    """Four nodes of four cards, a pod that fits (`small`) and one that never will (`big`)."""
    rig = ExtenderRig().start()
    try:
        for name in NODES:
            rig.write_node(name, has_identity=True)
        create(rig, "small", Box(memory_mib=1000))
        create(rig, "big", Box(memory_mib=BIG_MIB))
        rig.settle()
        yield rig
    finally:
        rig.close()


@pytest.fixture(autouse=True)
def unharmed(rig: ExtenderRig, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test: nothing is charged, no pod is changed, and good calls are served."""
    before = pods_of(rig)
    yield
    eventually(lambda: rig.state.charges() == {}, TIME_LIMIT_S)
    eventually(lambda: pods_of(rig) == before, TIME_LIMIT_S)
    serve_one(rig, "good")
    rig.settle()
    assert rig.drift() == []
    assert exchange(rig, "GET", "/healthz") == (200, "ok\n")
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record for record in records if record.levelno >= logging.ERROR] == []
