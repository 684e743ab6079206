"""The next page of a list, fetched while the present one is decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hami_node.errors import KubeError


class PageAhead:
    """One request in a thread of its own; who no longer wants the page leaves it to end by itself.

    The request has to be bounded in time.
    """

    def __init__(self, fetch: Callable[[], bytes]) -> None:
        """Begin."""
        self._fetch = fetch
        self._found: bytes | KubeError = KubeError("the page was not fetched")
        self._thread = threading.Thread(target=self._run, name="list-page", daemon=True)
        self._thread.start()

    def body(self) -> bytes:
        """Wait for the page.

        Raises:
            KubeError: it could not be fetched.
        """
        self._thread.join()
        if isinstance(self._found, KubeError):
            raise self._found
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._fetch()
        except KubeError as error:
            self._found = error
