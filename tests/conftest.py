"""What no test may leave behind for those that run after it in the same process."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.nvml_stub.build import NO_COMPILER, build
from tests.nvml_stub.control import Stub

# How long an example takes says something about the machine, and nothing about the product.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# pytest-xdist gives its processes a width, which tables would follow.
os.environ.pop("COLUMNS", None)

# A job in the background ignores Ctrl-C, and its programs would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """That there is no compiler is said in one line, not in one for each test."""
    report = yield
    if isinstance(report.longrepr, tuple) and NO_COMPILER in report.longrepr[2]:
        report.longrepr = (__file__, 1, NO_COMPILER)
    return report


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Stub:
    """The stand-in for the driver's library: one a process, for pynvml never loads another."""
    folder = tmp_path_factory.mktemp("nvml")
    library = build(folder)
    stub = Stub(library, folder / "cards")
    stub.show()
    os.environ["NVML_STUB_FILE"] = str(stub.file)  # the stand-in reads it at every call
    return stub


@pytest.fixture(autouse=True)
def logging_restored() -> Iterator[None]:
    """Commands set up the logging of their whole process; the next test starts without that."""
    root, product = logging.getLogger(), logging.getLogger("hami_node")
    kept = (root.handlers[:], root.level, product.level)
    yield
    root.handlers[:] = kept[0]
    root.setLevel(kept[1])
    product.setLevel(kept[2])


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """An empty folder whose path leaves room for sockets, whose paths are limited to 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hn-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)
