"""What limits containers on a node, whatever the vendor: its delivery, and which is served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterOrder:
    """What is to be installed.

    Attributes:
        source: the folder that it is taken from; None for what others left on the node.
        hook_path: the folder on the node whose files containers get.
        pins: the sha256 that it has to have, one for each kind of processor; () for any.
        version: what people call it; "" for what its name says.
    """

    source: Path | None
    hook_path: Path
    pins: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterState:
    """What containers that start now are limited by.

    Attributes:
        version: "" where nothing can be served.
        sha256: of the library.
        is_missing: files are missing or unusable.
        is_defective: the version is known to leave some programs unlimited.
        unready: why this node may serve nobody, by the settings; "" while it may.
    """

    version: str = ""
    sha256: str = ""
    is_missing: bool = False
    is_defective: bool = False
    unready: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterInstalled:
    """What is on the node now.

    Attributes:
        is_new: False where the same was there already.
        hint: what else people should do; "" for nothing.
    """

    path: Path
    version: str
    sha256: str
    is_new: bool
    hint: str = ""
