"""Whether a container's cache file may meet a library: one made by another version must not.

Programs then hang, crash, or run without limits; so such a container gets a new, empty file. Those
that run keep the old one, which they have open.
"""

from __future__ import annotations

import logging
import os
from typing import Final

from hami_node.errors import RegionError
from hami_node.logs import kv
from hami_node.vendors.nvidia.node.handles import open_handle, regular_status
from hami_node.vendors.nvidia.node.limiter.limiter_version import LimiterVersion
from hami_node.vendors.nvidia.regions.region_layouts import HEAD_BYTES, layout_of

log = logging.getLogger(__name__)

UNKNOWN: Final = ""


def remove_misfit(folder: int, name: str, version: LimiterVersion, *, is_its_own: bool) -> None:
    """Remove the cache file if it may have been made by another library. Raises OSError.

    Args:
        folder: the container's, open.
        name: the cache file's.
        version: of the library that the container gets.
        is_its_own: it is the library that this container has got from the beginning.
    """
    status = regular_status(folder, name)
    if status is None or status.st_size == 0 or status.st_nlink != 1:
        return
    made_by, wanted = _layout(folder, name, status.st_size), version.layout
    is_known = UNKNOWN not in (made_by, wanted)
    if made_by == wanted if is_known else is_its_own:
        return
    os.unlink(name, dir_fd=folder)
    log.warning("cache_file_renewed", extra=kv(file=name, made_by=made_by, library=str(version)))


def _layout(folder: int, name: str, size: int) -> str:
    try:
        with open_handle(name, os.O_RDONLY | os.O_NONBLOCK, folder) as handle:
            return layout_of(size, os.pread(handle, HEAD_BYTES, 0)).name
    except (OSError, RegionError):
        return UNKNOWN
