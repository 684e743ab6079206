"""The annotation in which a node's daemon shows its MIG cards to people; only where it has some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import Uuid
from hami_node.text import cut
from hami_node.vendors.divided import (
    DividedCard,
    DividedCards,
    PartKind,
    PartState,
    PartView,
)
from hami_node.vendors.nvidia import names
from hami_node.wire.values.json_text import decode_json, encode_json_text

MAX_PARTS: Final = 256
"""Instances that are shown; 16 cards hold 112."""
MAX_KINDS: Final = 32
"""Profiles of a card that are shown."""
MAX_SENTENCE: Final = 200
MAX_WORD: Final = 64


class _Profile(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    memory_mib: int = msgspec.field(name="memoryMB")
    size: int
    starts: list[int]


class _Instance(msgspec.Struct, rename="camel", omit_defaults=True):
    profile: str
    start: int
    size: int
    state: str
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)
    mig_uuid: str = msgspec.field(name="migUUID", default="")
    pod_uid: str = msgspec.field(name="podUID", default="")
    container: str = ""
    why: str = ""


class _Card(msgspec.Struct, rename="camel", omit_defaults=True):
    uuid: str
    index: int
    mode: str
    pending: str = ""
    profiles: Annotated[int, msgspec.Meta(ge=0)] | None = None
    instances: list[_Instance] = []
    problem: str = ""


class _Mark(msgspec.Struct, rename="camel", omit_defaults=True):
    """`profiles`: the lists that cards name by their position, for most cards have the same."""

    cards: list[_Card]
    profiles: list[list[_Profile]] = []
    hands_off: str = ""


_DECODER: Final = msgspec.json.Decoder(_Mark)


def encode_mig(shown: DividedCards) -> str | None:
    """The annotation's text; None without a card to show.

    Pods are named by their uid: who may read a node need not be allowed to list its pods.
    """
    if not shown.cards:
        return None
    lists: list[tuple[PartKind, ...]] = []
    left, cards = MAX_PARTS, []
    for card in shown.cards:
        kinds = card.kinds[:MAX_KINDS]
        if kinds and kinds not in lists:
            lists.append(kinds)
        parts = card.parts[:left]
        left -= len(parts)
        cards.append(_card_row(card, parts, lists.index(kinds) if kinds else None))
    mark = _Mark(
        cards=cards,
        profiles=[[_profile_row(kind) for kind in kinds] for kinds in lists],
        hands_off=cut(shown.hands_off, MAX_SENTENCE),
    )
    return encode_json_text(msgspec.to_builtins(mark))


def _card_row(card: DividedCard, parts: Sequence[PartView], profiles: int | None) -> _Card:
    return _Card(
        uuid=card.uuid,
        index=card.index,
        mode=card.mode,
        pending=card.pending,
        profiles=profiles,
        instances=[_instance_row(part) for part in parts],
        problem=cut(card.problem, MAX_SENTENCE),
    )


def _profile_row(kind: PartKind) -> _Profile:
    return _Profile(
        name=cut(kind.name, MAX_WORD),
        memory_mib=kind.memory_mib,
        size=kind.size,
        starts=list(kind.starts),
    )


def _instance_row(part: PartView) -> _Instance:
    gpu, compute = (*part.numbers, None, None)[:2]
    return _Instance(
        profile=cut(part.kind, MAX_WORD),
        start=part.start,
        size=part.size,
        state=part.state.value,
        gpu_instance_id=gpu,
        compute_instance_id=compute,
        mig_uuid=part.uuid,
        pod_uid=part.pod_uid,
        container=part.container,
        why=cut(part.why, MAX_SENTENCE),
    )


def decode_mig(text: str) -> DividedCards:
    """Read the annotation.

    Raises:
        WireError: it is none, or names what it does not hold.
    """
    mark = decode_json(_DECODER, text, names.NODE_MIG)
    try:
        lists = [tuple(map(_kind_of, rows)) for rows in mark.profiles]
        cards = tuple(
            DividedCard(
                uuid=Uuid(card.uuid),
                index=card.index,
                mode=card.mode,
                pending=card.pending,
                kinds=() if card.profiles is None else lists[card.profiles],
                parts=tuple(_part_of(Uuid(card.uuid), row) for row in card.instances),
                problem=card.problem,
            )
            for card in mark.cards
        )
    except (IndexError, ValueError) as e:
        raise WireError(names.NODE_MIG, text, str(e)) from e
    return DividedCards(cards=cards, hands_off=mark.hands_off)


def _kind_of(row: _Profile) -> PartKind:
    return PartKind(
        name=row.name, memory_mib=row.memory_mib, size=row.size, starts=tuple(row.starts)
    )


def _part_of(card: Uuid, row: _Instance) -> PartView:
    """Raises ValueError: a state that nobody has."""
    ids = (row.gpu_instance_id, row.compute_instance_id)
    return PartView(
        card=card,
        kind=row.profile,
        start=row.start,
        size=row.size,
        state=PartState(row.state),
        numbers=tuple(number for number in ids if number is not None),
        uuid=row.mig_uuid,
        why=row.why,
        pod_uid=row.pod_uid,
        container=row.container,
    )
