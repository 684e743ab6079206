"""Divided cards for people: in the metrics, and on the page with the settings in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from hami_node.config.settings import Settings
from hami_node.metrics.parts import (
    DividedCardReading,
    PartReading,
    PartsReadings,
)
from hami_node.model import Pod
from hami_node.node.holdings.pod_names import NOBODY, PodName, PodNames
from hami_node.node.report.part_errors import PartErrors
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Clock, EventNote
from hami_node.record.ledger import Ledger
from hami_node.vendors.divided import DividedCards, PartState, PartView
from hami_node.vendors.protocol import VendorProtocol

STATES = tuple(state.value for state in PartState)
HAMI_HOLDER: Final = ("namespace", "pod", "container", "vdevice_index")
LEGACY_HOLDER: Final = ("podnamespace", "podname", "ctrname", "vdeviceid")


class DividedReport:
    """Reads the cards when somebody asks. Any thread may ask."""

    def __init__(
        self,
        owners: Sequence[VendorCards],
        protocols: Sequence[VendorProtocol],
        *,
        ledger: Ledger,
        pods: Callable[[], Iterable[Pod]],
        notify: Callable[[EventNote], None],
        clock: Clock,
        settings: Callable[[], Settings],
    ) -> None:
        """Wire the sources.

        `protocols` are those of `owners`, in the same order; `pods`: those of this node;
        `settings`: under which names containers' use is shown.
        """
        self._owners = tuple(zip(owners, protocols, strict=True))
        self._names, self._settings = PodNames(ledger, pods), settings
        self._errors = PartErrors(owners, pods=pods, notify=notify, clock=clock)

    def look(self) -> None:
        """Tell pods what the driver blames on their parts."""
        self._errors.look()

    def readings(self) -> PartsReadings:
        """For the metrics."""
        found = [(owner.divided(), protocol) for owner, protocol in self._owners]
        if not any(divided.cards or divided.failures for divided, _ in found):
            return PartsReadings(errors=self._errors.counts())
        names, settings = self._names.by_uid(), self._settings()
        legacy = found if settings.legacy_metrics else ()
        return PartsReadings(
            cards=[
                DividedCardReading(card.uuid, str(card.index), card.mode, card.pending)
                for divided, _ in found
                for card in divided.cards
            ],
            parts=[
                _part_reading(part, names.get(part.pod_uid, NOBODY))
                for divided, _ in found
                for part in divided.parts
            ],
            states=STATES,
            is_hands_off=any(divided.hands_off for divided, _ in found),
            failures={key: count for each, _ in found for key, count in each.failures.items()},
            errors=self._errors.counts(),
            infos=[info for each in found for info in _infos(*each, names)],
            legacy_infos=[info for each in legacy for info in _infos(*each, names, is_legacy=True)],
            names=settings.usage_metrics,
        )

    def details(self) -> Mapping[str, object]:
        """For the page with the settings in force, by the names of the resources; {} for none."""
        shown = {owner.names: owner.divided() for owner, _ in self._owners}
        cards = {names: _plain(divided) for names, divided in shown.items() if divided.cards}
        return {"divided-cards": cards} if cards else {}


def _part_reading(part: PartView, pod: PodName) -> PartReading:
    return PartReading(
        uuid=part.card,
        part=part.uuid,
        kind=part.kind,
        place=f"{part.start}+{part.size}",
        state=part.state.value,
        namespace=pod[0],
        pod=pod[1],
        container=part.container,
    )


def _infos(
    divided: DividedCards,
    protocol: VendorProtocol,
    names: Mapping[str, PodName],
    *,
    is_legacy: bool = False,
) -> Iterator[tuple[str, Mapping[str, str]]]:
    for part in divided.parts:
        namespace, pod = names.get(part.pod_uid, NOBODY)
        info = protocol.part_info(part, is_legacy=is_legacy)
        if info is not None and pod:
            whose = (namespace, pod, part.container, str(part.position))
            labels = LEGACY_HOLDER if is_legacy else HAMI_HOLDER
            yield info[0], {**dict(zip(labels, whose, strict=True)), **info[1]}


def _plain(divided: DividedCards) -> Mapping[str, object]:
    failures = {f"{name}: {why}": count for (name, why), count in divided.failures.items()}
    cards = msgspec.to_builtins(divided.cards)
    return {"hands_off": divided.hands_off, "failures": failures, "cards": cards}
