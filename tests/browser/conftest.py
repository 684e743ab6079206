"""A real Chromium before the page: `make e2e` has it; without it everything here is skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.browser.screen import Screen

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_FOLDER: Final = Path(__file__).parent
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They are part of `make e2e`."""
    for item in items:
        if _FOLDER in item.path.parents:
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    playwright: Any = pytest.importorskip(
        "playwright.sync_api", reason="needs pip install '.[browser]'"
    )
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        # as root there is no sandbox; the page is our own
        made = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def screen(browser: Browser) -> Iterator[Screen]:
    """A window; at its end nothing may have gone wrong in it."""
    made = Screen(browser)
    yield made
    made.check()
    made.close()
