"""Settings that change while the daemon runs: what takes effect, in the real process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from hami_node.config.settings import FIXED, settings_of
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS
from tests.fakes.processes import started
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

LIVE = {
    # read wherever they are used
    *("stall_limit_s", "compat", "report_interval_s", "gpu_scheduler_policy"),
    *("usage_interval_s", "usage_metrics", "legacy_metrics"),
    *("default_count", "default_memory_mib", "default_cores", "memory_factor"),
    *("limiter", "limiter_sha256", "device_list_strategy", "core_policy", "disable_core_limit"),
    "memory_limit_by",
    *("lib_cuda_log_level", "register_format", "handshake", "overwrite_env", "runtime_class_name"),
    *("visible_devices_form", "pass_device_specs", "cdi_annotation_prefix"),
    *("nvidia_cdi_hook_path", "gds_enabled", "mofed_enabled", "gdrcopy_enabled"),
    # applied by `Daemon.reload`: log, backend, offered cards, registration
    *("log_format", "log_level", "scan_interval_s", "xids_ignored", "preconfigured_memory_mib"),
    *("split_count", "memory_scaling", "core_scaling", "operating_mode"),
    *("filter_uuids", "filter_indexes", "numa_topology", "preferred_allocation"),
    *("known_mig_geometries", "mig_profile_allowlist"),
}


class Process:
    """`hami-node run` with a configuration file and a log."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.log_file = rig, rig.root / "log"
        self.configure("")
        flags = {**rig.flags(), "config-file": rig.config_path}
        self.process = started(self.log_file, "run", flags)

    def configure(self, lines: str) -> None:
        """Replace the file at once, as kubelet does."""
        new = self.rig.config_path.with_suffix(".new")
        new.write_text("hami-node:\n  stall-limit-s: 60\n" + lines, encoding="utf-8")
        new.replace(self.rig.config_path)

    def logged(self) -> list[str]:
        """Its lines."""
        return self.log_file.read_text(encoding="utf-8").splitlines()

    def wait_for(self, words: str) -> None:
        """Until a line has these words."""
        eventually(lambda: any(words in line for line in self.logged()), LIMIT_S)

    def heartbeats(self) -> int:
        """Patches of its node object."""
        return len(self.rig.api.requests(verb="patch", resource="nodes"))


@pytest.fixture
def daemon() -> Iterator[Process]:
    rig = Rig()
    process = Process(rig)
    try:
        rig.wait_registered()
        process.wait_for("event=serving")
        eventually(lambda: process.heartbeats() > 0, LIMIT_S)
        yield process
    finally:
        process.process.kill()
        process.process.wait(LIMIT_S)
        rig.close()


@shows(
    "N12",
    fault="report-interval-s is changed in the file",
    happens="the wait for the old interval ends; the node is reported by the new one",
)
def test_report_interval_takes_effect(daemon: Process) -> None:
    daemon.configure("  report-interval-s: 0.05\n")
    before = daemon.heartbeats()
    eventually(lambda: daemon.heartbeats() > before + 10, LIMIT_S)


@shows(
    "N12",
    fault="log-level and log-format are changed in the file, and back",
    happens="the next lines are written so",
)
def test_form_and_level_of_the_log_take_effect(daemon: Process) -> None:
    daemon.configure("  log-level: debug\n  log-format: json\n")
    eventually(
        lambda: any(
            line.startswith("{") and json.loads(line)["level"] == "debug"
            for line in daemon.logged()
        ),
        LIMIT_S,
    )
    daemon.configure("  log-level: info\n")
    eventually(lambda: "event=config_applied" in daemon.logged()[-1], LIMIT_S)


@shows(
    "N12",
    fault="fifty times SIGHUP and a changed file at once",
    happens="what the file says last is in force",
)
def test_last_content_wins_under_reloads_at_once(daemon: Process) -> None:
    for count in range(1, 51):
        daemon.configure(f"nvidia:\n  deviceSplitCount: {count % 7 + 1}\n")
        daemon.process.send_signal(signal.SIGHUP)
    daemon.configure("nvidia:\n  deviceSplitCount: 9\n")
    daemon.rig.wait_registered(4 * 9)
    assert daemon.process.poll() is None


@shows(
    "N12",
    fault="device-config.yaml has a number of 5,000 digits, or aliases that stand for billions",
    happens="config_refused names the line, and the settings stay; check-config says the same",
)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nvidia:\n  deviceSplitCount: 0x" + "f" * 5000 + "\n", id="number"),
        pytest.param("nvidia: &a\n  knownMigGeometries: [*a, *a]\n", id="aliases"),
    ],
)
def test_file_that_is_too_much_is_refused_and_the_settings_stay(daemon: Process, text: str) -> None:
    daemon.configure(text)
    daemon.wait_for("event=config_refused")
    daemon.configure("nvidia:\n  deviceSplitCount: 3\n")
    daemon.rig.wait_registered(4 * 3)
    assert daemon.process.poll() is None


def test_every_setting_is_live_or_known_to_need_a_restart() -> None:
    """A new setting has to be put into one of the two, and tried."""
    fixed = {*FIXED, *(name for block in SETTINGS_BLOCKS for name in block.fixed)}
    assert not LIVE & fixed
    assert set(settings_of(Role.DAEMON, SETTINGS_BLOCKS)) == LIVE | fixed
