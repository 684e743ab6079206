"""Checksums of files on the node."""

from __future__ import annotations

import hashlib
import os
from typing import Final

from hami_node.vendors.nvidia.node.elf import MAX_BYTES

_PART_BYTES: Final = 1 << 20


def digest_of(handle: int) -> str:
    """The sha256 of an open file; nobody reads much more than a library. Raises OSError."""
    digest, at = hashlib.sha256(), 0
    while at <= MAX_BYTES and (part := os.pread(handle, _PART_BYTES, at)):
        digest.update(part)
        at += len(part)
    return digest.hexdigest()
