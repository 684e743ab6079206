"""Answers of the extender's server, as they are sent. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

JSON: Final = "application/json"
_LARGE: Final = 64 * 1024
_PHRASES: Final = {status.value: status.phrase for status in HTTPStatus}
_DONE: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; `headers` are those beside length and type, and end no connection."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    closes: bool = False

    def pieces(self, *, is_last: bool, has_body: bool) -> tuple[bytes, ...]:
        """What is written: one piece, or two where a copy would be large.

        Args:
            is_last: the connection is closed afterwards.
            has_body: False for HEAD, which learns the length only.
        """
        head = self._head(is_last=is_last or self.closes)
        if not has_body:
            return (head,)
        return (head + self.body,) if len(self.body) < _LARGE else (head, self.body)

    def _head(self, *, is_last: bool) -> bytes:
        if self.status == 200 and self.content_type is JSON and not is_last and not self.headers:
            return _DONE % len(self.body)
        lines = [
            f"HTTP/1.1 {self.status} {_PHRASES.get(self.status, '')}",
            f"content-length: {len(self.body)}",
            f"content-type: {self.content_type}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if is_last:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def refusal(status: int, sentence: str, *headers: tuple[str, str], closes: bool = False) -> Answer:
    """`Error` is the key that kube-scheduler reads."""
    body = json.dumps({"Error": sentence}).encode()
    return Answer(status, body, headers=headers, closes=closes)


def text_answer(status: int, text: str) -> Answer:
    """For people and probes."""
    return Answer(status, text.encode(), "text/plain; charset=utf-8")
