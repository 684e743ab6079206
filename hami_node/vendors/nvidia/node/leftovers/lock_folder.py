"""The folder in which limiters up to 2.8.0 take a lock, one for the whole node.

Every container with such a limiter can write there. Only the limiter's own lock stays, an empty
file: the rest would fill the disk, or be there for the next tenant to read.
"""

from __future__ import annotations

import logging
import os
import stat
from typing import Final

from hami_node.logs import kv
from hami_node.vendors.nvidia.node.handles import open_folder
from hami_node.vendors.nvidia.node.leftovers.trash import STEPS, Trash
from hami_node.vendors.nvidia.node.limiter.hook_folder import LOCK
from hami_node.vendors.on_node.upkeep import BLOCK, FilesFound

log = logging.getLogger(__name__)

SOON_S: Final = 1.0
"""The pause after a pass that removed something: who fills the folder may go on."""
INTERVAL_S: Final = 30.0
MAX_STUCK: Final = 64
_ITSELF: Final = "lock"


def tidy_lock(root: int, containers: int, trash: Trash) -> FilesFound:
    """Remove what is not the limiter's, one bounded step of it. Raises OSError.

    Args:
        root: the folder that has the lock folder; containers can't write it.
        containers: the folder whose `trash` takes what has to be emptied first.
        trash: empties it later.
    """
    removed, used_bytes = 0, 0
    stuck: list[str] = []
    try:
        with open_folder(LOCK, root) as lock, os.scandir(lock) as entries:
            for entry in entries:
                if removed == STEPS:
                    break
                try:
                    status = entry.stat(follow_symlinks=False)
                    if _is_the_limiters(entry.name, status):
                        continue
                    used_bytes += status.st_blocks * BLOCK
                    trash.take(containers, entry.name, lock)
                    removed += 1
                except FileNotFoundError:
                    continue
                except OSError as e:
                    if len(stuck) < MAX_STUCK:
                        stuck.append(f"{LOCK}/{ascii(entry.name)[1:-1]}: {e.strerror or e}")
    except FileNotFoundError:
        return FilesFound()  # no limiter here needs it
    if removed:
        log.warning("lock_folder_tidied", extra=kv(removed=removed))
    next_s = SOON_S if removed else INTERVAL_S
    return FilesFound(used_bytes=used_bytes, stuck=tuple(stuck), next_s=next_s)


def _is_the_limiters(name: str, status: os.stat_result) -> bool:
    return name == _ITSELF and stat.S_ISREG(status.st_mode) and not status.st_blocks
