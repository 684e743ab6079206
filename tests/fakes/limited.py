"""A container that is played: it makes its region file as the limiter does, and obeys it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.regions.region_layouts import DEVICES, LAYOUTS, MAGIC, SLOTS, Layout
from tests.fakes.regions import lay_region

MIB: Final = 1 << 20


class LimitedContainer:
    """One program in it. The file is made by `start`, as by the first program that uses a card."""

    def __init__(self, hook_path: Path, pod_uid: str, container: str = "main") -> None:
        self._hook_path, self._folder = hook_path, f"{pod_uid}_{container}"
        folder = hook_path / "vgpu" / "containers" / self._folder
        self.path = folder / f"{self._folder}.cache"
        self.layout: Layout = next(layout for layout in LAYOUTS if layout.name == "v1.2")

    def start(self, env: Mapping[str, str], uuids: tuple[str, ...], layout: str = "v1.2") -> None:
        """Start a program: a file that is there already wins over the variables."""
        self.layout = next(item for item in LAYOUTS if item.name == layout)
        if self.path.exists() and self.path.stat().st_size and self._number("<i", 0) == MAGIC:
            return
        self._make(env)
        for place, uuid in enumerate(uuids):
            self._put(self.layout.num + 8 + 96 * place, uuid.encode().ljust(96, b"\0"))
        self._put(self.layout.num, struct.pack("<Q", len(uuids)))

    def _make(self, env: Mapping[str, str]) -> None:
        layout = self.layout
        content = bytearray(layout.size + 1)
        struct.pack_into("<i", content, 0, MAGIC)
        if layout.version is not None:
            struct.pack_into("<II", content, 4, *layout.version)
        for place in range(DEVICES):
            memory = env.get(f"{names.ENV_MEMORY_LIMIT}_{place}", "0m").removesuffix("m")
            cores = int(env.get(names.ENV_CORE_LIMIT, "0")) or 100
            struct.pack_into("<Q", content, layout.memory_limit_at(place), int(memory) * MIB)
            struct.pack_into("<Q", content, layout.core_limit_at(place), cores)
        struct.pack_into("<i", content, layout.tail, 1)
        struct.pack_into("<ii", content, layout.switch_at, 1, 2)
        at = layout.slots
        struct.pack_into("<ii", content, at, 7, 7007)
        struct.pack_into("<i", content, at + 8 * layout.status, 1)
        assert layout.slots + SLOTS * layout.slot_bytes == layout.tail
        lay_region(self._hook_path, self._folder, bytes(content))

    # -- as the limiter ----------------------------------------------------------------------------
    def limit_mib(self, place: int = 0) -> int:
        return self._number("<Q", self.layout.memory_limit_at(place)) // MIB

    def cores(self, place: int = 0) -> int:
        return self._number("<Q", self.layout.core_limit_at(place))

    def used_mib(self, place: int = 0) -> int:
        return self._number("<Q", self._total_at(place)) // MIB

    def allocate(self, mib: int, place: int = 0) -> bool:
        """False for out of memory."""
        wanted = self.used_mib(place) + mib
        if 0 < self.limit_mib(place) < wanted:
            return False
        self._put(self._total_at(place), struct.pack("<Q", wanted * MIB))
        self._put(self._monitored_at(place), struct.pack("<Q", wanted * MIB))
        return True

    def free(self, place: int = 0) -> None:
        self._put(self._total_at(place), struct.pack("<Q", 0))
        self._put(self._monitored_at(place), struct.pack("<Q", 0))

    # -- as a container that means harm ------------------------------------------------------------
    def tamper(self, mib: int, place: int = 0) -> None:
        self._put(self.layout.memory_limit_at(place), struct.pack("<Q", mib * MIB))

    def _total_at(self, place: int) -> int:
        layout = self.layout
        return layout.slots + 8 * (layout.used + layout.used_words * place + 4)

    def _monitored_at(self, place: int) -> int:
        return self.layout.slots + 8 * (self.layout.monitored + place)

    def _number(self, form: str, at: int) -> int:
        with self.path.open("rb") as file:
            file.seek(at)
            return int(struct.unpack(form, file.read(struct.calcsize(form)))[0])

    def _put(self, at: int, content: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(content)
