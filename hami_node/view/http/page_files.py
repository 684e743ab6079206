"""The page's own files: read once, told apart by their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """A file as it is served."""

    body: bytes
    content_type: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its path; the page itself is `/`."""
    found: dict[str, PageFile] = {}
    for entry in resources.files("hami_node.view").joinpath("pages").iterdir():
        content_type = _TYPES.get(entry.name[entry.name.rfind(".") :])
        if content_type is None:
            continue
        body = entry.read_bytes()
        path = "/" if entry.name == "index.html" else f"/{entry.name}"
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        found[path] = PageFile(body=body, content_type=content_type, etag=etag)
    return found
