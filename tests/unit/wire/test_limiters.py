from __future__ import annotations

import pytest

from hami_node.wire import names
from hami_node.wire.limiters import limiters_of, with_limiter


def test_versions_are_added_container_by_container() -> None:
    text = with_limiter({}, "main", "v2.10.0")
    assert text == '{"main":"v2.10.0"}'
    text = with_limiter({names.POD_LIMITERS: text}, "init", "v2.9.0")
    assert text == '{"init":"v2.9.0","main":"v2.10.0"}'
    assert limiters_of({names.POD_LIMITERS: text}) == {"init": "v2.9.0", "main": "v2.10.0"}


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a":"' + "v" * 129 + '"}',
     "[]", '{"a":1}', "null", "\ud800", '{"a":"' + "\\u0000" * 9 + '"', str({"a": "b"}),
     "{" + ",".join(f'"c{n}":"v"' for n in range(100)) + "}"],
)  # fmt: skip
def test_what_others_wrote_is_replaced(text: str) -> None:
    assert limiters_of({names.POD_LIMITERS: text}) == {}
    assert with_limiter({names.POD_LIMITERS: text}, "main", "v1") == '{"main":"v1"}'
