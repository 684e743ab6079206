"""The ledger: what this node has granted, written down before each answer leaves.

Annotations are claims that others may edit; the ledger is the record. Its entries are decoded once,
when they are read; how a vendor writes its grants is what `GrantTexts` knows.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, Self

import msgspec

from hami_node.clock import Deadline
from hami_node.errors import PodTooLarge, RecordError, WireError
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Pod
from hami_node.record.file import Loaded, RecordFile, State
from hami_node.record.writer import RecordWriter

log = logging.getLogger(__name__)

NAME: Final = "grants"
MAX_POD_BYTES: Final = 512 * 1024
"""The most that one pod may have on record: more than 300 containers. What pods have together is
bounded by how many kubelet runs."""
DISK_TIMEOUT_S: Final = 3.0
"""How long a write may take, of the 10 s that kubelet waits."""

Key = tuple[str, str, str]
"""A pod's uid, a container's name, a vendor's word."""


class Source(StrEnum):
    """How an entry came about."""

    SERVED = "served"
    """Written before our own answer left."""
    REBUILT = "rebuilt"
    """Read from the pod after the record was lost."""
    ADOPTED = "adopted"
    """Read from a pod that somebody else's plugin has served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeNote:
    """The last resize of a container while it ran.

    Attributes:
        id: of the decision about it.
        before: what the container held before, while the resize is under way; () once it is over.
        refusal: why it came to nothing, for people; "" if it did not.
    """

    id: str
    before: ContainerGrants = ()
    refusal: str = ""

    @property
    def is_open(self) -> bool:
        """True while it is under way."""
        return bool(self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one container was granted of one vendor's cards.

    Attributes:
        pod_uid, namespace, pod, container: whose it is; `container` is "" where that is unclear.
        kind: the container's role.
        vendor: the word of the vendor, as in grants.
        resource: the name that kubelet had for the cards when they were granted.
        device_ids: kubelet's, sorted; () where they are unknown.
        grants: what it was granted; () where another plugin serves the cards.
        problem: why the grants on record can't be read, for people; "" where they can. They stay
            on record as they are.
        lender: the container whose reservation was used; mostly its own name.
        answer: the response to kubelet as text; "" where it is unknown.
        is_aligned: kubelet knew the cards' NUMA nodes when it admitted the container.
        limiter: the version of the limiter that the answer mounts; "" where it is unknown.
        time_s: when it was written, seconds since the epoch. For people: nothing depends on it,
            because clocks go back.
        resize: the last resize while it ran; None for none. While one is under way, `grants` holds
            the larger amounts.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    vendor: str
    resource: str
    grants: ContainerGrants
    lender: str
    kind: ContainerKind = ContainerKind.APP
    device_ids: tuple[str, ...] = ()
    problem: str = ""
    answer: str = ""
    limiter: str = ""
    is_aligned: bool = False
    time_s: float = 0.0
    source: Source = Source.SERVED
    resize: ResizeNote | None = None

    @classmethod
    def of(
        cls,
        pod: Pod,
        container: str,
        *,
        vendor: str,
        resource: str,
        device_ids: Iterable[str],
        grants: ContainerGrants = (),
        lender: str | None = None,
        source: Source = Source.SERVED,
    ) -> Self:
        """The entry of a container of this pod, which uses its own reservation by default."""
        kinds = {item.name: item.kind for item in pod.containers}
        return cls(
            pod_uid=pod.uid,
            namespace=pod.namespace,
            pod=pod.name,
            container=container,
            kind=kinds.get(container, ContainerKind.APP),
            vendor=vendor,
            resource=resource,
            device_ids=tuple(sorted(set(device_ids))),
            grants=grants,
            lender=container if lender is None else lender,
            source=source,
        )

    @property
    def key(self) -> Key:
        """A container has one entry for each vendor."""
        return self.pod_uid, self.container, self.vendor

    @property
    def pod_key(self) -> str:
        """`namespace/pod`, for people."""
        return f"{self.namespace}/{self.pod}"

    @property
    def name(self) -> str:
        """`namespace/pod/container`, for messages."""
        return f"{self.namespace}/{self.pod}/{self.container}"


@dataclass(frozen=True, slots=True)
class GrantCodec:
    """How each vendor's grants are written: as one slot of an annotation, and their parts beside.

    Attributes:
        encode: the two texts of a vendor's grants, by its word.
        decode: the grants of a vendor's two texts; raises WireError.
    """

    encode: Callable[[str, ContainerGrants], tuple[str, str]]
    decode: Callable[[str, str, str], ContainerGrants]


class _Note(msgspec.Struct, kw_only=True):
    id: str
    before: str = ""
    refusal: str = ""


class _Row(msgspec.Struct, kw_only=True):
    """An entry in the file, in this order: version 1."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    vendor: str
    resource: str
    grants: str
    lender: str
    kind: str = ContainerKind.APP
    device_ids: tuple[str, ...] = ()
    parts: str = ""
    answer: str = ""
    limiter: str = ""
    is_aligned: bool = False
    time_s: float = 0.0
    source: Source = Source.SERVED
    resize: _Note | None = None


class _Payload(msgspec.Struct):
    entries: tuple[msgspec.Raw, ...]


_AS_WRITTEN: Final = tuple(
    name for name in _Row.__struct_fields__ if name not in {"grants", "parts", "kind", "resize"}
)
_PAYLOADS: Final = msgspec.json.Decoder(_Payload)
_ROWS: Final = msgspec.json.Decoder(_Row)
_ENCODER: Final = msgspec.json.Encoder()


class Ledger:
    """The entries of this node, in memory as in the file. Thread-safe; reading never waits."""

    def __init__(
        self,
        file: RecordFile,
        codec: GrantCodec,
        *,
        disk_timeout_s: float = DISK_TIMEOUT_S,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the entries in `file`; nothing is read yet. `on_failure`: it can't be written."""
        self._codec, self._on_failure, self._disk_timeout_s = codec, on_failure, disk_timeout_s
        self._disk = RecordWriter(file, is_synced_later=True)
        self._lock = threading.Lock()
        # Replaced as a whole by each change, so that readers need no lock.
        self._entries: Mapping[Key, Entry] = {}
        self._encoded: dict[Key, tuple[Entry, bytes]] = {}
        """Each entry as it stands in the file: what was read is written again to the byte."""
        self.was_lost = False
        """What is adopted now was on a record that could not be read."""

    # -- reading -----------------------------------------------------------------------------------
    def load(self) -> Loaded:
        """Read the file, in place of what is in memory; what was found, without the payload.

        Raises:
            RecordError: its disk does not answer.
        """
        with self._lock:
            loaded = self._disk.load()
            found = replace(loaded, payload=None)
            read: list[tuple[Entry, bytes]] = []
            if loaded.payload is not None:
                try:
                    rows = _PAYLOADS.decode(loaded.payload).entries
                    read = [(self._entry(_ROWS.decode(row)), bytes(row)) for row in rows]
                except msgspec.MsgspecError as e:
                    problem = f"the record is whole, but not understood: {e}"
                    found = Loaded(state=State.DAMAGED, problem=problem)
            self._entries = {entry.key: entry for entry, _ in read}
            self._encoded = {entry.key: (entry, text) for entry, text in read}
            self.was_lost = found.is_lost
            return found

    def entries(self) -> tuple[Entry, ...]:
        """All, in the order in which they were written."""
        return tuple(self._entries.values())

    def of_pod(self, uid: str) -> tuple[Entry, ...]:
        """Those of one pod."""
        return tuple([entry for entry in self._entries.values() if entry.pod_uid == uid])

    def find(self, uid: str, container: str, vendor: str) -> Entry | None:
        """The container's entry for cards of the vendor with that word."""
        return self._entries.get((uid, container, vendor))

    # -- writing -----------------------------------------------------------------------------------
    def put(self, entry: Entry, deadline: Deadline | None = None) -> None:
        """Write an entry, in place of the container's earlier one. On the file when it returns.

        Raises:
            RecordError: it can't be written by the deadline; the ledger is as it was before.
            PodTooLarge: its pod would have more on record than a pod may.
        """
        self.put_all((entry,), deadline)

    def put_all(self, added: Sequence[Entry], deadline: Deadline | None = None) -> None:
        """Write several entries at once: all of them are on the file, or none.

        Raises:
            RecordError: as above.
        """
        with self._turn(deadline):
            is_known = all(self._entries.get(entry.key) == entry for entry in added)
            if is_known and not self._disk.is_late:
                return
            entries = {**self._entries, **{entry.key: entry for entry in added}}
            for entry in added:
                if self._pod_bytes(entry.pod_uid, entries) > MAX_POD_BYTES:
                    raise PodTooLarge(
                        f"its pod would have more than {MAX_POD_BYTES} bytes in the record of "
                        "grants: give it fewer containers with cards"
                    )
            self._save(entries, deadline)
            self._entries = entries

    def adopt(self, entries: Iterable[Entry]) -> tuple[Entry, ...]:
        """Add what was read from pods, beside what is there; kept even if it can't be written.

        Returns what was added: nothing that would give a pod more than it may have.
        """
        with self._lock:
            known = dict(self._entries)
            added: dict[Key, Entry] = {}
            for entry in entries:
                if known.setdefault(entry.key, entry) is not entry:
                    continue
                if self._pod_bytes(entry.pod_uid, known) > MAX_POD_BYTES:
                    del known[entry.key]
                else:
                    added[entry.key] = entry
            if added:
                self._change({**added, **self._entries})
            return tuple(added.values())

    def remove(self, uid: str, container: str, vendor: str) -> None:
        """Take an entry back: the container does not get the answer. Never raises."""
        with self._lock:
            left = dict(self._entries)
            if left.pop((uid, container, vendor), None) is not None:
                self._change(left)

    def free(self, uids: Collection[str]) -> tuple[Entry, ...]:
        """Drop the entries of pods that have ended, and return them. Never raises."""
        with self._lock:
            freed = tuple(entry for entry in self._entries.values() if entry.pod_uid in uids)
            if freed:
                gone = {entry.key for entry in freed}
                self._change({key: kept for key, kept in self._entries.items() if key not in gone})
            return freed

    @contextmanager
    def _turn(self, deadline: Deadline | None) -> Iterator[None]:
        """Hold the lock, behind others that wait for the disk."""
        wait_s = -1 if deadline is None else deadline.left_s()
        if not self._lock.acquire(timeout=wait_s):
            raise RecordError("the record of grants is still being written: check the disk")
        try:
            yield
        finally:
            self._lock.release()

    def _change(self, entries: Mapping[Key, Entry]) -> None:
        """What is known counts, written or not: what can't be written is tried again.

        Nobody waits here for a disk that is known to hang: a call of kubelet's may be waiting.
        """
        self._entries = entries
        text, self._encoded = self._encode(entries)
        if not self._disk.put(text, self._disk_timeout_s):
            self._on_failure()

    def _save(self, entries: Mapping[Key, Entry], deadline: Deadline | None) -> None:
        left_s = self._disk_timeout_s if deadline is None else deadline.left_s()
        text, encoded = self._encode(entries)
        try:
            self._disk.save(text, min(left_s, self._disk_timeout_s))
        except RecordError:
            self._on_failure()
            self._disk.put(self._encode(self._entries)[0])  # what was refused may be written yet
            raise
        self._encoded = encoded

    def _encode(self, entries: Mapping[Key, Entry]) -> tuple[bytes, dict[Key, tuple[Entry, bytes]]]:
        """The payload, and its entries: each is encoded once, for all are written at every change.

        Before an entry is known to be written, the one before keeps its bytes.
        """
        encoded = {key: (entry, self._text(entry)) for key, entry in entries.items()}
        return b'{"entries":[%b]}' % b",".join(text for _, text in encoded.values()), encoded

    def _text(self, entry: Entry) -> bytes:
        known, text = self._encoded.get(entry.key, (None, b""))
        return text if known is entry else _ENCODER.encode(self._row(entry))

    def _pod_bytes(self, uid: str, entries: Mapping[Key, Entry]) -> int:
        return sum(len(self._text(entry)) for entry in entries.values() if entry.pod_uid == uid)

    # -- the form in the file ----------------------------------------------------------------------
    def _row(self, entry: Entry) -> _Row:
        note, written = entry.resize, None
        if note is not None:
            before = self._codec.encode(entry.vendor, note.before)[0] if note.is_open else ""
            written = _Note(id=note.id, before=before, refusal=note.refusal)
        grants, parts = self._codec.encode(entry.vendor, entry.grants)
        return _Row(
            **{name: getattr(entry, name) for name in _AS_WRITTEN},
            grants=grants,
            parts=parts,
            kind=entry.kind,
            resize=written,
        )

    def _entry(self, row: _Row) -> Entry:
        """Grants that can't be read are none, and are said once."""
        grants, before = ContainerGrants(), ContainerGrants()
        note, problem = row.resize, ""
        try:
            grants = self._codec.decode(row.vendor, row.grants, row.parts)
            if note is not None and note.before:
                before = self._codec.decode(row.vendor, note.before, "")
        except WireError as e:
            name, problem = f"{row.namespace}/{row.pod}/{row.container}", str(e)
            log.error("entry_unreadable", extra=kv(container=name, error=problem))  # noqa: TRY400
        return Entry(
            **{name: getattr(row, name) for name in _AS_WRITTEN},
            grants=grants,
            problem=problem,
            kind=_kind(row.kind),
            resize=None
            if note is None
            else ResizeNote(id=note.id, before=before, refusal=note.refusal),
        )


def _kind(word: str) -> ContainerKind:
    try:
        return ContainerKind(word)
    except ValueError:
        return ContainerKind.APP
