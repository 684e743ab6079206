"""A driver that can't limit memory, on a node whose settings leave that to the driver."""

from __future__ import annotations

import re
from pathlib import Path

from tests.bench.daemon_rig import running_daemon
from tests.fakes.waiting import eventually
from tests.faults.process import listed, page, port_of
from tests.nvml_stub.build import build
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows

LIMIT_S = 20.0


@shows(
    "D13",
    fault="the driver of a node is too old to limit memory, which the settings leave to it",
    happens="readyz and every refusal name what is missing, and the setting that does without",
)
def test_old_driver_is_named_where_people_look(tmp_path: Path) -> None:
    library = build(tmp_path, "WITHOUT_MEMORY_LIMITS")
    with running_daemon(
        "--memory-limit-by=driver", env={"LD_LIBRARY_PATH": str(library.parent)}
    ) as rig:
        eventually(lambda: listed(rig), LIMIT_S)
        rig.create_pod("a", UUIDS[0], 1000)
        missing_function = "no nvmlDeviceSetMemoryLimits_v1: install driver 615"
        eventually(lambda: missing_function in page(port_of(rig), "/readyz")[1], LIMIT_S)
        for text in (rig.admit("a"), page(port_of(rig), "/readyz")[1]):
            assert missing_function in text
            assert "--memory-limit-by limiter" in text
        missing = re.compile(r"^hami_node_limiter_missing\S* 1\.0$", re.MULTILINE)
        eventually(lambda: missing.search(page(port_of(rig))[1]), LIMIT_S)
