"""MPS is refused wherever it is asked for, and the refusal says what to use instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hami_node.config.files import read_node_config as read
from hami_node.vendors.registry import SETTINGS_BLOCKS

NODE = {"NODE_NAME": "n1"}
PAGE = Path(__file__).parents[3] / "docs" / "mig.md"


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def config_json(folder: Path) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"nodeconfig": [{"name": "n1", "operatingmode": "mps"}]}))
    return path


def test_node_file_with_mps_is_refused_in_the_words_of_the_page(tmp_path: Path) -> None:
    (error,) = read(config_json(tmp_path).read_bytes(), "config.json", "n1", SETTINGS_BLOCKS).errors
    page = words(PAGE.read_text())
    assert error.field == "nodeconfig[0].operatingmode"
    assert error.hint in page
    assert words(str(error)) in page
