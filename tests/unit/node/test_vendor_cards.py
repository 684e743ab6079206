"""One vendor's cards under several resources: found once, each offered where it belongs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from hami_node.config.settings import Settings
from hami_node.errors import ConfigError, RecordError
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.model import Device
from hami_node.node.vendor_cards import VendorCards
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.parts import CardParts, PartSources
from hami_node.vendors.spec import PluginOptions, ServedCards, ServedResource
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.parts import FakeParts
from tests.unit.node.served import settings_of


def resource(name: str, index: int, slots: int = 2) -> ServedResource[object]:
    """A resource of one card."""

    def offered(cards: tuple[Device, ...], settings: object) -> tuple[Device, ...]:
        del settings
        if any(it.index == index and it.model == "odd" for it in cards):
            raise ValueError
        return tuple(replace(it, slots=slots) for it in cards if it.index == index)

    return ServedResource(
        name=name, offered=offered, options=lambda _: PluginOptions(), count_setting="slots"
    )


def cards_of(
    folder: Path,
    backend: FakeBackend,
    *resources: ServedResource[object],
    settings: Callable[[], Settings] | None = None,
    **more: Any,
) -> VendorCards:
    served: ServedCards[Any] = replace(
        cast(ServedCards[Any], NVIDIA_SPEC.served),
        make_backend=lambda settings, clock, records: backend,
        resources=lambda settings, cards: resources,
        **more,
    )
    default = settings_of(folder)
    return VendorCards(
        NVIDIA_SPEC,
        served,
        settings or (lambda: default),
        clock=FakeClock(),
        stop=threading.Event(),
        metrics=DeferredMetrics(),
    )


def shown(owner: VendorCards) -> dict[str, list[tuple[int, bool]]]:
    return {
        each.name: [(it.index, it.healthy) for it in each.inventory.cards]
        for each in owner.resources
    }


def test_cards_one_scan_offers_each_card_where_it_belongs(tmp_path: Path) -> None:
    backend = FakeBackend(card(0), card(1))
    owner = cards_of(tmp_path, backend, resource("a/x", 0), resource("a/y", 1), resource("a/z", 7))
    owner.find_cards()
    owner.offer()
    assert backend.scans == 1
    assert shown(owner) == {"a/x": [(0, True)], "a/y": [(1, True)], "a/z": []}
    assert [it.uuid for it in owner.cards()] == [uuid(0), uuid(1)]
    assert owner.names == "a/x, a/y, a/z"


def test_cards_one_that_can_not_be_offered_costs_its_own_resource_only(tmp_path: Path) -> None:
    backend = FakeBackend(card(0), card(1))
    owner = cards_of(tmp_path, backend, resource("a/x", 0), resource("a/y", 1))
    owner.find_cards()
    owner.offer()
    backend.cards = (card(0, model="odd"), card(1))
    owner.scanner.scan_once()
    assert shown(owner) == {"a/x": [(0, False)], "a/y": [(1, True)]}


def test_cards_a_list_too_large_for_kubelet_is_refused_whichever_resource(tmp_path: Path) -> None:
    backend = FakeBackend(card(0), card(1))
    owner = cards_of(tmp_path, backend, resource("a/x", 0), resource("a/y", 1, slots=100_000))
    owner.find_cards()
    with pytest.raises(ConfigError, match="slots"):
        owner.offer()


def test_parts_one_maker_for_all_threads_once_there_is_something_to_divide(tmp_path: Path) -> None:
    backend, made = FakeBackend(), list[CardParts | None]()
    settings = [settings_of(tmp_path)]

    def make(sources: PartSources, own: object) -> CardParts | None:
        del own
        assert sources.backend is backend
        made.append(FakeParts() if len(settings) > 1 else None)
        return made[-1]

    owner = cards_of(tmp_path, backend, settings=lambda: settings[-1], make_parts=make)
    assert owner.parts is owner.parts is None
    assert len(made) == 1
    settings.append(settings_of(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: owner.parts, range(8)))
    assert found == [made[1]] * 8
    settings.append(settings_of(tmp_path))
    assert owner.parts is made[1], "what was made is still to be looked after"
    assert len(made) == 2


def test_parts_of_a_vendor_that_divides_nothing_are_none(tmp_path: Path) -> None:
    assert cards_of(tmp_path, FakeBackend(), make_parts=None).parts is None


def test_parts_whose_record_cant_be_read_yet_are_made_later(tmp_path: Path) -> None:
    parts, records = FakeParts(), list[object]()

    def make(sources: PartSources, own: object) -> CardParts | None:
        del own
        records.append(sources.records("parts"))
        if len(records) == 1:
            raise RecordError("the disk has not answered")
        return parts

    owner = cards_of(tmp_path, FakeBackend(), make_parts=make)
    assert owner.parts is None
    assert owner.parts is parts
    assert records[0] is records[1], "a record that is still being read"
