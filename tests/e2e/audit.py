"""The API server's audit log: who asked for what since a moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One finished request. `what` is such as `patch pods/name` or `get nodes/name/status`."""

    user: str
    agent: str
    verb: str
    what: str
    code: int


class Audit:
    """Reads on from where it was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = max(path.stat().st_size, 1)

    def requests(self, user: str) -> list[Request]:
        """That user's finished requests since this reader was made, watches left out."""
        return [r for r in self._read() if r.user == user and r.verb != "watch"]

    def by_agent(self) -> Counter[str]:
        """How many requests about pods each user agent made, watches and Events left out.

        Of nodes only what is no status of kubelet's, and no Lease.
        """
        return Counter(
            _short(r.agent)
            for r in self._read()
            if r.verb not in ("watch", "list") and r.what.startswith(("pods", "nodes"))
        )

    def _read(self) -> Iterator[Request]:
        with self._path.open("rb") as log:
            log.seek(self._offset - 1)
            log.readline()  # the rest of a line that was being written
            for line in log:
                if not line.endswith(b"\n"):
                    return  # being written
                yield _decode(json.loads(line))


def _short(agent: str) -> str:
    """`hami-node/1.2.3 (extender)` without the version; of others the program's name."""
    program, _, rest = agent.partition("/")
    role = rest.partition("(")[2].partition(")")[0]
    return f"{program} ({role})" if program == "hami-node" else program


def _decode(entry: dict[str, Any]) -> Request:
    about = entry.get("objectRef", {})
    parts = (about.get("resource"), about.get("name"), about.get("subresource"))
    return Request(
        user=entry["user"]["username"],
        agent=str(entry.get("userAgent", "")),
        verb=str(entry["verb"]),
        what="/".join(p for p in parts if p),
        code=int(entry.get("responseStatus", {}).get("code", 0)),
    )
