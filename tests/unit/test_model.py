"""The nouns that compute something themselves."""

import pytest

from hami_node.model import Node, Pod


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("1042", 1042, id="number"),
        pytest.param("", 0, id="none"),
        pytest.param("v7", 0, id="no number"),
        pytest.param("-3", 0, id="negative"),
        pytest.param("²", 0, id="digit that is no number"),
    ],
)
def test_version_is_the_resource_version_as_a_number(text: str, number: int) -> None:
    assert Pod(uid="u", namespace="n", name="p", resource_version=text).version == number
    assert Node(name="n", resource_version=text).version == number
