"""examples/ is whole, named in its list, and accepted by the webhook as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
FILES: Final = sorted(EXAMPLES.glob("*.yaml"))


def test_each_is_in_the_list_and_nothing_else_is() -> None:
    listed = re.findall(r"\]\(([\w-]+\.yaml)\)", EXAMPLES.joinpath("README.md").read_text())
    assert sorted(listed) == [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_begins_with_what_it_shows(path: Path) -> None:
    assert re.match(r"# [A-Z0-9].+\.\n", path.read_text().replace("\n# ", " "))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_leaves_placing_to_the_webhook(path: Path) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        pod = manifest if manifest["kind"] == "Pod" else manifest["spec"]["template"]
        assert {"schedulerName", "nodeName", "nodeSelector"}.isdisjoint(pod["spec"])
        assert all("limits" in c["resources"] for c in pod["spec"]["containers"])
