"""The extender's process while its configuration changes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.api_server import FaultyApiServer
from tests.fakes.waiting import eventually
from tests.integration.extender_process import LIMIT_S, Replica


class Configured(Replica):
    """A process with a configuration that changes."""

    def __init__(self, folder: Path, api: FaultyApiServer) -> None:
        self.config = folder / "device-config.yaml"
        self.write("nvidia:\n  deviceSplitCount: 10\n")
        super().__init__(folder / "replica", api, f"--config-file={self.config}")

    def write(self, text: str) -> None:
        """Replace the file at once, as kubelet does."""
        new = self.config.with_suffix(".new")
        new.write_text(text)
        new.rename(self.config)

    def count(self, event: str) -> int:
        """How often that event stands in the log."""
        return self.log().count(f" event={event} ")

    def wait_for(self, event: str, times: int = 1) -> None:
        """Until that event stands in the log so often."""
        eventually(lambda: self.count(event) >= times, LIMIT_S)
        assert self.count(event) == times, self.log()


@pytest.fixture
def extender(tmp_path: Path) -> Iterator[Configured]:
    with FaultyApiServer() as api:
        extender = Configured(tmp_path, api)
        try:
            extender.wait_for("synced")
            yield extender
        finally:
            extender.end(at_once=True)


def test_configuration_changed_the_same_process_starts_anew_and_can_be_ended(
    extender: Configured,
) -> None:
    for times, memory_mib in ((2, 1000), (3, 2000)):
        extender.write(f"nvidia:\n  defaultMemory: {memory_mib}\n")
        extender.wait_for("synced", times)
        assert extender.count("stopped") == times - 1
    assert extender.process.poll() is None
    extender.process.send_signal(signal.SIGTERM)
    assert extender.process.wait(LIMIT_S) == 0


def test_settings_of_daemons_changed_they_are_no_reason_to_start_anew(extender: Configured) -> None:
    extender.write("nvidia:\n  deviceSplitCount: 20\n  defaultMemory: 1000\n")
    extender.wait_for("config_changed")
    assert " changed=default_memory_mib " in extender.log()


def test_configuration_wrong_the_extender_goes_on(extender: Configured) -> None:
    extender.write("nvidia:\n  defaultMemory: much\n")
    extender.wait_for("config_refused")
    assert extender.process.poll() is None
    assert extender.count("config_changed") == 0
