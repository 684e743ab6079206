"""Whether each node that is served offers what it has: by its annotations and kubelet's counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from hami_node.config.settings import plain
from hami_node.errors import WireError
from hami_node.model import DEFAULT_MODE, Device, Node
from hami_node.text import count
from hami_node.vendors.protocol import VendorProtocol
from hami_node.verify.checks.subject import Subject
from hami_node.verify.findings import Finding, ok, several, warning, words, wrong
from hami_node.verify.installation import Runs
from hami_node.wire import names
from hami_node.wire.closed import decode_closed
from hami_node.wire.handshake import LATE_S, HandshakeKind, decode_handshake
from hami_node.wire.values import parse_whole_quantity

_MOST: Final = 10
"""Findings of one check that are shown; nodes with the same words stand together."""
_AHEAD_S: Final = 60.0


@dataclass(slots=True)
class _Tally:
    """What was found on the nodes: by check and words, the nodes."""

    wrong: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    warned: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    limiters: dict[str, list[str]] = field(default_factory=dict)
    cards: int = 0
    nodes: int = 0

    def note(self, node: str, check: str, why: str, remedy: str) -> None:
        """Something is wrong on a node."""
        self.wrong.setdefault((check, words(why), remedy), []).append(node)

    def mention(self, node: str, check: str, why: str, remedy: str) -> None:
        """Something should be known of a node."""
        self.warned.setdefault((check, words(why), remedy), []).append(node)


_CHECKS: Final = ("cards", "kubelet", "handshake", "hand-over", "limiter")


def check_nodes(subject: Subject) -> Iterator[Finding]:
    """Every node on which a daemon of ours is Ready; one whose daemon is not was named before."""
    daemons = [
        pod.spec.node_name
        for part in subject.installed.running(Runs.DAEMON)
        for pod in part.pods
        if pod.is_ready
    ]
    served = [seen.node for seen in subject.installed.nodes if seen.node.name in set(daemons)]
    if not served:
        return
    tally = _Tally(nodes=len(served))
    for node in served:
        _look(subject, node, tally)
    yield from _findings(subject, tally)


def _look(subject: Subject, node: Node, tally: _Tally) -> None:
    registered: list[tuple[VendorProtocol, tuple[Device, ...]]] = []
    fixed = 0
    for vendor in subject.vendors:
        try:
            devices, own = vendor.registered_on(node), vendor.fixed_on(node)
        except WireError as error:
            tally.note(node.name, "cards", f"what it has published can't be read: {error}", "")
            continue
        fixed += len(own)
        if devices:
            registered.append((vendor, devices))
            _kubelet(subject, node, vendor, devices, tally)
            _handshake(subject, node, vendor, tally)
        if why := vendor.rival_on(node):
            tally.note(node.name, "cards", why, "")
    cards = [device for _, devices in registered for device in devices]
    tally.cards += len(cards) + fixed
    if not cards and not fixed:
        tally.note(
            node.name,
            "cards",
            "the daemon is Ready and has published no card",
            _logs(subject, "the driver, and about settings that leave cards alone"),
        )
    _health(node, cards, tally)
    _marks(subject, node, registered, tally)


def _logs(subject: Subject, about: str) -> str:
    pods = f"kubectl -n {subject.namespace} get pods -o wide"
    return f"read the log of the daemon there ({pods}): it says more about {about}"


def _kubelet(
    subject: Subject,
    node: Node,
    vendor: VendorProtocol,
    devices: Sequence[Device],
    tally: _Tally,
) -> None:
    """kubelet counts as many devices as the daemon has registered."""
    counted = [name for name in vendor.counted if _count(node.capacity.get(name, "0"))]
    if not counted:
        why = f"kubelet lists none of {vendor.counted[0]}"
        tally.note(
            node.name,
            "kubelet",
            why,
            _logs(subject, "its registration with kubelet, and about other plugins"),
        )
        return
    if vendor.cards.cores_are_mask or any(device.mode != DEFAULT_MODE for device in devices):
        return  # another plugin serves them, or parts of cards are counted
    name, slots = vendor.counted[0], sum(device.slots for device in devices)
    capacity = _count(node.capacity.get(name, "0"))
    healthy = sum(device.slots for device in devices if device.healthy)
    allocatable = _count(node.allocatable.get(name, "0"))
    if capacity != slots:
        why = f"kubelet counts {capacity} of {name}, and {slots} are registered for schedulers"
        remedy = "another plugin may serve the same resource: hami-node migrate check"
        tally.note(node.name, "kubelet", why, remedy)
    elif allocatable != healthy:
        why = f"kubelet offers {allocatable} of {name}, and {healthy} are on healthy cards"
        tally.mention(node.name, "kubelet", why, "run it again in a minute")


def _count(text: str) -> int:
    with suppress(WireError):
        return parse_whole_quantity(text, "")
    return -1


def _handshake(subject: Subject, node: Node, vendor: VendorProtocol, tally: _Tally) -> None:
    """The daemon still reports, or answers when it is asked."""
    key, settings = vendor.keys.handshake, subject.installed.settings_of(Runs.DAEMON)
    mode = plain(settings).get("handshake") if settings is not None else "always"
    if not key or (vendor.asks_handshakes and mode == "off"):
        return
    try:
        found = decode_handshake(node.annotations.get(key, ""), key)
    except WireError as error:
        tally.note(node.name, "handshake", str(error), "")
        return
    age_s = subject.now_s - (found.time_s or 0)
    is_awaited = found.kind is HandshakeKind.REQUESTING
    is_regular = not vendor.asks_handshakes or mode == "always"
    if found.kind is HandshakeKind.DELETED or (age_s > LATE_S and (is_awaited or is_regular)):
        why = f"the daemon has been silent for more than {LATE_S:.0f} s"
        remedy = _logs(subject, "errors of the API server; compare the clocks")
        tally.note(node.name, "handshake", why, remedy)
    elif age_s < -_AHEAD_S:
        why = f"its clock is more than {_AHEAD_S:.0f} s ahead of the one here"
        tally.mention(node.name, "handshake", why, "set both clocks by NTP")


def _health(node: Node, cards: Sequence[Device], tally: _Tally) -> None:
    """Cards that take no pod, with the reason."""
    try:
        reasons = decode_closed(node.annotations)
    except WireError as error:
        tally.note(node.name, "cards", str(error), "")
        reasons = {}
    for card in cards:
        why = reasons.get(card.uuid, "") or card.unhealthy_reason
        if not card.healthy or why:
            shown = f"card {card.index} ({card.uuid}) takes no pod: {why or 'it is unhealthy'}"
            tally.mention(node.name, "cards", shown, "docs/troubleshooting.md")


def _marks(
    subject: Subject,
    node: Node,
    registered: Sequence[tuple[VendorProtocol, Sequence[Device]]],
    tally: _Tally,
) -> None:
    """How containers get their cards, and what limits them."""
    hand_over = node.annotations.get(names.NODE_HAND_OVER, "")
    if hand_over.startswith(names.HAND_OVER_REFUSED):
        why = f"no container can be given a card: {hand_over.removeprefix(names.HAND_OVER_REFUSED)}"
        tally.note(node.name, "hand-over", why, "docs/driver.md")
    if names.NODE_SIMULATED in node.annotations:
        tally.mention(node.name, "cards", "its cards are simulated", "")
        return
    limiter = node.annotations.get(names.NODE_LIMITER, "")
    if limiter:
        tally.limiters.setdefault(words(limiter), []).append(node.name)
        return
    limited = [
        vendor
        for vendor, devices in registered
        if hand_over and any(device.mode == DEFAULT_MODE for device in devices)
    ]
    if limited:
        settings = subject.installed.settings_of(Runs.DAEMON)
        chosen = plain(settings) if settings is not None else {}
        if chosen.get("memory-limit-by") == "driver":
            return
        note = tally.mention if chosen.get("limiter") == "optional" else tally.note
        note(
            node.name, "limiter", "nothing that limits containers is on the node", "docs/limiter.md"
        )


def _findings(subject: Subject, tally: _Tally) -> Iterator[Finding]:
    where = f"of {count(tally.nodes, 'node')}"
    for check in _CHECKS:
        bad = [(key, nodes) for key, nodes in tally.wrong.items() if key[0] == check]
        odd = [(key, nodes) for key, nodes in tally.warned.items() if key[0] == check]
        for (_, why, remedy), nodes in bad[:_MOST]:
            yield wrong(check, f"{_on(nodes)}: {why}", remedy or _logs(subject, "this"))
        for (_, why, remedy), nodes in odd[:_MOST]:
            yield warning(check, f"{_on(nodes)}: {why}", remedy)
        more = len(bad[_MOST:]) + len(odd[_MOST:])
        if more:
            yield warning(check, f"{more} more findings of this kind are left out: see --node")
        if not bad and check == "limiter":
            yield from _limiters(tally)
        elif not bad and check != "hand-over":
            yield ok(check, _fine(check, tally, where))


def _on(nodes: Sequence[str]) -> str:
    return f"{'node' if len(nodes) == 1 else count(len(nodes), 'node')} {several(nodes)}"


def _fine(check: str, tally: _Tally, where: str) -> str:
    if check == "cards":
        return f"{count(tally.cards, 'card')} {where} registered"
    if check == "kubelet":
        return f"kubelet {where} counts what is registered"
    return f"the daemons {where} report"


def _limiters(tally: _Tally) -> Iterator[Finding]:
    if len(tally.limiters) > 1:
        shown = "; ".join(
            f"{version} on {count(len(nodes), 'node')}"
            for version, nodes in sorted(tally.limiters.items())[:_MOST]
        )
        what = f"nodes have different versions: {shown}"
        yield warning("limiter", words(what), "fine during a rollout; else docs/limiter.md")
    for version, nodes in tally.limiters.items() if len(tally.limiters) == 1 else ():
        yield ok("limiter", f"{version} on {count(len(nodes), 'node')}")
