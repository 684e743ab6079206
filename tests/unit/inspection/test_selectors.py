from __future__ import annotations

import pytest

from hami_node.errors import HamiError
from hami_node.inspection.selectors import selector_of

LABELS = {"app": "train", "tier": "gpu", "node.kubernetes.io/instance-type": "p4d.24xlarge"}


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ("", True),
        ("app=train", True),
        ("app==train,tier=gpu", True),
        ("app = train", True),
        ("app=web", False),
        ("app!=web", True),
        ("none!=web", True),
        ("app", True),
        ("!app", False),
        ("! none", True),
        ("app in (web, train)", True),
        ("app notin (web,train),tier", False),
        ("none notin (a)", True),
        ("none in (a)", False),
        ("none=", False),
        ("node.kubernetes.io/instance-type=p4d.24xlarge", True),
    ],
)
def test_selector_selects_as_kubectl_does(text: str, is_selected: bool) -> None:
    assert selector_of(text)(LABELS) is is_selected


@pytest.mark.parametrize(
    "text",
    ["=", "a=b=c", "a in b", "a in (b", "a>1", ",", "a,", "-a=b", "a in (b c)", "x" * 20_000],
)
def test_something_else_is_refused(text: str) -> None:
    with pytest.raises(HamiError, match="-l"):
        selector_of(text)


def test_hostile_selector_takes_no_time() -> None:
    with pytest.raises(HamiError):
        selector_of("a in (" * 1600)
