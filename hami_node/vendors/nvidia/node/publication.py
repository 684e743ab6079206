"""What is published about NVIDIA cards on the node object: cards, links, handshake; no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import Device, Node, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import HandshakeMode, RegisterFormat
from hami_node.vendors.nvidia.codec import (
    CSV_TYPE_PREFIX,
    decode_register,
    decode_shares,
    encode_csv7,
    encode_csv9,
    encode_json,
    encode_shares,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.register_form import FormChoice
from hami_node.vendors.nvidia.protocol import rival_on
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.publication import CardSources
from hami_node.wire import names as wire_names
from hami_node.wire.handshake import (
    Handshake,
    HandshakeKind,
    counts_inits,
    decode_handshake,
    encode_reported,
)
from hami_node.wire.register import encode_pair_scores, is_json

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.node.mig.registered import RegisteredMig

log = logging.getLogger(__name__)

KEYS: Final = (
    names.NODE_REGISTER,
    names.NODE_PAIR_SCORES,
    names.NODE_STANDALONE,
    names.NODE_MIG,  # versions before this one wrote it
)
"""What is compared with the node at every report."""
UNANSWERED_S: Final = 60.0
"""After this time a handshake that no scheduler answers is reported to people."""


ENCODERS: Final[Mapping[RegisterFormat, Callable[[tuple[Device, ...]], str]]] = {
    RegisterFormat.JSON: encode_json,
    RegisterFormat.CSV9: encode_csv9,
    RegisterFormat.CSV7: encode_csv7,
}


@dataclass(slots=True)
class _SchedulerState:
    """What is known of the scheduler from its handshakes so far."""

    reported_since: float | None = None
    was_answered: bool = False


class NvidiaPublication:
    """The register annotation, pair scores and handshake of NVIDIA cards."""

    def __init__(self, sources: CardSources, settings: Callable[[], NvidiaSettings]) -> None:
        """Publish what `sources` return, in the form that the settings name."""
        self._sources, self._settings = sources, settings
        self._scheduler, self._rival = _SchedulerState(), ""
        self._mig: RegisteredMig | None = None
        records = sources.records
        self._choice = FormChoice(records("register-form") if records is not None else None)

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The register annotation in the form that the scheduler reads; scores if there are any."""
        self._observe_handshake(node, now)
        self._observe_rival(node)
        standing = node.annotations.get(names.NODE_REGISTER)
        cards = self._sources.cards()
        if not cards and self._sources.backend_error():
            cards = _all_unhealthy(standing)
        if not cards:
            return {**dict.fromkeys(KEYS), **_outdated_mark(node)}
        scores = self._sources.pair_scores()
        return {
            **dict.fromkeys(KEYS),
            names.NODE_REGISTER: self._register(cards),
            names.NODE_PAIR_SCORES: encode_pair_scores(scores) if scores else None,
            **_outdated_mark(node),
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The handshake, unless it is off, or sent on request only and nobody requested it."""
        mode = self._settings().handshake
        if not self._sources.cards() or mode is HandshakeMode.OFF:
            return {}
        handshake = _handshake_of(node)
        is_requested = handshake is not None and handshake.kind is not HandshakeKind.REPORTED
        if mode is HandshakeMode.ON_REQUEST and not is_requested:
            return {}
        self._choice.asked(node, now)
        return {names.NODE_HANDSHAKE: encode_reported(now)}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """All cards unhealthy: they are not served until the next daemon runs."""
        cards = _all_unhealthy(node.annotations.get(names.NODE_REGISTER))
        if not cards:
            return {}
        return {names.NODE_REGISTER: self._register(cards)}

    def _register(self, cards: tuple[Device, ...]) -> str:
        form = self._chosen_format()
        if any(card.mode == Mode.MIG for card in cards):
            if self._mig is None:  # most nodes have no card in MIG mode, and load nothing for it
                from hami_node.vendors.nvidia.node.mig.registered import RegisteredMig

                self._mig = RegisteredMig(self._settings)
            cards = self._mig.as_registered(cards, form)
        return ENCODERS[form](cards)

    def _chosen_format(self) -> RegisterFormat:
        configured = self._settings().register_format
        return self._choice.form if configured is RegisterFormat.AUTO else configured

    def _observe_handshake(self, node: Node, now: float) -> None:
        """Remember the current handshake, because our own overwrites the scheduler's."""
        scheduler, handshake = self._scheduler, _handshake_of(node)
        settings = self._settings()
        if settings.register_format is RegisterFormat.AUTO:
            may_try = settings.handshake is HandshakeMode.ALWAYS
            self._choice.observe(node, handshake, now, may_try=may_try)
        if handshake is None:
            return
        if handshake.kind is not HandshakeKind.REPORTED:
            scheduler.was_answered, scheduler.reported_since = True, None
            self._sources.on_unanswered(False)
            return
        if scheduler.reported_since is None:
            scheduler.reported_since = now
        elif not scheduler.was_answered and now - scheduler.reported_since > UNANSWERED_S:
            self._report_unanswered(scheduler)

    def _observe_rival(self, node: Node) -> None:
        """Log once that somebody else gives out the cards."""
        rival = rival_on(node)
        if rival and rival != self._rival:
            log.warning("second_allocator", extra=kv(reason=rival))
        self._rival = rival

    def _report_unanswered(self, scheduler: _SchedulerState) -> None:
        scheduler.was_answered = True  # reported only once
        self._sources.on_unanswered(True)
        log.warning(
            "handshake_unanswered",
            extra=kv(
                annotation=names.NODE_HANDSHAKE,
                hint="a HAMi scheduler of 2.5 to 2.7 reads only csv9, which --register-format auto "
                "tries now and then; without a HAMi scheduler use --handshake on-request",
            ),
        )


class StandalonePublication:
    """The cards of a node that serves fixed shares: for people only, so that no scheduler comes.

    What is taken of them is renewed once per interval, however many pods come and go.
    """

    def __init__(self, sources: CardSources) -> None:
        """Publish what `sources` return."""
        self._sources = sources
        self._used: Mapping[Uuid, DeviceUsage] = {}

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The cards, each with as many slots as shares; nothing of ours that schedulers read.

        A scheduler's own handshake is left alone: it would only write it again.
        """
        del now
        wanted: dict[str, str | None] = {
            **dict.fromkeys(KEYS),
            names.NODE_STANDALONE: self._text(node),
        }
        handshake = _handshake_of(node)
        if handshake is not None and handshake.kind is HandshakeKind.REPORTED:
            wanted[names.NODE_HANDSHAKE] = None
        return wanted

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """What is taken of the cards, if that has changed."""
        del now
        self._used = dict(self._sources.used())
        text = self._text(node)
        is_new = text != node.annotations.get(names.NODE_STANDALONE)
        return {names.NODE_STANDALONE: text} if is_new else {}

    def shutdown(self, node: Node) -> Mapping[str, str | None]:
        """All cards unhealthy: they are not served until the next daemon runs."""
        standing = _standing(node)
        return {names.NODE_STANDALONE: _unhealthy_text(standing)} if standing else {}

    def _text(self, node: Node) -> str | None:
        cards = self._sources.cards()
        if cards:
            return encode_shares(cards, self._used)
        standing = _standing(node) if self._sources.backend_error() else ()
        return _unhealthy_text(standing) if standing else None


def _standing(node: Node) -> tuple[DeviceUsage, ...]:
    """The shares that the node object shows; () where they can't be read."""
    try:
        return decode_shares(node.annotations.get(names.NODE_STANDALONE, "[]"))
    except WireError as e:
        log.warning("shares_unreadable", extra=kv(error=str(e)))
        return ()


def _unhealthy_text(standing: Sequence[DeviceUsage]) -> str:
    cards = [replace(use.device, healthy=False) for use in standing]
    return encode_shares(cards, {use.device.uuid: use for use in standing})


def _handshake_of(node: Node) -> Handshake | None:
    text = node.annotations.get(names.NODE_HANDSHAKE)
    if text is None:
        return None
    try:
        return decode_handshake(text, names.NODE_HANDSHAKE)
    except WireError as e:
        log.debug("handshake_unreadable", extra=kv(error=str(e)))
        return None


def _outdated_mark(node: Node) -> Mapping[str, str]:
    """Our extender's mark once another scheduler asks: what it says of init containers goes."""
    mark = node.annotations.get(wire_names.NODE_READ_BY, "")
    handshake = node.annotations.get(names.NODE_HANDSHAKE, "")
    is_outdated = mark.startswith(wire_names.READ_BY_COUNTING_INITS) and not counts_inits(
        mark, handshake
    )
    return {wire_names.NODE_READ_BY: wire_names.READ_BY_EXTENDER} if is_outdated else {}


def _all_unhealthy(text: str | None) -> tuple[Device, ...]:
    """The cards of a register text, all unhealthy; () without any."""
    if not text:
        return ()
    try:
        cards = decode_register(text)
    except WireError as e:
        log.warning("register_unreadable", extra=kv(error=str(e)))
        return ()
    prefix = "" if is_json(text) else CSV_TYPE_PREFIX
    return tuple(
        replace(card, healthy=False, model=card.model.removeprefix(prefix)) for card in cards
    )
