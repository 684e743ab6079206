"""The API server's audit log: who asked for what since a moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One finished request. `what` is such as `patch pods/name` or `get nodes/name/status`."""

    user: str
    verb: str
    what: str
    code: int


class Audit:
    """Reads on from where it was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def requests(self, user: str) -> list[Request]:
        """That user's finished requests since this reader was made, watches left out."""
        return [r for r in self._read() if r.user == user and r.verb != "watch"]

    def _read(self) -> Iterator[Request]:
        with self._path.open("rb") as log:
            log.seek(self._offset)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # being written
                yield _decode(json.loads(line))


def _decode(entry: dict[str, dict[str, str]]) -> Request:
    about = entry.get("objectRef", {})
    parts = (about.get("resource"), about.get("name"), about.get("subresource"))
    return Request(
        user=entry["user"]["username"],
        verb=str(entry["verb"]),
        what="/".join(p for p in parts if p),
        code=int(entry.get("responseStatus", {}).get("code", 0)),
    )
