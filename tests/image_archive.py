"""An image as an OCI archive: its digest, its platforms, and the files of its layers."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ImageArchive:
    """What daemonset/build-image writes to ARCHIVE."""

    path: Path

    @property
    def digest(self) -> str:
        """What manifests name: of the list of platforms, or of the only image."""
        (only,) = self._json("index.json")["manifests"]
        return str(only["digest"])

    def read(self, digest: str) -> Any:
        """A JSON document of it."""
        return self._json(_blob(digest))

    def images(self) -> dict[str, Any]:
        """The manifest of each architecture."""
        top = self.read(self.digest)
        if "manifests" in top:
            found = [self.read(item["digest"]) for item in top["manifests"]]
        else:
            found = [top]
        return {self.read(item["config"]["digest"])["architecture"]: item for item in found}

    def files(
        self, layer: Any, is_wanted: Callable[[tarfile.TarInfo], bool]
    ) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
        """The wanted members of a layer with their bytes."""
        with (
            tarfile.open(self.path) as archive,
            tarfile.open(fileobj=archive.extractfile(_blob(layer["digest"])), mode="r|*") as files,
        ):
            for member in files:
                if is_wanted(member):
                    file = files.extractfile(member) if member.isfile() else None
                    yield member, b"" if file is None else file.read()

    def _json(self, name: str) -> Any:
        with tarfile.open(self.path) as archive:
            file = archive.extractfile(name)
            assert file is not None
            return json.load(file)


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")
