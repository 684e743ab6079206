"""Check configuration files without a node: what each sets, and the settings of a node with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.config.files import (
    DEVICE_CONFIG,
    NO_VALUES,
    NODE_CONFIG,
    FileValues,
    parse_yaml,
    read_bounded,
    read_device_config,
    read_node_config,
)
from hami_node.config.sources import Resolved, combine
from hami_node.errors import ConfigError
from hami_node.setting_types import Blocks

OTHER: Final = "simulated cards, not checked here"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A file, or a key of a ConfigMap, with everything it sets; every node's entry counts.

    Attributes:
        source: the file, followed by the ConfigMap's key.
        kind: `device-config.yaml` or `config.json`, by content; `OTHER` for neither.
        data: its bytes, to read again for a single node.
        found: what it sets.
    """

    source: str
    kind: str
    data: bytes
    found: FileValues


def check_file(path: Path, blocks: Blocks) -> tuple[CheckedFile, ...]:
    """Read a file: device-config.yaml, config.json, or a ConfigMap's manifest with them."""
    source = str(path)
    try:
        data = read_bounded(path)
        content = None if data.lstrip().startswith(b"{") else parse_yaml(data, source)
        if not isinstance(content, Mapping) or content.get("kind") != "ConfigMap":
            return (_checked(data, source, blocks),)
        texts = (content.get("data") or {}).items()
        return tuple(
            _checked(str(text).encode(), f"{source}[{key}]", blocks) for key, text in texts
        )
    except ConfigError as e:
        broken = FileValues(source, errors=(e,))
        return (CheckedFile(source=source, kind=DEVICE_CONFIG, data=b"", found=broken),)


def _checked(data: bytes, source: str, blocks: Blocks) -> CheckedFile:
    kind = NODE_CONFIG if data.lstrip().startswith(b"{") else DEVICE_CONFIG
    if kind == NODE_CONFIG:
        found = read_node_config(data, source, None, blocks)
    else:
        found = read_device_config(data, source, blocks)
        content = None if found.errors else parse_yaml(data, source)
        if isinstance(content, Mapping) and "cards" in content:
            kind, found = OTHER, NO_VALUES
    return CheckedFile(source=source, kind=kind, data=data, found=found)


def effective(files: Sequence[CheckedFile], node_name: str, blocks: Blocks) -> Resolved:
    """The settings that a node of this name would have with these files and nothing else.

    Raises:
        ConfigError: two files of one kind.
    """
    device = _only(files, DEVICE_CONFIG)
    node = _only(files, NODE_CONFIG)
    of_node = NO_VALUES
    if node is not None:
        of_node = read_node_config(node.data, node.source, node_name, blocks)
    return combine(
        blocks,
        device_config=device.found if device else NO_VALUES,
        node_config=of_node,
        flags=FileValues("command line", {"node_name": node_name}),
    )


def _only(files: Sequence[CheckedFile], kind: str) -> CheckedFile | None:
    found = [file for file in files if file.kind == kind]
    if len(found) > 1:
        hint = f"with --node give one {kind} at most"
        raise ConfigError(found[1].source, "file", found[0].source, hint)
    return found[0] if found else None
