"""The node lock's value: `<RFC 3339 time>,<namespace>,<pod>`; a bare time up to HAMi 2.3."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.wire.times import format_rfc3339, parse_time


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOwner:
    """Who holds a node's lock and since when.

    Attributes:
        time_s: Unix seconds; None when it can't be read (count the timeout from first sight).
        namespace: of the pod; "" when the value names no pod.
        name: of the pod; "" when the value names no pod.
    """

    time_s: float | None
    namespace: str = ""
    name: str = ""

    def is_pod(self, namespace: str, name: str) -> bool:
        """True when the lock names exactly this pod; a lock without an owner names none."""
        return bool(self.name) and (self.namespace, self.name) == (namespace, name)


def decode_lock(text: str) -> LockOwner:
    """Read a lock value; never fails: a value of neither form counts as held until it times out."""
    fields = text.split(",")
    time_s = parse_time(fields[0])
    if len(fields) == 3 and time_s is not None and fields[1] and fields[2]:
        return LockOwner(time_s=time_s, namespace=fields[1], name=fields[2])
    return LockOwner(time_s=time_s)


def encode_lock(unix_s: float, namespace: str, name: str) -> str:
    """The value that takes the lock for a pod."""
    return f"{format_rfc3339(unix_s)},{namespace},{name}"
