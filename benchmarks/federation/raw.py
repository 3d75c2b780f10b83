"""What a round costs at least: the same bytes down and up through bare gRPC streams, and as safe on the disk.

One server, clients in other processes, mutual TLS, pieces of 1 MiB. What comes up is written under another name,
brought to the disk, renamed, and the folder is brought to the disk; each under a name of its own, for what was
acknowledged is not to be written over by the next. Nobody hashes, checks, merges or keeps a journal: a name could say
whose update it is, so that a design without a journal may be as durable.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc

from archipel.federation.security.tls import channel_credentials, server_credentials
from archipel.federation.wire.channel import CHUNK, LIMITS
from archipel.storage.atomic_files import fsync_directory


def rounds(papers: Path, folder: Path, names: list[str], size: int, count: int) -> list[float]:
    """Seconds of each round, from the first byte down to the last acknowledgement."""
    context = multiprocessing.get_context("spawn")
    ports: Any = context.Queue()
    times: Any = context.Queue()
    server = context.Process(target=_serve, args=(papers, folder, size, ports), daemon=True)
    server.start()
    port = ports.get(timeout=60)
    clients = context.Process(target=_call, args=(papers, names, port, size, count, times), daemon=True)
    clients.start()
    found: list[float] = times.get(timeout=600)
    clients.join()
    server.kill()
    return found


def _serve(papers: Path, folder: Path, size: int, ports: Any) -> None:
    model = os.urandom(size)
    numbers = itertools.count()

    async def down(_: bytes, context: Any) -> AsyncIterator[bytes]:
        for place in range(0, size, CHUNK):
            yield model[place : place + CHUNK]

    async def up(pieces: AsyncIterator[bytes], context: Any) -> bytes:
        loop = asyncio.get_running_loop()
        path = folder / f"{next(numbers)}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        async for piece in pieces:
            await loop.run_in_executor(None, os.write, file, piece)
        await loop.run_in_executor(None, _keep, file, path)
        return b"kept"

    async def serve() -> None:
        server = grpc.aio.server(options=LIMITS)
        handlers: dict[str, Any] = {
            "Down": grpc.unary_stream_rpc_method_handler(down),
            "Up": grpc.stream_unary_rpc_method_handler(up),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", handlers),))
        port = server.add_secure_port("127.0.0.1:0", server_credentials(papers / "controller"))
        await server.start()
        ports.put(port)
        await server.wait_for_termination()

    asyncio.run(serve())


def _keep(file: int, path: Path) -> None:
    os.fsync(file)
    os.close(file)
    os.replace(path, path.with_suffix(".kept"))
    fsync_directory(path.parent)


def _call(papers: Path, names: list[str], port: int, size: int, count: int, times: Any) -> None:
    async def one(channel: grpc.aio.Channel) -> None:
        model = bytearray()
        down: Any = channel.unary_stream("/raw/Down")
        up: Any = channel.stream_unary("/raw/Up")
        async for piece in down(b""):
            model.extend(piece)
        assert len(model) == size
        view = memoryview(model)

        def pieces() -> Iterator[bytes]:
            for place in range(0, size, CHUNK):
                yield bytes(view[place : place + CHUNK])

        assert await up(pieces()) == b"kept"

    async def call() -> None:
        channels = [
            grpc.aio.secure_channel(f"localhost:{port}", channel_credentials(papers / name), LIMITS) for name in names
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        found = []
        for _ in range(count):
            began = time.monotonic()
            await asyncio.gather(*map(one, channels))
            found.append(time.monotonic() - began)
        times.put(found)

    asyncio.run(call())
