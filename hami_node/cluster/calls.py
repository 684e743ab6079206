"""One request to the API server as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
PLAIN_JSON: Final = "application/json"

Query = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One request as data.

    `subject` names the object for people: `nodes/gpu-1`. `most_bytes` of an answer are read; None
    for all, which only the API server's own objects are trusted with.
    """

    method: str
    verb: str
    path: str
    resource: str
    subject: str
    query: Query = ()
    body: object = None
    content_type: str = PLAIN_JSON
    accept: str = PLAIN_JSON
    most_bytes: int | None = None

    def __str__(self) -> str:
        """`patch nodes/gpu-1`."""
        return f"{self.verb} {self.subject}"
