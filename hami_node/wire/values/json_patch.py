"""JSON pointers (RFC 6901), as the steps of a JSON patch name what they change."""

from __future__ import annotations


def pointer(*steps: str) -> str:
    """The JSON pointer that takes these steps; each may hold any character."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def annotation_pointer(key: str) -> str:
    """The JSON pointer to an annotation."""
    return pointer("metadata", "annotations", key)
