"""What each kind of card has to say on the node object: desired annotations, no I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import Device, Node, Uuid
from hami_node.settings import HandshakeMode, RegisterFormat
from hami_node.wire import names
from hami_node.wire.handshake import Handshake, HandshakeKind, decode_handshake, encode_reported
from hami_node.wire.node_codec import (
    decode_register,
    encode_csv7,
    encode_csv9,
    encode_json,
    encode_pair_scores,
)

log = logging.getLogger(__name__)

UNANSWERED_S: Final = 60.0
"""After this time a handshake that no scheduler answers is told to people."""


ENCODERS: Final[Mapping[RegisterFormat, Callable[[tuple[Device, ...]], str]]] = {
    RegisterFormat.JSON: encode_json,
    RegisterFormat.CSV9: encode_csv9,
    RegisterFormat.CSV7: encode_csv7,
}


class Publication(Protocol):
    """One voice on the node object."""

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Annotations as they should stand, None for one that should not; unnamed ones stay.

        Args:
            node: the node as it is.
            now: Unix seconds.
        """

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """What is written once per interval even if nothing changed."""

    def farewell(self, node: Node) -> Mapping[str, str | None]:
        """What stands when the daemon ends."""


@dataclass(slots=True)
class _Dialogue:
    """What a scheduler's handshakes have told us so far."""

    is_2_4: bool = False
    reported_since: float | None = None
    was_answered: bool = False


class NvidiaPublication:
    """The register annotation, pair scores and handshake of NVIDIA cards."""

    def __init__(
        self,
        *,
        cards: Callable[[], tuple[Device, ...]],
        pair_scores: Callable[[], Mapping[Uuid, Mapping[Uuid, int]]],
        backend_error: Callable[[], str],
        register_format: Callable[[], RegisterFormat] = lambda: RegisterFormat.AUTO,
        handshake: Callable[[], HandshakeMode] = lambda: HandshakeMode.ALWAYS,
        on_unanswered: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Wire the sources. `on_unanswered` is told whether a handshake waits for too long."""
        self._cards = cards
        self._pair_scores = pair_scores
        self._backend_error = backend_error
        self._format = register_format
        self._handshake = handshake
        self._on_unanswered = on_unanswered
        self._dialogue: _Dialogue | None = None

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The register annotation in the form that the scheduler reads; scores if there are any."""
        self._listen(node, now)
        standing = node.annotations.get(names.NODE_REGISTER)
        cards = self._cards()
        if not cards and self._backend_error():
            cards = _all_unhealthy(standing)
        if not cards:
            return {names.NODE_REGISTER: None, names.NODE_PAIR_SCORES: None}
        scores = self._pair_scores()
        return {
            names.NODE_REGISTER: ENCODERS[self._chosen_format()](cards),
            names.NODE_PAIR_SCORES: encode_pair_scores(scores) if scores else None,
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The handshake, unless it is switched off or nobody asked and only requests count."""
        mode = self._handshake()
        if not self._cards() or mode is HandshakeMode.OFF:
            return {}
        word = _word(node)
        is_asked = word is not None and word.kind is not HandshakeKind.REPORTED
        if mode is HandshakeMode.ON_REQUEST and not is_asked:
            return {}
        return {names.NODE_HANDSHAKE: encode_reported(now)}

    def farewell(self, node: Node) -> Mapping[str, str | None]:
        """All cards unhealthy: nobody serves them until the next daemon runs."""
        cards = _all_unhealthy(node.annotations.get(names.NODE_REGISTER))
        if not cards:
            return {}
        return {names.NODE_REGISTER: ENCODERS[self._chosen_format()](cards)}

    def _chosen_format(self) -> RegisterFormat:
        asked = self._format()
        if asked is not RegisterFormat.AUTO:
            return asked
        is_2_4 = self._dialogue is not None and self._dialogue.is_2_4
        return RegisterFormat.CSV7 if is_2_4 else RegisterFormat.JSON

    def _listen(self, node: Node, now: float) -> None:
        """Learn from the standing handshake: our own word overwrites the scheduler's mark."""
        if self._dialogue is None:
            # A register text of 2.4 that stands there was our choice before a restart.
            self._dialogue = _Dialogue(is_2_4=_is_csv7(node.annotations.get(names.NODE_REGISTER)))
        talk = self._dialogue
        word = _word(node)
        if word is None:
            return
        if word.kind is not HandshakeKind.REPORTED:
            talk.is_2_4 = word.is_mark_of_2_4
            talk.was_answered, talk.reported_since = True, None
            self._on_unanswered(False)
            return
        if talk.reported_since is None:
            talk.reported_since = now
        elif not talk.was_answered and now - talk.reported_since > UNANSWERED_S:
            self._complain()

    def _complain(self) -> None:
        talk = self._dialogue
        if talk is None or talk.was_answered:
            return
        talk.was_answered = True  # said once
        self._on_unanswered(True)
        log.warning(
            "handshake_unanswered",
            extra=kv(
                annotation=names.NODE_HANDSHAKE,
                cure="a HAMi scheduler of 2.5 to 2.7 reads only --register-format csv9; "
                "without a HAMi scheduler use --handshake on-request",
            ),
        )


def _word(node: Node) -> Handshake | None:
    text = node.annotations.get(names.NODE_HANDSHAKE)
    if text is None:
        return None
    try:
        return decode_handshake(text)
    except WireError as e:
        log.debug("handshake_unreadable", extra=kv(error=str(e)))
        return None


def _is_csv7(text: str | None) -> bool:
    if not text or text.startswith("["):
        return False
    return text.partition(":")[0].count(",") == 6


def _all_unhealthy(text: str | None) -> tuple[Device, ...]:
    """The cards that a register text names, all unhealthy; () where it names none."""
    if not text:
        return ()
    try:
        cards = decode_register(text)
    except WireError as e:
        log.warning("register_unreadable", extra=kv(error=str(e)))
        return ()
    prefix = "" if text.startswith("[") else "NVIDIA-"
    return tuple(
        replace(card, healthy=False, model=card.model.removeprefix(prefix)) for card in cards
    )


class IdentityPublication:
    """Whether Allocate knows its pod from kubelet, so that a scheduler needs no node lock."""

    def __init__(self, *, is_readable: Callable[[], bool], simulated: bool = False) -> None:
        """Wire the question; `simulated` marks a node whose cards are not real."""
        self._is_readable = is_readable
        self._simulated = simulated

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The identity mark while the pod-resources socket answers; the mark of simulation."""
        del node, now
        identity = names.IDENTITY_POD_RESOURCES if self._is_readable() else None
        return {
            names.NODE_IDENTITY: identity,
            names.NODE_SIMULATED: "true" if self._simulated else None,
        }

    def heartbeat(self, node: Node, now: float) -> Mapping[str, str | None]:
        """Nothing: the mark is compared, not renewed."""
        del node, now
        return {}

    def farewell(self, node: Node) -> Mapping[str, str | None]:
        """Nobody answers Allocate: no promise stands."""
        del node
        return {names.NODE_IDENTITY: None}
