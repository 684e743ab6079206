"""The files that a vendor keeps on a node for containers: what is in use, and what may go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

BLOCK: Final = 512
"""The unit of `st_blocks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInUse:
    """Whose files stay.

    Attributes:
        uids: of pods on this node that have not ended, as everybody who knows of pods has them.
        is_held: asked again for a uid just before its files go: True if there is such a pod now.
        answers: what containers on record were answered, as text with the paths in it.
    """

    uids: frozenset[str]
    is_held: Callable[[str], bool]
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedFile:
    """A file that a container may fill the disk with, for it can't be opened or shortened.

    Attributes:
        folder: the container's, as `answer.Slice` names it.
        why: continues a sentence about the file.
    """

    folder: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesFound:
    """What is on the disk after a pass.

    Attributes:
        folders: containers that have files, those that wait for their removal included.
        used_bytes: what all of it takes on the disk; at least, for a pass reads only so much.
        stuck: what can't be removed, each with the reason.
        closed: what can't be kept small.
        next_s: when the next pass is worth it; None for any time.
    """

    folders: int = 0
    used_bytes: int = 0
    stuck: tuple[str, ...] = ()
    closed: tuple[ClosedFile, ...] = ()
    next_s: float | None = None


class Upkeep(Protocol):
    """Removes what nobody needs any more. One thread calls it."""

    def tidy(self, used: FilesInUse | None, now_s: float) -> FilesFound:
        """One pass of bounded work; without `used` nothing is removed. Never raises OSError.

        Args:
            used: whose files stay; None where that is not known.
            now_s: on a clock that never jumps.
        """
