"""A network that fails: a proxy between a learner and its controller that delays, drops, cuts and heals.

stall      nothing gets through and nobody is told: data stay in buffers, as in a network that is partitioned;
           new connections are accepted and get no answer
heal       data that were held back are forwarded
abandon    present connections are dead for good without notice (half-open); those made from now on work
cut        present connections are closed
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

BLOCK = 1 << 16


@dataclass(eq=False)
class Connection:
    writers: list[asyncio.StreamWriter]
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    def __init__(self, target: int, delay: float = 0.0) -> None:
        """`target`: the port that it forwards to; `delay`: seconds that every piece of data takes."""
        self.target = target
        self.delay = delay
        self.port = 0
        self.passed = 0
        """Bytes that got through."""
        self._up = asyncio.Event()
        self._down = asyncio.Event()
        self.heal()
        self._connections: set[Connection] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FaultProxy:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------------- faults

    def stall(self, *, up: bool = True, down: bool = True) -> None:
        """`up`: from the learner to the controller."""
        if up:
            self._up.clear()
        if down:
            self._down.clear()

    def heal(self) -> None:
        self._up.set()
        self._down.set()

    def abandon(self) -> int:
        """How many there were."""
        for connection in self._connections:
            connection.abandoned.set()
        return len(self._connections)

    def cut(self) -> None:
        for connection in self._connections:
            for writer in connection.writers:
                writer.close()

    # --------------------------------------------------------------------------------------------------- forwarding

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        connection = Connection([writer, back])
        self._connections.add(connection)
        pumps = [
            asyncio.create_task(self._pump(connection, reader, back, self._up)),
            asyncio.create_task(self._pump(connection, there, writer, self._down)),
        ]
        self._pumps |= {*pumps}
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            self._pumps -= {*pumps}
            self._connections.discard(connection)
            for one in connection.writers:
                one.close()

    async def _pump(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(BLOCK):
                if self.delay:
                    await asyncio.sleep(self.delay)
                await gate.wait()
                if connection.abandoned.is_set():
                    await asyncio.Event().wait()  # and nobody is told
                writer.write(data)
                await writer.drain()
                self.passed += len(data)
        if connection.abandoned.is_set() or not gate.is_set():
            await asyncio.Event().wait()  # a goodbye does not get through either
