"""Check configuration files away from a node: what each says, what a node would make of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.config import Resolved, combine
from hami_node.config_files import (
    DEVICE_CONFIG,
    NO_VALUES,
    NODE_CONFIG,
    FileValues,
    parse_yaml,
    read_bounded,
    read_device_config,
    read_node_config,
)
from hami_node.errors import ConfigError

OTHER: Final = "simulated cards, not checked here"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """One file, or one key of a ConfigMap, with everything it sets; every node's entry counts.

    Attributes:
        source: the file, with the ConfigMap's key behind it.
        kind: `device-config.yaml` or `config.json`, by content; `OTHER` for neither.
        data: its bytes, to read again for one node.
        found: what it says.
    """

    source: str
    kind: str
    data: bytes
    found: FileValues


def check_file(path: Path) -> tuple[CheckedFile, ...]:
    """Read one file: device-config.yaml, config.json, or a ConfigMap's manifest that holds them."""
    source = str(path)
    try:
        data = read_bounded(path)
        parts = tuple(_parts(data, source))
    except ConfigError as e:
        broken = FileValues(values={}, errors=(e,))
        return (CheckedFile(source=source, kind=DEVICE_CONFIG, data=b"", found=broken),)
    return parts


def _parts(data: bytes, source: str) -> Iterator[CheckedFile]:
    if data.lstrip().startswith(b"{"):
        yield _checked(data, source, NODE_CONFIG)
        return
    document = parse_yaml(data, source)
    if not isinstance(document, Mapping) or document.get("kind") != "ConfigMap":
        yield _checked(data, source, DEVICE_CONFIG)
        return
    for key, text in (document.get("data") or {}).items():
        kind = NODE_CONFIG if str(text).lstrip().startswith("{") else DEVICE_CONFIG
        yield _checked(str(text).encode(), f"{source}[{key}]", kind)


def _checked(data: bytes, source: str, kind: str) -> CheckedFile:
    if kind == NODE_CONFIG:
        found = read_node_config(data, source, None)
    else:
        found = read_device_config(data, source)
        if not found.errors and _holds_cards(data, source):
            kind, found = OTHER, NO_VALUES
    return CheckedFile(source=source, kind=kind, data=data, found=found)


def _holds_cards(data: bytes, source: str) -> bool:
    document = parse_yaml(data, source)
    return isinstance(document, Mapping) and "cards" in document


def effective(files: Sequence[CheckedFile], node_name: str) -> Resolved:
    """The settings that a node of this name would have with these files and nothing else.

    Raises:
        ConfigError: two files of one kind.
    """
    device = _only(files, DEVICE_CONFIG)
    node = _only(files, NODE_CONFIG)
    return combine(
        device_config=device.found if device else NO_VALUES,
        node_config=read_node_config(node.data, node.source, node_name) if node else NO_VALUES,
        flags=FileValues(values={"node_name": node_name}),
    )


def _only(files: Sequence[CheckedFile], kind: str) -> CheckedFile | None:
    found = [one for one in files if one.kind == kind]
    if len(found) > 1:
        cure = f"with --node give one {kind} at most"
        raise ConfigError(found[1].source, "file", found[0].source, cure)
    return found[0] if found else None
