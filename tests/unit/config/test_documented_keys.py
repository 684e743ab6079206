"""The pages name no key, flag or variable of ours that the program would refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hami_node.config.files import FileValues, read_device_config, read_node_config
from hami_node.config.settings import declarations
from hami_node.config.sources import unknown_variables
from hami_node.config.unknown_keys import OWN_SECTION
from hami_node.vendors.registry import SETTINGS_BLOCKS

ROOT: Final = Path(__file__).parents[3]
PAGES: Final = sorted((*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"))
SECTIONS: Final = (OWN_SECTION, *(block.section for block in SETTINGS_BLOCKS if block.section))
EVERY: Final = declarations(SETTINGS_BLOCKS).values()
KEYS: Final = {
    OWN_SECTION: {setting.flag for setting in EVERY},
    **{
        section: {setting.names.yaml for setting in EVERY if setting.section == section}
        for section in SECTIONS[1:]
    },
}

OF_TESTS: Final = frozenset(
    name
    for path in (ROOT / "tests").rglob("*.py")
    for name in re.findall(r'(?:environ\S*|Final = )"(HAMI_NODE_\w+)"', path.read_text())
)
"""Variables that only tests read."""

_BLOCK: Final = re.compile(r"^( *)```(?:yaml|json)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
_NAMED: Final = re.compile(
    rf"`({'|'.join(SECTIONS)})(?:\.|: \{{? ?)(?![\w-]*[./])(?!com\b|io\b)([A-Za-z][\w-]*)"
)
_VARIABLE: Final = re.compile(r"\bHAMI_NODE_[A-Z0-9_]*[A-Z0-9]\b")


def documents(text: str) -> Iterator[Any]:
    """What is in the blocks of a page, as far as it is YAML or JSON."""
    for block in _BLOCK.findall(text):
        try:
            yield from yaml.safe_load_all(block[1])
        except yaml.YAMLError:
            continue


def configurations(document: Any) -> Iterator[str]:
    """The device-config.yaml and config.json in a document, also in a ConfigMap."""
    if not isinstance(document, Mapping):
        return
    if document.get("kind") == "ConfigMap":
        yield from (str(text) for text in (document.get("data") or {}).values())
    elif "nodeconfig" in document or any(section in document for section in SECTIONS):
        yield json.dumps(document)


def read(text: str) -> FileValues:
    document = yaml.safe_load(text)
    if "nodeconfig" in document:
        return read_node_config(text.encode(), "page", None, SETTINGS_BLOCKS)
    return read_device_config(text.encode(), "page", SETTINGS_BLOCKS)


def refused(text: str) -> list[str]:
    """What a page names that the program would refuse or not know."""
    found = [read(each) for document in documents(text) for each in configurations(document)]
    wrong = [str(error) for each in found for error in each.errors]
    wrong += [name for each in found for name in (*each.warnings, *each.ignored)]
    wrong += [
        f"{section}.{key}" for section, key in _NAMED.findall(text) if key not in KEYS[section]
    ]
    named = set(_VARIABLE.findall(text)) - OF_TESTS
    variables = unknown_variables(dict.fromkeys(named, "x"), SETTINGS_BLOCKS)
    return wrong + [str(error) for error in variables.errors] + list(variables.ignored)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_page_names_no_key_that_is_refused(page: Path) -> None:
    assert refused(page.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "```yaml\nhami-node: {registerFormat: auto}\n```",
        "```yaml\nnvidia: {registerFormat: auto}\n```",
        "```yaml\nnvidia: {deviceSplitCuont: 3}\n```",
        "  ```yaml\n  hami-node:\n    log-lvel: debug\n  ```",
        "```yaml\nkind: ConfigMap\ndata:\n  x: |\n    hami-node: {log-lvel: debug}\n```",
        '```json\n{"nodeconfig": [{"name": "n", "standalon": true}]}\n```',
        "set `nvidia.registerFormat`",
        "set `hami-node: {registerFormat: csv9}`",
        "set `HAMI_NODE_LOGLEVEL=debug`",
    ],
)
def test_wrong_key_on_a_page_is_found(text: str) -> None:
    assert refused(text) != []


def test_blocks_of_the_pages_are_read() -> None:
    found = [
        each
        for page in PAGES
        for document in documents(page.read_text())
        for each in configurations(document)
    ]
    assert len(found) > 5
