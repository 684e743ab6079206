"""What a namespace may still take."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.quota import Limits, Quota, QuotaBook, QuotaTally
from hami_node.engine.usage import Taken
from hami_node.model import Uuid
from tests.unit.engine.cards import device

G0, G1 = Uuid("GPU-0"), Uuid("GPU-1")


def _tally(compat: Compat = V2_10, **values: Any) -> QuotaTally:
    return QuotaTally.start(Quota(**values), compat)


def _taken(memory_mib: int, uuid: Uuid = G0, cores: int = 0, part: int | None = None) -> Taken:
    return Taken(device=device(uuid=uuid), memory_mib=memory_mib, cores=cores, part=part)


@pytest.mark.parametrize(
    ("tally", "memory_mib", "cores", "admitted"),
    [
        pytest.param(_tally(memory_limit_mib=10000, memory_used_mib=6000), 4000, 0, True, id="at"),
        pytest.param(
            _tally(memory_limit_mib=10000, memory_used_mib=6000), 4001, 0, False, id="over"
        ),
        pytest.param(_tally(memory_limit_mib=0), 1, 0, False, id="0-blocks-in-2.10"),
        pytest.param(_tally(memory_limit_mib=0), 0, 0, True, id="0-admits-nothing-asked"),
        pytest.param(_tally(V2_8, memory_limit_mib=0), 1, 0, True, id="0-is-no-limit-in-2.8"),
        pytest.param(_tally(core_limit=100, cores_used=80), 0, 20, True, id="cores-at"),
        pytest.param(_tally(core_limit=100, cores_used=80), 0, 30, False, id="cores-over"),
        pytest.param(_tally(), 10**9, 10**9, True, id="no-limit"),
        pytest.param(
            _tally(memory_limit_mib=10, memory_factor=256), 2560, 0, True, id="factor-on-memory"
        ),
        pytest.param(
            _tally(memory_limit_mib=10, memory_factor=256), 2561, 0, False, id="factor-over"
        ),
        pytest.param(
            _tally(core_limit=10, memory_factor=256), 0, 11, False, id="no-factor-on-cores"
        ),
    ],
)
def test_admits(tally: QuotaTally, memory_mib: int, cores: int, admitted: bool) -> None:
    assert tally.admits(_taken(memory_mib, G0, cores)) is admitted


def test_cards_of_one_container_add_up() -> None:
    tally = _tally(memory_limit_mib=10000).with_taken(_taken(6000))
    assert not tally.admits(_taken(6000, G1))
    assert tally.admits(_taken(4000, G1))


def test_earlier_app_container_adds_up() -> None:
    tally = _tally(memory_limit_mib=10000).with_taken(_taken(5000))
    assert not tally.admits(_taken(6000))


def test_earlier_init_container_on_the_card_counts_as_peak() -> None:
    tally = _tally(memory_limit_mib=10000).at(is_init=True).with_taken(_taken(5000))
    tally = tally.at(is_init=True)
    assert tally.admits(_taken(6000))
    assert not tally.admits(_taken(6000, G1))
    assert tally.at(is_init=False).admits(_taken(10000))


def test_init_container_counts_beside_the_sidecars_before_it() -> None:
    """As it does once it is placed: the books had 11000 MiB of a limit of 10000."""
    tally = _tally(memory_limit_mib=10000).with_taken(_taken(5000)).at(is_init=True)
    assert not tally.admits(_taken(6000))
    assert tally.admits(_taken(5000))
    assert tally.with_taken(_taken(5000)).at(is_init=False).admits(_taken(5000))


def test_instances_of_one_init_container_add_up_and_those_of_two_do_not() -> None:
    tally = _tally(memory_limit_mib=10000).at(is_init=True).with_taken(_taken(5000, part=1))
    assert not tally.admits(_taken(5001, part=2))
    assert tally.with_taken(_taken(5000, part=2)).at(is_init=True).admits(_taken(10000, part=3))


def test_init_containers_are_summed_in_2_8() -> None:
    tally = _tally(V2_8, memory_limit_mib=10000).at(is_init=True).with_taken(_taken(5000))
    assert not tally.admits(_taken(6000))


def test_total_takes_the_larger_of_init_and_apps_per_card() -> None:
    tally = _tally().at(is_init=True).with_taken(_taken(5000, G0, 10)).at(is_init=False)
    tally = tally.with_taken(_taken(3000, G0, 20)).with_taken(_taken(1000, G1, 5))
    assert tally.peak == (6000, 25)


def test_book_counts_use_up_and_down() -> None:
    book = QuotaBook(memory_factor=2)
    book.set_limits("team", "q", Limits(memory_mib=100, cores=50))
    book.use("team", 60, 10)
    assert book.quota("team") == Quota(
        memory_limit_mib=100, core_limit=50, memory_used_mib=60, cores_used=10, memory_factor=2
    )
    book.use("team", -60, -10)
    quota = book.quota("team")
    assert quota is not None
    assert (quota.memory_used_mib, quota.cores_used) == (0, 0)


def test_book_without_limits_has_no_quota() -> None:
    book = QuotaBook()
    book.use("team", 60, 10)
    assert book.quota("team") is None
    assert book.quota("other") is None


def test_book_forgets_removed_limits() -> None:
    book = QuotaBook()
    book.set_limits("team", "q", Limits(cores=1))
    book.set_limits("team", "q", None)
    book.set_limits("team", "never-there", None)
    assert book.quota("team") is None


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
@pytest.mark.parametrize("is_init", [False, True], ids=["apps", "inits"])
def test_tally_grows_with_cards_and_not_with_containers(compat: Compat, is_init: bool) -> None:
    """Each card was compared with all that was taken before: 200 init containers took 0.1 s."""
    tally = _tally(compat, memory_limit_mib=10**9)
    for number in range(100):
        tally = tally.at(is_init=is_init)
        tally = tally.with_taken(_taken(1 + number, (G0, G1)[number % 2], number))
    assert len(tally.cards) == 2
    if is_init and compat.quota_collapses:
        assert tally.peak == (99 + 100, 98 + 99)
    else:
        assert tally.peak == (sum(range(1, 101)), sum(range(100)))
