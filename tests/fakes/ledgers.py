"""Ledgers without a disk, and entries for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, ContainerKind
from hami_node.node.holdings.recorded import grant_codec
from hami_node.record.file import Loaded, RecordFile, State
from hami_node.record.ledger import NAME, Entry, Ledger
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.acme.protocol import acme_protocol
from tests.fakes.cards import uuid

GRANTS = f"{uuid(0)},NVIDIA,1000,0:;"
CODEC = grant_codec([nvidia_protocol(), acme_protocol()])


class MemoryFile(RecordFile):
    """A record file that is a variable; `error` is raised by the next writes."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        super().__init__(Path("/nowhere"), "grants")
        self.loaded = loaded or Loaded(state=State.MISSING, problem="it is missing")
        self.error: Exception | None = None
        self.saves = 0

    def load(self) -> Loaded:
        return self.loaded

    def save(self, payload: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.saves += 1
        self.loaded = Loaded(state=State.WHOLE, payload=payload)

    def sync(self) -> None:
        """Nothing to do."""


def a_ledger(*entries: Entry, file: RecordFile | None = None) -> Ledger:
    """A ledger with these entries."""
    ledger = Ledger(file or MemoryFile(), CODEC)
    ledger.adopt(entries)
    return ledger


def ledger_in(folder: Path) -> Ledger:
    """The ledger of a daemon that starts, read from its folder."""
    ledger = Ledger(RecordFile(folder, NAME), CODEC)
    ledger.load()
    return ledger


def an_entry(
    pod: str = "p",
    container: str = "main",
    *,
    grants: str | ContainerGrants = GRANTS,
    parts: str = "",
    **fields: Any,
) -> Entry:
    """1000 MiB of card 0 for a container of a pod in `default`; grants may be as on the file."""
    given: dict[str, Any] = {
        "pod_uid": f"uid-{pod}",
        "namespace": "default",
        "pod": pod,
        "container": container,
        "vendor": "NVIDIA",
        "resource": "nvidia.com/gpu",
        "grants": grants,
        "lender": container,
        "device_ids": (f"{uuid(0)}-0",),
    } | fields
    if isinstance(grants, str):
        try:
            given["grants"] = CODEC.decode(given["vendor"], grants, parts)
        except WireError as e:
            given |= {"grants": (), "problem": str(e)}
    return Entry(**given | {"kind": ContainerKind(given.get("kind", "app"))})


def grants_text(entry: Entry) -> str:
    """Its grants as on the file."""
    return CODEC.encode(entry.vendor, entry.grants)[0]
