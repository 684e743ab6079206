"""The /metrics pages of daemons, through the API server's pod proxy: bounded in number and time.

Each costs the API server a connection, so only some nodes' pages are read, a few at a time, and
none after the first answer is that we may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import Forbidden, KubeError
from hami_node.model import Pod

MOST_PAGES: Final = 64
"""Daemons that are asked; more nodes are 16 cards each beyond what a person reads."""
_AT_ONCE: Final = 8
_PORT_KEY: Final = "prometheus.io/port"
_PORT: Final = "9394"
_LABEL, _DAEMON = "hami-node.io/metrics", "daemon"
"""On the pods of every daemon, by the chart and by the plain manifests."""

ReadPage = Callable[[Pod, str, Deadline], bytes]
"""Reads /metrics of a pod at a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What was read.

    Attributes:
        by_node: the pages.
        unread: why there is none, by node.
        note: why there is nothing at all, or not everything; "" otherwise.
    """

    by_node: Mapping[str, bytes] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


def daemons_in(pods: Sequence[Pod], namespace: str, nodes: frozenset[str]) -> tuple[Pod, ...]:
    """The daemons' pods on these nodes; who may write pods in that namespace is trusted."""
    return tuple(
        pod
        for pod in pods
        if pod.namespace == namespace
        and pod.node_name in nodes
        and pod.has_started
        and not pod.is_over
        and pod.labels.get(_LABEL) == _DAEMON
    )


def read_pages(read: ReadPage, daemons: Sequence[Pod], deadline: Deadline) -> Pages:
    """Read the pages of these daemons, as many as may be, until the deadline."""
    asked = daemons[:MOST_PAGES]
    if not asked:
        return Pages(note="what is used is not known: no daemon was found (--daemon-namespace)")
    note = ""
    if len(daemons) > len(asked):
        note = f"what is used is read on {MOST_PAGES} of {len(daemons)} nodes: name some, or use -l"
    first = _page(read, asked[0], deadline)
    if isinstance(first, Forbidden):
        return Pages(note=f"what is used can't be read: {first}")
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="daemon-page") as pool:
        rest = list(pool.map(lambda pod: _page(read, pod, deadline), asked[1:]))
    answers = list(zip(asked, (first, *rest), strict=True))
    return Pages(
        by_node={pod.node_name: page for pod, page in answers if isinstance(page, bytes)},
        unread={pod.node_name: str(page) for pod, page in answers if not isinstance(page, bytes)},
        note=note,
    )


def _page(read: ReadPage, pod: Pod, deadline: Deadline) -> bytes | KubeError:
    port = pod.annotations.get(_PORT_KEY, _PORT)
    try:
        return read(pod, port if port.isdecimal() else _PORT, deadline)
    except KubeError as error:
        return error
