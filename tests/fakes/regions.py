"""Region files as the real limiter wrote them, with what was true at that moment."""

from __future__ import annotations

import base64
import json
import lzma
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

RECORDED: Final = Path(__file__).parents[1] / "fixtures" / "regions.jsonl"


@dataclass(frozen=True, slots=True)
class RecordedRegion:
    """A file of one limiter at one moment; `truth` comes from the programs and the driver."""

    name: str
    truth: dict[str, Any]

    @property
    def content(self) -> bytes:
        """The file, byte for byte."""
        return lzma.decompress(base64.b64decode(self.truth["xz"]))

    @property
    def used_bytes(self) -> dict[int, int]:
        """What living processes use, by card."""
        return {int(card): used for card, used in self.truth["used_by_device"].items()}

    @property
    def living(self) -> list[dict[str, Any]]:
        """The processes that live."""
        return [process for process in self.truth["processes"] if process["alive"]]

    @property
    def running(self) -> frozenset[int]:
        """Their PIDs on the node, as the driver lists them."""
        return frozenset(process["hostpid"] for process in self.living)


@cache
def recorded_regions() -> tuple[RecordedRegion, ...]:
    """All recordings."""
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    truths = [json.loads(line) for line in lines]
    return tuple(RecordedRegion(truth["name"], truth) for truth in truths)


def recorded_region(name: str) -> RecordedRegion:
    """One recording by its name, such as `v1.2-8f3a89c-busy`."""
    return next(region for region in recorded_regions() if region.name == name)


def lay_region(hook_path: Path, folder_name: str, content: bytes) -> Path:
    """Put a region file where a container's is."""
    folder = hook_path / "vgpu" / "containers" / folder_name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{folder_name}.cache"
    path.write_bytes(content)
    path.chmod(0o666)
    return path


def fill_behind_the_end(path: Path, size: int) -> None:
    """Let a file take so many bytes on the disk more, without a change of its length."""
    at = str(path.stat().st_size)
    subprocess.run(("fallocate", "-n", "-o", at, "-l", str(size), str(path)), check=True)


def on_the_disk(path: Path) -> int:
    """What a file takes there, in bytes."""
    return path.stat().st_blocks * 512
