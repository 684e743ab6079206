from __future__ import annotations

import pytest

from hami_node.errors import ConfigError
from hami_node.view.http.addresses import AllowedHosts, check_address


@pytest.mark.parametrize("bind", ["127.0.0.1:8450", "127.0.0.53:0", "localhost:8450", "[::1]:8450"])
def test_loopback_needs_no_name(bind: str) -> None:
    check_address(bind, ())


@pytest.mark.parametrize("bind", [":8450", "0.0.0.0:8450", "[::]:80", "10.1.2.3:80", "gpu.lan:80"])
def test_address_of_others_needs_a_name_and_says_so(bind: str) -> None:
    with pytest.raises(ConfigError, match=r"an ingress that authenticates.*--allowed-host NAME"):
        check_address(bind, ())
    check_address(bind, ("cards.example.com",))


@pytest.mark.parametrize("bind", ["", "8450", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "a:70000"])
def test_address_that_is_none_is_refused_with_the_form(bind: str) -> None:
    with pytest.raises(ConfigError, match="use HOST:PORT"):
        check_address(bind, ())


@pytest.mark.parametrize("name", ["", "https://x", "x:80", "x/y", "*", "a b", "x\r\ny"])
def test_name_is_one_of_a_host(name: str) -> None:
    with pytest.raises(ConfigError, match="without scheme and port"):
        check_address(":8450", (name,))


HOSTS = [
    ("localhost", True),
    ("localhost:8450", True),
    ("LOCALHOST", True),
    ("127.0.0.1:9", True),
    ("[::1]:8450", True),
    ("cards.example.com", True),
    ("Cards.Example.Com.:443", True),
    ("", False),
    ("evil.example", False),
    ("localhost.evil.example", False),
    ("evil.example/localhost", False),
    ("localhost@evil.example", False),
    ("localhost:80:80", False),
    ("localhost ", False),
    ("127.0.0.1.evil.example", False),
    ("cards.example.com.evil.example", False),
    ("2130706433", False),
    ("0.0.0.0", False),  # noqa: S104 - bound to nothing
]


@pytest.mark.parametrize(("host", "is_allowed"), HOSTS)
def test_host_is_allowed_by_its_whole_name(host: str, is_allowed: bool) -> None:
    assert AllowedHosts(("cards.example.com",)).has(host) is is_allowed
