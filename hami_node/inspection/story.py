"""What was said about a pod on its way: the scheduler's last word, and its Events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from hami_node.cluster.objects import NO_METADATA, Condition, Event, Metadata
from hami_node.text import cut
from hami_node.wire.times import parse_time

MAX_EVENTS: Final = 20
"""Events of a pod, the newest ones: tenants can write any number."""
_MAX_MESSAGE: Final = 1000
_MAX_WORD: Final = 100

Json = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """An Event about a pod.

    Attributes:
        age_s: since it was last seen; None when that can't be read.
        reason: a word.
        message: a sentence.
        source: who wrote it.
        count: how often it was seen.
        is_warning: something went wrong.
    """

    age_s: int | None
    reason: str
    message: str
    source: str
    count: int
    is_warning: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was said about a pod; `scheduler_said` is "" for one that is bound."""

    scheduler_said: str = ""
    events: tuple[EventView, ...] = ()


class _Status(msgspec.Struct):
    conditions: list[Condition] | None = None


class _Pod(msgspec.Struct):
    metadata: Metadata = NO_METADATA
    status: _Status | None = None


def story_of(pod: Json, events: Iterable[Json], now_s: float) -> Story:
    """The story of a pod, oldest Event first; what can't be read is left out.

    Args:
        pod: the pod, as plain values.
        events: Events, as plain values; those about others are left out.
        now_s: Unix seconds, for ages.
    """
    found = _read(pod, _Pod) or _Pod()
    whose = found.metadata
    conditions = (found.status or _Status()).conditions or ()
    said = (item for item in conditions if item.type == "PodScheduled" and item.status == "False")
    words = next((item.message for item in said), "")
    mine = [event for raw in events if (event := _read(raw, Event)) and _is_about(event, whose)]
    views = sorted((_view(event, now_s) for event in mine), key=_oldest_first)
    return Story(scheduler_said=cut(words, _MAX_MESSAGE), events=tuple(views[-MAX_EVENTS:]))


def _read(raw: Json, kind: type[T]) -> T | None:
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_about(event: Event, pod: Metadata) -> bool:
    """Whether it is about exactly this pod; some Events carry no uid."""
    about = event.involved_object
    return (
        about is not None
        and about.kind == "Pod"
        and (about.namespace, about.name) == (pod.namespace, pod.name)
        and (not about.uid or not pod.uid or about.uid == pod.uid)
    )


def _view(event: Event, now_s: float) -> EventView:
    seen_s = next((found for found in map(parse_time, event.times) if found), None)
    source = event.reporting_component or (event.source and event.source.component) or ""
    return EventView(
        age_s=None if seen_s is None else max(int(now_s - seen_s), 0),
        reason=cut(event.reason or "?", _MAX_WORD),
        message=cut(event.message or "", _MAX_MESSAGE),
        source=cut(source, _MAX_WORD),
        count=max((event.series and event.series.count) or event.count or 1, 1),
        is_warning=event.type == "Warning",
    )


def _oldest_first(event: EventView) -> tuple[float, str]:
    return (-float("inf") if event.age_s is None else -event.age_s, event.reason)
