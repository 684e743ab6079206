"""What no test may leave behind for those that run after it in the same process."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


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
