"""A small client of the API server: JSON in, JSON out, as any user."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, Self

import httpx

from tests.e2e.parts import API_URL

Json = dict[str, Any]
AGENT: Final = "hami-node-e2e"
_MERGE: Final = "application/merge-patch+json"


class ApiError(Exception):
    """The API server answered with an error; `message` is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


class Api:
    """One user at the API server; may be used from several threads."""

    def __init__(self, ca_file: Path, token: str) -> None:
        self._client = httpx.Client(
            base_url=API_URL,
            verify=ssl.create_default_context(cafile=str(ca_file)),
            headers={"Authorization": f"Bearer {token}", "User-Agent": AGENT},
            timeout=60,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def read(self, path: str, **query: str) -> Json:
        """GET."""
        answer: Json = self._call("GET", path, query=query).json()
        return answer

    def text(self, path: str, **query: str) -> str:
        """GET of something that is not JSON, such as a log."""
        return self._call("GET", path, query=query).text

    def create(self, path: str, body: Json, *, is_dry_run: bool = False) -> Json:
        """POST; `is_dry_run`: every webhook is asked, and nothing is stored."""
        query = {"dryRun": "All"} if is_dry_run else None
        answer: Json = self._call("POST", path, body, query=query).json()
        return answer

    def replace(self, path: str, body: Json) -> Json:
        """PUT."""
        answer: Json = self._call("PUT", path, body).json()
        return answer

    def patch(self, path: str, body: Json) -> Json:
        """PATCH by merging; None removes a key."""
        answer: Json = self._call("PATCH", path, body, content_type=_MERGE).json()
        return answer

    def delete(self, path: str, grace_s: int | None = None) -> None:
        """DELETE; gone already is as good."""
        options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        try:
            self._call("DELETE", path, options)
        except ApiError as error:
            if error.status != 404:
                raise

    def exists(self, path: str) -> bool:
        """False on 404."""
        try:
            self.read(path)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: dict[str, str] | None = None,
        content_type: str = "application/json",
    ) -> httpx.Response:
        answer = self._client.request(
            method, path, json=body, params=query, headers={"Content-Type": content_type}
        )
        if answer.is_error:
            is_status = answer.headers.get("Content-Type", "").startswith("application/json")
            message = answer.json().get("message", "") if is_status else answer.text
            raise ApiError(answer.status_code, f"{method} {path}: {message}")
        return answer
