"""The gRPC service of the engine: calls in, answers out, errors as status codes.

Every method takes a stream, also those that are sent one message: then nothing of a message is read before the caller
was admitted (`gate.Gate`), counted (`Calls`) and, where memory is scarce, given a slot (`Limiter`). On the wire
there is no difference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from archipel.federation.controller.descriptors import most_connections
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.limiter import MOST_CALLS, Calls, Limiter, TooManyCalls, current_call
from archipel.federation.controller.terms import Missing, Rejected, RetryLater
from archipel.federation.security.gate import AGES, CALLER, Gate
from archipel.federation.security.names import Identity
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import CHUNK, LIMITS, NAME
from archipel.federation.wire.pieces import Portion, decode_portion, encoded

T = TypeVar("T")

CODES: dict[type[Exception], grpc.StatusCode] = {
    Rejected: grpc.StatusCode.FAILED_PRECONDITION,
    Missing: grpc.StatusCode.NOT_FOUND,
    RetryLater: grpc.StatusCode.ABORTED,
    TooManyCalls: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TimeoutError: grpc.StatusCode.DEADLINE_EXCEEDED,
    DecodeError: grpc.StatusCode.INVALID_ARGUMENT,
}
BLAMELESS = (RetryLater, TooManyCalls, TimeoutError)
"""Errors that are not in the audit: the caller may have done nothing wrong."""

THRIFT: list[tuple[str, Any]] = [
    # what a learner may send before it is read: the rest of an update waits with the learner, not here
    ("grpc.http2.lookahead_bytes", 4096),
    # otherwise each connection keeps a buffer of 64 KiB after an update
    ("grpc.experimental.tcp_max_read_buffer_size", 8192),
]
"""Options that keep the memory of a thousand connections small."""
GUARDS: list[tuple[str, Any]] = [
    ("grpc.server_handshake_timeout_ms", 10_000),  # a silent connection is closed
    ("grpc.max_concurrent_streams", MOST_CALLS),
]
SMALL_UPDATES = 64
"""Updates of one message that may be received at a time, until they are on disk."""
ARRIVAL = 0.2
"""Seconds after which one that is still arriving, as over a slow connection, no longer counts among them."""
READING = 15.0
"""Timeout in seconds for the next message of a caller."""
WRITING = 60.0
"""Timeout in seconds for a caller to read a message."""
HANDLING = 60.0
"""Timeout in seconds for an answer, without the time for reading."""
BRING_UPDATES = ("Reply", "Answer", "Fetch")
"""Calls that a learner makes about once for each order; the others are counted against its quota."""
SMALL = 1 << 16
"""Bytes of a message that carries neither a model nor statistics of features."""


async def serve(
    federation: Federation, address: str, credentials: grpc.ServerCredentials | None
) -> tuple[grpc.aio.Server, int]:
    """Listen on an address, which without credentials must be loopback; return the server and its port."""

    def certified(who: Identity, expires: datetime) -> None:
        federation.status.record_certificate(str(who), expires)

    await federation.open()
    gate = Gate(
        federation.admissions.objection,
        federation.status.turned_away,
        insecure=credentials is None,
        revoked=federation.revoked,
        on_certificate=certified,
    )
    federation.workers.start(gate.watch())
    most = most_connections(len(federation.sessions))
    options = [*LIMITS, *THRIFT, *GUARDS, *AGES, ("grpc.max_allowed_incoming_connections", most)]
    server = grpc.aio.server(interceptors=(gate,), options=options)
    server.add_generic_rpc_handlers((Service(federation).handlers(),))
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise OSError(
            f"Cannot listen on {address}: is another process listening there, or is it not an address of this machine?"
        ) from None
    await server.start()
    return server, port


class Portions:
    """The messages of an answer: gRPC's own iterator would keep each one until the next is requested."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __aiter__(self) -> Portions:
        return self

    async def __anext__(self) -> Portion:
        said = await self._context.read()
        if said is grpc.aio.EOF:
            raise StopAsyncIteration
        return decode_portion(said)


class Service:
    """The methods of the gRPC service."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._calls: Calls = federation.calls
        self._small_updates = Limiter(SMALL_UPDATES, ARRIVAL)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers for gRPC."""
        federation, joining = self._federation, self._federation.joining
        one_answer = {
            "Join": self._unary(pb.Hello.FromString, lambda m: joining.join(_learner(), m), joining.most_bytes),
            "Beat": self._unary(pb.Pulse.FromString, lambda m: joining.beat(_learner(), m)),
            "Stored": self._unary(pb.Parcel.FromString, lambda m: federation.answers.stored(_learner(), m)),
            "Reply": self._reply,
            "Answer": self._answer,
            "Steer": self._unary(pb.Wish.FromString, lambda m: federation.operators.steer(CALLER.get(), m)),
            "Look": self._unary(pb.Glance.FromString, self._look),
        }
        many_answers = {
            "Listen": self._listen,
            "Fetch": self._fetch,
        }
        made: dict[str, Any] = {
            **{name: grpc.stream_unary_rpc_method_handler(self._guarded(name, m)) for name, m in one_answer.items()},
            **{name: grpc.stream_stream_rpc_method_handler(self._guarded(name, m)) for name, m in many_answers.items()},
        }
        return grpc.method_handlers_generic_handler(NAME, made)

    def _guarded(self, name: str, method: Callable[[Any], Awaitable[T]]) -> Callable[..., Awaitable[T]]:
        """Count a call, and turn errors into status codes."""

        async def call(_: object, context: Any) -> T:
            caller = CALLER.get()
            try:
                self._calls.begin(caller)
                if name not in BRING_UPDATES:
                    await self._calls.pace(caller, self._federation.log.now)
                return await method(context)
            except asyncio.CancelledError:
                reason = self._calls.why_ended()
                if reason is None:
                    raise  # the caller hung up
                current_call().uncancel()
                async with asyncio.timeout(WRITING):  # a caller that reads nothing would not read this either
                    await context.abort(grpc.StatusCode.ABORTED, reason)
                raise
            except tuple(CODES) as error:
                if not isinstance(error, BLAMELESS):
                    self._federation.status.refused(caller.name, name, str(error))
                await self._calls.pace(caller, self._federation.log.now, failed=True)
                kind = next(kind for kind in CODES if isinstance(error, kind))
                await context.abort(CODES[kind], str(error) or "The call took too long.")
                raise

        return call

    def _unary(
        self, decode: Callable[[bytes], Any], answer: Callable[[Any], Awaitable[Any]], most: int = SMALL
    ) -> Callable[[Any], Awaitable[bytes]]:
        async def method(context: Any) -> bytes:
            message = decode(await _read(context, most))
            async with asyncio.timeout(HANDLING):
                return encoded(await answer(message))

        return method

    async def _look(self, _: pb.Glance) -> pb.Status:
        return pb.Status(told=json.dumps(self._federation.status.report(CALLER.get())))

    async def _reply(self, context: Any) -> bytes:
        name = _learner()
        slot = await self._small_updates.acquire(name)
        try:
            portion = decode_portion(await _read(context, 4 * CHUNK))
            slot.keep()  # the message has arrived, and is in memory until it is on disk
            async with asyncio.timeout(HANDLING):
                return encoded(await self._federation.answers.reply(name, portion))
        finally:
            slot.release()

    async def _answer(self, context: Any) -> bytes:
        return encoded(await self._federation.answers.answer(_learner(), Portions(context)))

    async def _listen(self, context: Any) -> None:
        name = _learner()
        await _read(context, SMALL)
        self._calls.listen(CALLER.get())
        await _send(context, self._federation.orders.listen(name))

    async def _fetch(self, context: Any) -> None:
        want = pb.Want.FromString(await _read(context, CHUNK))
        await _send(context, self._federation.orders.fetch(_learner(), want))


async def _read(context: Any, most: int) -> bytes:
    """Read the one message of a call."""
    async with asyncio.timeout(READING):
        message = await context.read()
    if message is grpc.aio.EOF:
        raise Rejected("The call came without a message.")
    if len(message) > most:
        raise Rejected(f"The message has {len(message):,} bytes, and such a call may have {most:,}.")
    return bytes(message)


async def _send(context: Any, messages: AsyncGenerator[bytes]) -> None:
    """Send messages one by one; none is kept in memory while waiting for the next."""
    async with aclosing(messages):  # otherwise its memory would stay until the next garbage collection
        async for message in messages:
            async with asyncio.timeout(WRITING):
                await context.write(message)
            del message


def _learner() -> str:
    caller = CALLER.get()
    if caller.kind != "learner":
        raise Rejected(f"{caller.name} is an {caller.kind}, not a learner.")
    return caller.name
