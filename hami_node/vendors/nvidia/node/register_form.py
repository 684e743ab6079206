"""Which form of the register annotation a scheduler here reads, found out by its answers.

HAMi's schedulers skip a node whose register text they can't read, and so never answer its
handshake; what they knew of the node they keep. So a form that nobody answers is changed for
another for a minute. Schedulers of csv9 answer every handshake, those of JSON perhaps only the
first; so JSON that was answered is kept, and csv9 until its answers end.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.model import Node
from hami_node.ports import Record
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import RegisterFormat
from hami_node.wire import names as wire_names
from hami_node.wire.handshake import Handshake, HandshakeKind
from hami_node.wire.register import is_json

log = logging.getLogger(__name__)

PATIENCE_S: Final = (60.0, 600.0, 3600.0, 21600.0)
"""Silence before each attempt with the other form; the last stays."""
TRIAL_S: Final = 60.0
ANSWER_S: Final = 20.0
"""A scheduler looks at its nodes every 15 s."""
LONGEST_TRIAL_S: Final = 300.0
SETTLE_S: Final = 5.0
"""An answer sooner after a change of the form may be one to the form before."""
_OTHER: Final = {
    RegisterFormat.JSON: RegisterFormat.CSV9,
    RegisterFormat.CSV9: RegisterFormat.JSON,
}


class _Kept(msgspec.Struct, frozen=True):
    """The record.

    Attributes:
        form: the form to stay with.
        is_answered: a scheduler has answered it.
        is_marked: our own extender has said that it reads this node.
        tries: how often the other form was tried since.
    """

    form: RegisterFormat = RegisterFormat.JSON
    is_answered: bool = False
    is_marked: bool = False
    tries: int = 0


class FormChoice:
    """The form under `register-format: auto`. Used by one thread. Times are Unix seconds."""

    def __init__(self, record: Record | None = None) -> None:
        """Nothing is read from the record before the node is seen."""
        self._record = record
        self._kept: _Kept | None = None
        self._is_2_4 = False
        self._silent_s: float | None = None
        self._trial_s: float | None = None
        self._since_s: float | None = None
        """When the form was first seen on the node; None before."""
        self._asked_s: float | None = None
        """When our handshake was written under it, settled; None before."""
        self._last = ""
        """The handshake text that is no answer to it, or has been dealt with."""
        self._is_json_likely = False  # an answer came, perhaps still to csv9

    @property
    def form(self) -> RegisterFormat:
        """What to write now."""
        kept = self._kept or _Kept()
        if self._is_2_4 and not kept.is_marked:
            return RegisterFormat.CSV7
        return kept.form if self._trial_s is None else _OTHER[kept.form]

    def observe(
        self, node: Node, handshake: Handshake | None, now: float, *, may_try: bool
    ) -> None:
        """Take in the node as it is. `may_try`: our handshake is written all the time."""
        try:
            kept = self._kept or self._first(node, handshake)
        except RecordError:  # its disk hangs: what is on it is asked for again
            return
        self._obey_mark(node, kept)
        self._see_form(node, now)
        if handshake is None:
            return
        if handshake.kind is not HandshakeKind.REPORTED:
            if self._is_2_4 is not handshake.is_mark_of_2_4:
                self._is_2_4, self._trial_s = handshake.is_mark_of_2_4, None
                self._since_s, self._asked_s, self._last = None, None, ""
            self._take_answer(node.annotations[names.NODE_HANDSHAKE], now)
            return
        self._silent_s = now if self._silent_s is None else min(self._silent_s, now)
        if may_try and not self._is_2_4:
            self._wait_or_try(now)

    def asked(self, node: Node, now: float) -> None:
        """Our handshake is about to be written on the node as it is."""
        if self._is_settled(now):
            self._asked_s, self._last = now, node.annotations.get(names.NODE_HANDSHAKE, "")

    def _first(self, node: Node, handshake: Handshake | None) -> _Kept:
        """What the record says; else what a plugin or daemon before us has left on the node."""
        standing = form_of(node.annotations.get(names.NODE_REGISTER))
        self._is_2_4 = standing is RegisterFormat.CSV7  # our choice before a restart
        kept = self._load() or _Kept()
        is_asked_for = handshake is not None and handshake.kind is not HandshakeKind.REPORTED
        if is_asked_for and not kept.is_answered and standing is not None and standing in _OTHER:
            is_answered = standing is RegisterFormat.JSON
            kept = msgspec.structs.replace(kept, form=standing, is_answered=is_answered)
        if standing in (None, kept.form):
            self._last = node.annotations.get(names.NODE_HANDSHAKE, "")
            self._since_s = float("-inf")  # nothing else was there
        self._kept = kept
        return kept

    def _obey_mark(self, node: Node, kept: _Kept) -> None:
        """Our own extender reads JSON; when its mark is gone, another scheduler may have come."""
        mark = node.annotations.get(wire_names.NODE_READ_BY, "")
        is_marked = mark.partition(" ")[0] == wire_names.READ_BY_EXTENDER
        if is_marked != kept.is_marked:
            self._settle(_Kept(is_marked=is_marked, is_answered=is_marked))

    def _see_form(self, node: Node, now: float) -> None:
        if self._since_s is None:
            if form_of(node.annotations.get(names.NODE_REGISTER)) is self.form:
                self._since_s = now
            return
        self._since_s = min(self._since_s, now)  # the clock may have been set back
        if self._asked_s is not None:
            self._asked_s = min(self._asked_s, now)

    def _is_settled(self, now: float) -> bool:
        """True once the form has stood for a while."""
        return self._since_s is not None and now - self._since_s >= SETTLE_S

    def _take_answer(self, text: str, now: float) -> None:
        """A scheduler has written: if the form has stood for a while, it reads that."""
        kept = self._kept or _Kept()
        if self._trial_s is None:
            self._silent_s = None
        if text == self._last or self._is_2_4 or kept.is_marked:
            return
        self._last = text
        if self._is_settled(now):
            if not kept.is_answered or self._trial_s is not None:
                log.info("register_form_answered", extra=kv(form=self.form.value))
                self._settle(_Kept(form=self.form, is_answered=True))
            self._is_json_likely = False
        elif self.form is RegisterFormat.JSON:
            self._is_json_likely = True
            if self._trial_s is not None:
                self._change_trial(None, now)  # a scheduler of csv9 answers again

    def _wait_or_try(self, now: float) -> None:
        kept = self._kept or _Kept()
        silent_s = 0.0 if self._silent_s is None else now - self._silent_s
        is_csv9 = kept.form is RegisterFormat.CSV9
        if self._trial_s is not None:
            self._trial_s = min(self._trial_s, now)
            if self._is_trial_over(now - self._trial_s, now):
                log.info("register_form_unanswered", extra=kv(form=self.form.value))
                if self._is_json_likely and not is_csv9:
                    self._settle(_Kept(is_answered=True))
                else:
                    self._change_trial(None, now)
        elif self._is_json_likely and is_csv9 and silent_s >= PATIENCE_S[0]:
            self._settle(_Kept(is_answered=True))
        elif not self._stays(kept) and silent_s >= _patience_s(kept):
            self._save(msgspec.structs.replace(kept, tries=kept.tries + 1))
            self._change_trial(now, now)
            log.info("register_form_tried", extra=kv(form=self.form.value, silent_s=silent_s))

    def _is_trial_over(self, lasted_s: float, now: float) -> bool:
        was_heard = self._asked_s is not None and now - self._asked_s >= ANSWER_S
        return lasted_s >= LONGEST_TRIAL_S or (lasted_s >= TRIAL_S and was_heard)

    @staticmethod
    def _stays(kept: _Kept) -> bool:
        """JSON is read by whoever has answered it once, silent or not."""
        return kept.is_marked or (kept.is_answered and kept.form is RegisterFormat.JSON)

    def _change_trial(self, trial_s: float | None, now: float) -> None:
        self._trial_s, self._silent_s = trial_s, now
        self._since_s = self._asked_s = None

    def _settle(self, kept: _Kept) -> None:
        before = self.form
        self._trial_s = self._silent_s = None
        self._is_json_likely = False
        self._save(kept)
        if self.form is not before:
            self._since_s = self._asked_s = None

    def _load(self) -> _Kept | None:
        payload = self._record.load() if self._record is not None else None
        if payload is None:
            return None
        try:
            kept = msgspec.json.decode(payload, type=_Kept)
        except msgspec.DecodeError as e:
            log.error("register_form_unreadable", extra=kv(reason=str(e)))  # noqa: TRY400  no bug
            return None
        return kept if kept.form in _OTHER else None

    def _save(self, kept: _Kept) -> None:
        self._kept = kept
        if self._record is not None:
            self._record.put(msgspec.json.encode(kept))


def form_of(text: str | None) -> RegisterFormat | None:
    """The form of a register text; None for no text or another."""
    if not text:
        return None
    if is_json(text):
        return RegisterFormat.JSON
    commas = text.partition(":")[0].count(",")
    return {6: RegisterFormat.CSV7, 8: RegisterFormat.CSV9}.get(commas)


def _patience_s(kept: _Kept) -> float:
    """A form that was answered is given up later: its scheduler may only be away."""
    return PATIENCE_S[min(kept.tries + kept.is_answered, len(PATIENCE_S) - 1)]
