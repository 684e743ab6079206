"""What clients of an HTTP server of ours may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may use. Bytes, seconds, numbers of threads and connections.

    20,000 names of nodes are 1 MB, 5 MB if all are as long as they may be; a pod is 3 MiB at most.

    Attributes:
        values: in the JSON of a body; each takes far more memory than its bytes.
        request_s: until a request has arrived, head and body.
        answer_s: until its answer has been read.
        handshake_s: until a client has finished its TLS handshake.
        bodies_bytes: of all bodies that are held at a time, from their first byte to the answer.
        max_connections: from accept on; half of them may be in their handshake.
        unread_answer_s: a client that acknowledges nothing for so long is gone.
    """

    filter_body_bytes: int = 8 * 1024 * 1024
    bind_body_bytes: int = 64 * 1024
    webhook_body_bytes: int = 4 * 1024 * 1024
    values: int = 250_000
    head_bytes: int = 16 * 1024
    request_s: float = 10.0
    answer_s: float = 10.0
    handshake_s: float = 5.0
    bodies_bytes: int = 32 * 1024 * 1024
    filter_workers: int = 4
    bind_workers: int = 128
    webhook_workers: int = 4
    preempt_workers: int = 2
    max_connections: int = 512
    unread_answer_s: float = 30.0
    certificate_check_s: float = 5.0
