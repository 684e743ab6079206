"""No filter reads what the fleet's shortcuts leave out.

The fleet asks the filters once for cards, and places once on nodes, that are alike in the fields
that it knows of. A filter, or a vendor's choice of cards, that reads another field would get the
answer of a card that differs in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from hami_node.engine.card_rules import PLAIN_RULES, CardRules
from hami_node.engine.compat import V2_8, V2_10
from hami_node.engine.filters import FILTERS, Filter, FitContext, context
from hami_node.engine.fleet.explain import CARD_FIELDS, CONTEXT_FIELDS
from hami_node.engine.fleet.needs import KIND_FILTERS
from hami_node.engine.fleet.node_state import KIND_FIELDS, STATE_FIELDS
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.usage import DeviceUsage
from hami_node.model import CardWishes, Device, Uuid, UuidWish
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import WHOLE_DEVICES
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import protocols_of
from tests.fakes.settings import settings
from tests.unit.engine.cards import ask, card, mig_card, neuron_card, template_card
from tests.unit.engine.recording import recording

ALL_RULES: tuple[CardRules, ...] = (
    PLAIN_RULES,
    *(protocol.cards for protocol in protocols_of(VENDORS, settings())),
)
CARDS = (
    card(),
    card(0, (1, 1000, 10)),
    card(0, (10, 16384, 100)),
    card(cores=0, memory_mib=0),
    card(healthy=False),
    card(model="Tesla T4", numa=None, mode="mps"),
    card(mode="mig"),
    mig_card(),
    template_card(),
    neuron_card(),
    neuron_card(1),
    neuron_card(3),
)
WISHES = (
    CardWishes(),
    CardWishes(use_types=("a100",), nouse_types=("t4",), is_numa_bound=True),
    CardWishes(modes=frozenset({"mig"})),
    CardWishes(uuids=UuidWish(use=frozenset({"GPU-0", "n-0"}), nouse=frozenset({"GPU-9"}))),
)
ASKS = tuple(
    ask(count, memory_mib, cores, vendor=vendor, memory_percent=percent, detail=detail)
    for vendor in ALL_RULES
    for count, memory_mib, percent, cores, detail in (
        (1, 4096, None, 30, None),
        (2, None, 50, 2, None),
        (1, 99999, None, 0, None),
        (1, 1, None, 100, None),
        (2, None, 100, 2, WHOLE_DEVICES if vendor is NEURON else None),
    )
)
CONTEXTS = tuple(
    context(
        wanted,
        wishes,
        compat,
        policy=policy,
        cordoned=frozenset({Uuid(cordoned)}),
        quota=QuotaTally.start(Quota(memory_limit_mib=5000, core_limit=50), compat),
    )
    for wanted in ASKS
    for wishes in WISHES
    for compat in (V2_8, V2_10)
    for policy, cordoned in (("spread", ""), ("mutex", "GPU-0"))
)


def _name(rule: Filter) -> str:
    return getattr(rule, "__name__", repr(rule))


class Reads:
    """The fields that were read, by the class that they belong to."""

    def __init__(self) -> None:
        self.found: set[tuple[type, str]] = set()

    def card(self, usage: DeviceUsage) -> DeviceUsage:
        return recording(usage, self._note, device=recording(usage.device, self._note))

    def context(self, ctx: FitContext) -> FitContext:
        return recording(ctx, self._note)

    def beyond(self, known: Mapping[type, frozenset[str]]) -> list[str]:
        """What was read that nobody knows of, as `Device.numa`."""
        allowed = {**known, FitContext: CONTEXT_FIELDS}
        return sorted(
            f"{kind.__name__}.{name}" for kind, name in self.found if name not in allowed[kind]
        )

    def _note(self, kind: type, name: str) -> None:
        self.found.add((kind, name))


def _is_divided(usage: DeviceUsage) -> bool:
    return any(
        rules.is_divided(usage.device) for rules in ALL_RULES if rules is usage.device.vendor
    )


def _complaints(rule: Filter) -> list[str]:
    """What a filter reads beside what the fleet takes into account, with where to add it."""
    found: list[str] = []
    for known, place, is_divided in (
        (CARD_FIELDS, "CARD_FIELDS of engine/fleet/explain.py", False),
        (STATE_FIELDS, "STATE_FIELDS of engine/fleet/node_state.py", True),
    ):
        reads = Reads()
        for usage in (item for item in CARDS if _is_divided(item) is is_divided):
            for ctx in CONTEXTS:
                rule(reads.card(usage), reads.context(ctx))
        found += [
            f"the filter {_name(rule)} reads {field}, of which {place} knows nothing"
            for field in reads.beyond(known)
        ]
    return found


def _filters() -> Iterable[Filter]:
    own = (added.rule for rules in ALL_RULES for added in rules.own_filters)
    return (*FILTERS.values(), *own)


@pytest.mark.parametrize("rule", _filters(), ids=_name)
def test_filter_reads_only_what_the_fleet_takes_into_account(rule: Filter) -> None:
    assert not _complaints(rule)


@pytest.mark.parametrize("rules", ALL_RULES, ids=repr)
def test_choice_of_cards_reads_only_what_tells_node_states_apart(rules: CardRules) -> None:
    reads = Reads()
    for ctx in (item for item in CONTEXTS if item.ask.vendor is rules):
        rules.choose([reads.card(usage) for usage in CARDS], reads.context(ctx))
    assert not reads.beyond(STATE_FIELDS)


@pytest.mark.parametrize("rules", ALL_RULES, ids=repr)
def test_kinds_are_judged_only_by_what_tells_them_apart(rules: CardRules) -> None:
    reads = Reads()
    for usage in (reads.card(item) for item in CARDS):
        for ctx in (item for item in CONTEXTS if item.ask.vendor is rules):
            rules.least(ctx.ask, usage.device)
            for rule in KIND_FILTERS:
                rule(usage, reads.context(ctx))
    # a kind is judged by an idle card: with parts in use it has less to give, never more
    known = {DeviceUsage: frozenset({"device", "parts"}), Device: KIND_FIELDS | {"uuid"}}
    assert not reads.beyond(known)
