"""A pod's story: what has happened to it, in the order of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from hami_node.cluster.client import KubeClient
from hami_node.cluster.paths import CORE, segment
from hami_node.errors import KubeError, NotFound
from hami_node.inspection.picture import Listed
from hami_node.inspection.pod import PodView, explain_pod
from hami_node.inspection.story import EventView, story_of
from hami_node.model import Pod
from hami_node.text import cut
from hami_node.vendors.holding import node_of
from hami_node.view.live_picture import LivePicture
from hami_node.view.rows import MAX_TEXT, holder_json
from hami_node.view.summary import refusal_in_words
from hami_node.view.whatif import verdicts
from hami_node.wire import names
from hami_node.wire.times import parse_time

MAX_EVENTS: Final = 100
_MAX_DIGITS: Final = 12

Json = dict[str, Any]


class _Events(msgspec.Struct):
    items: list[dict[str, Any]] | None = None


_LIST: Final = msgspec.json.Decoder(_Events)

ReadEvents = Callable[[Pod], bytes]


def events_reader(kube: KubeClient) -> ReadEvents:
    """Reads a pod's Events from the API server."""

    def read(pod: Pod) -> bytes:
        selector = f"involvedObject.name={pod.name},involvedObject.uid={pod.uid}"
        path = f"{CORE}/namespaces/{segment(pod.namespace)}/events"
        query = (("fieldSelector", selector), ("limit", str(MAX_EVENTS)))
        return kube.request("GET", path, query=query)

    return read


def pod_page(
    picture: LivePicture, key: str, now_s: float, scheduler_name: str, read_events: ReadEvents
) -> Json:
    """Everything about a pod.

    Raises:
        NotFound: there is no such pod, or it does not concern cards.
    """
    with picture.lock:
        pod = picture.pod(key)
        if pod is None:
            why = f"there is no pod {key!r} that asks for cards or holds some; it may have gone"
            raise NotFound(why, 404)
        node = picture.node(node_of(pod))
        listed = Listed(nodes=(node,) if node else (), pods=(pod,))
        with picture.picture(without=key) as seen:
            view = explain_pod(listed, pod, picture.basis, now_s, scheduler_name, seen)
    # the lock is not held while the API server is asked
    steps, missing = _events(pod, read_events, now_s)
    steps += _stamps(pod, view)
    steps.sort(key=lambda step: (step["at"] is None, step["at"] or 0.0, step["rank"]))
    return {
        "pod": key,
        "uid": pod.uid,
        "phase": cut(pod.phase, MAX_TEXT),
        "state": view.state.value,
        "node": node_of(pod),
        "asks": cut(view.asks, MAX_TEXT),
        "summary": cut(view.summary, 2 * MAX_TEXT),
        "cures": [cut(cure, MAX_TEXT) for cure in view.cures],
        "resize": cut(view.resize, MAX_TEXT),
        "held": [holder_json(holder) for holder in view.held],
        "problems": [
            {"where": problem.where, "why": cut(problem.why, 2 * MAX_TEXT)}
            for problem in view.problems
        ],
        "steps": steps,
        "missing": missing,
        **verdicts(view),
    }


def _stamps(pod: Pod, view: PodView) -> list[Json]:
    """What the pod's own annotations say of its way."""
    chosen = pod.annotations.get(names.POD_NODE, "")
    phase = pod.annotations.get(names.POD_BIND_PHASE, "")
    steps = [_step(parse_time(pod.creation_time), 0, "created", "the pod was created")]
    if chosen:
        at_s = _stamp(pod, names.POD_TIME)
        steps.append(_step(at_s, 1, "reserved", f"a scheduler chose node {chosen}"))
    if pod.annotations.get(names.POD_BIND_TIME):
        at_s = _stamp(pod, names.POD_BIND_TIME)
        steps.append(_step(at_s, 2, "bound", f"bound to {pod.node_name or chosen}"))
    for holder in view.held:
        what = holder.shares or f"{holder.memory_mib} MiB, {holder.cores} % of cores"
        card = "" if holder.index is None else f" of card {holder.index}"
        served = "has" if holder.is_served else "waits for"
        text = f"{holder.container} {served} {what}{card} ({holder.uuid})"
        steps.append(_step(None, 4, "granted", text))
    if phase:
        steps.append(_step(None, 5, "phase", f"allocation: {phase}"))
    return steps


def _events(pod: Pod, read_events: ReadEvents, now_s: float) -> tuple[list[Json], str]:
    try:
        raws = _LIST.decode(read_events(pod)).items or []
    except KubeError as e:
        return [], refusal_in_words(e, "events")
    except (msgspec.MsgspecError, UnicodeError) as e:
        return [], f"the API server's list of events can't be read: {cut(str(e), MAX_TEXT)}"
    whose = {"metadata": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid}}
    found = story_of(whose, raws[:MAX_EVENTS], now_s)
    return [_event_step(event, now_s) for event in found.events], ""


def _event_step(event: EventView, now_s: float) -> Json:
    at_s = None if event.age_s is None else round(now_s - event.age_s)
    return {
        **_step(at_s, 3, "event", event.message),
        "reason": event.reason,
        "by": event.source,
        "warning": event.is_warning,
        "count": event.count,
    }


def _step(at_s: float | None, rank: int, kind: str, text: str) -> Json:
    return {"at": at_s, "rank": rank, "kind": kind, "text": cut(text, 2 * MAX_TEXT)}


def _stamp(pod: Pod, key: str) -> float | None:
    text = pod.annotations.get(key, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return float(text) if is_number else parse_time(text)
