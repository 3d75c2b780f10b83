"""The engine behind gRPC: calls in, answers out, and errors as words."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import grpc

from archipel.federation.controller.descriptors import most_connections
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.limiter import Turn, Turns
from archipel.federation.controller.terms import Busy, Missing, Rejected
from archipel.federation.security.gate import AGES, CALLER, Gate, Turned
from archipel.federation.security.names import Identity
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import LIMITS, NAME
from archipel.federation.wire.pieces import Portion, hear_portion, written

log = logging.getLogger("archipel.federation")
T = TypeVar("T")

CODES = {
    Rejected: grpc.StatusCode.FAILED_PRECONDITION,
    Missing: grpc.StatusCode.NOT_FOUND,
    Busy: grpc.StatusCode.ABORTED,
}

REPLY = f"/{NAME}/Reply"
THRIFT: list[tuple[str, Any]] = [
    # what a learner may send before it is read: the rest of an update waits with the learner, not here
    ("grpc.http2.lookahead_bytes", 4096),
    # otherwise a connection that has carried an update keeps 64 KiB to read the next one into
    ("grpc.experimental.tcp_max_read_buffer_size", 8192),
]
"""So that a thousand connections fit into little memory."""
HANDSHAKE = ("grpc.server_handshake_timeout_ms", 10_000)
"""A connection that says nothing is closed: it takes the place of one that would."""
SMALL_ONES = 64
"""Updates of one message that may be on their way in, up to the disk."""
ARRIVAL = 0.2
"""Seconds after which one that has not arrived, as on a slow line, does not count among them any more."""
TURN: ContextVar[Turn] = ContextVar("TURN")
"""That of a call which brings a small update."""


async def serve(
    federation: Federation, address: str, credentials: grpc.ServerCredentials | None
) -> tuple[grpc.aio.Server, int]:
    """Listen at an address, and at which port; without credentials only on loopback, which the caller has seen to."""

    def refused(turned: Turned) -> None:
        federation.meters.refusals.labels("caller").inc()
        peer = turned.peer
        about = {"caller": str(peer.identity), "serial": peer.serial, "address": peer.address}
        log.warning("a caller was turned away", extra={"reason": turned.reason, **about})

    def certified(who: Identity, expires: datetime) -> None:
        federation.certificates[str(who)] = expires
        federation.meters.certificates.labels(str(who)).set(expires.timestamp())

    await federation.open()
    gate = Gate(
        federation.operators.objection,
        refused,
        insecure=credentials is None,
        revoked=federation.revoked,
        on_certificate=certified,
    )
    federation.later(gate.watch())
    most = most_connections(len(federation.seats))
    options = [*LIMITS, *THRIFT, *AGES, ("grpc.max_allowed_incoming_connections", most), HANDSHAKE]
    server = grpc.aio.server(interceptors=(InTurn(), gate), options=options)
    server.add_generic_rpc_handlers((_handlers(federation),))
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise OSError(
            f"Nobody can listen at {address}: is another process there, or is it no address of ours?"
        ) from None
    await server.start()
    return server, port


class InTurn(grpc.aio.ServerInterceptor):
    """Small updates come a few at a time, and the others wait with their learners: a message that comes alone is read
    before its handler is called, so that it is too late to wait there."""

    def __init__(self) -> None:
        self._turns = Turns(SMALL_ONES, ARRIVAL)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        if handler_call_details.method == REPLY:
            turn = await self._turns.begin()
            call = asyncio.current_task()
            assert call is not None
            call.add_done_callback(lambda _: turn.end())
            TURN.set(turn)  # every call is a task of its own, with variables of its own
        return await continuation(handler_call_details)


class Portions:
    """An answer as it comes: gRPC's own iterator would keep each message until the next one is asked for."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __aiter__(self) -> Portions:
        return self

    async def __anext__(self) -> Portion:
        said: Any = await self._context.read()
        if said is grpc.aio.EOF:
            raise StopAsyncIteration
        portion: Portion = said
        return portion


def _handlers(federation: Federation) -> grpc.GenericRpcHandler:
    async def spoken(context: Any, call: str, answer: Callable[[], Awaitable[T]]) -> T:
        try:
            return await answer()
        except (Rejected, Missing, Busy) as error:
            await abort(context, call, error)

    async def abort(context: Any, call: str, error: Rejected | Missing | Busy) -> NoReturn:
        if not isinstance(error, Busy):  # who is told to come again has done nothing wrong
            federation.refused(CALLER.get().name, call, str(error))
        await context.abort(CODES[type(error)], str(error))
        raise AssertionError("abort raises")

    async def join(hello: pb.Hello, context: Any) -> pb.Welcome:
        return await spoken(context, "Join", lambda: federation.joining.join(_learner(), hello))

    async def sent(context: Any, call: str, messages: AsyncGenerator[bytes]) -> None:
        """Send them one by one; while the next one is waited for, none is in memory."""
        try:
            async with aclosing(messages):  # otherwise it would hold what it holds until somebody collects it
                async for message in messages:
                    await context.write(message)
                    del message
        except (Rejected, Missing, Busy) as error:
            await abort(context, call, error)

    async def listen(_: pb.Here, context: Any) -> None:
        await sent(context, "Listen", federation.orders.listen(_learner()))

    async def beat(pulse: pb.Pulse, context: Any) -> pb.Heard:
        return await spoken(context, "Beat", lambda: federation.answers.beat(_learner(), pulse))

    async def fetch(want: pb.Want, context: Any) -> None:
        await sent(context, "Fetch", federation.orders.fetch(_learner(), want))

    async def stored(parcel: pb.Parcel, context: Any) -> pb.Offset:
        return await spoken(context, "Stored", lambda: federation.answers.stored(_learner(), parcel))

    async def answer(_: object, context: Any) -> pb.Receipt:
        return await spoken(context, "Answer", lambda: federation.answers.answer(_learner(), Portions(context)))

    async def reply(portion: Portion, context: Any) -> pb.Receipt:
        TURN.get().stay()  # it has come, and is in memory until it is on the disk
        return await spoken(context, "Reply", lambda: federation.answers.reply(_learner(), portion))

    async def steer(wish: pb.Wish, context: Any) -> pb.Done:
        return await spoken(context, "Steer", lambda: federation.operators.steer(CALLER.get(), wish))

    async def look(_: pb.Glance, context: Any) -> pb.Status:
        return pb.Status(told=json.dumps(federation.operators.status(CALLER.get())))

    return grpc.method_handlers_generic_handler(
        NAME,
        {
            "Join": _handler(grpc.unary_unary_rpc_method_handler, join, pb.Hello.FromString),
            "Listen": _handler(grpc.unary_stream_rpc_method_handler, listen, pb.Here.FromString),
            "Beat": _handler(grpc.unary_unary_rpc_method_handler, beat, pb.Pulse.FromString),
            "Fetch": _handler(grpc.unary_stream_rpc_method_handler, fetch, pb.Want.FromString),
            "Stored": _handler(grpc.unary_unary_rpc_method_handler, stored, pb.Parcel.FromString),
            "Answer": _handler(grpc.stream_unary_rpc_method_handler, answer, hear_portion),
            "Reply": _handler(grpc.unary_unary_rpc_method_handler, reply, hear_portion),
            "Steer": _handler(grpc.unary_unary_rpc_method_handler, steer, pb.Wish.FromString),
            "Look": _handler(grpc.unary_unary_rpc_method_handler, look, pb.Glance.FromString),
        },
    )


def _handler(kind: Callable[..., Any], method: Callable[..., Any], read: Callable[[bytes], Any]) -> Any:
    return kind(method, request_deserializer=read, response_serializer=written)


def _learner() -> str:
    caller = CALLER.get()
    if caller.kind != "learner":
        raise Rejected(f"{caller.name} is an {caller.kind}, not a learner.")
    return caller.name
