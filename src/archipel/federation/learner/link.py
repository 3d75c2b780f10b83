"""A learner's connection to its controller: calls are repeated until they are answered or finally refused.

It knows nothing of training.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import grpc
from torch import Tensor

from archipel.federation.logs import printable
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.channel import CHUNK, LIMITS, NAME
from archipel.federation.wire.pieces import decode_piece, encode_portion, encoded
from archipel.kernels.memory import empty

FOR_GOOD = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.NOT_FOUND,
}
"""Status codes that a retry would not change."""
PATIENCE = 60.0
"""Seconds that one call may take beside the bytes it moves."""
SLOWEST = 50_000
"""Slowest connection that is expected, in bytes a second."""
RECONNECTS = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
"""A controller that was killed is back in seconds, so a learner tries again at least every second; the minimum is also
the timeout of an attempt to connect, which counts in a network that drops packets silently."""

log = logging.getLogger("archipel.learner")
T = TypeVar("T")


class TurnedAway(Exception):
    """The controller has rejected this learner, or this call, with a reason."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(printable(reason[:1000]))
        self.code = code

    @property
    def nobody_there(self) -> bool:
        return self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Link:
    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None, insecure_name: str = "") -> None:
        """Without credentials, only to a controller on this machine, as the learner of this name."""
        options = [*LIMITS, *RECONNECTS]
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options)
        self.address = address
        self._spare: dict[int, Tensor] = {}
        """Memory of models that came before, for the next one."""
        self._said = time.monotonic()
        """When the controller last got a message, which counts as a heartbeat."""
        self._metadata = (("archipel-identity", insecure_name),) if credentials is None else ()
        self._join = self._method(self.channel.unary_unary, "Join", pb.Welcome.FromString)
        self._listen = self._method(self.channel.unary_stream, "Listen", pb.Order.FromString)
        self._beat = self._method(self.channel.unary_unary, "Beat", pb.Heard.FromString)
        self._fetch = self._method(self.channel.unary_stream, "Fetch", decode_piece)
        self._stored = self._method(self.channel.unary_unary, "Stored", pb.Offset.FromString)
        self._answer = self._method(self.channel.stream_unary, "Answer", pb.Receipt.FromString)
        self._reply = self._method(self.channel.unary_unary, "Reply", pb.Receipt.FromString)
        self._steer = self._method(self.channel.unary_unary, "Steer", pb.Done.FromString)
        self._look = self._method(self.channel.unary_unary, "Look", pb.Status.FromString)

    def _method(self, kind: Callable[..., Any], name: str, read: Callable[[bytes], Any]) -> Callable[..., Any]:
        return kind(  # type: ignore[no-any-return]
            f"/{NAME}/{name}",
            request_serializer=encoded,
            response_deserializer=read,
        )

    async def close(self) -> None:
        await self.channel.close()

    # ------------------------------------------------------------------------------------------------ single calls

    async def join(self, hello: pb.Hello) -> pb.Welcome:
        welcome: pb.Welcome = await self._again(lambda: self._once(self._join, hello))
        return welcome

    def rest(self, heartbeat: float) -> float:
        """Seconds until the next heartbeat is due: an answer counts as one."""
        return max(0.0, self._said + heartbeat - time.monotonic())

    async def beat(self, pulse: pb.Pulse) -> pb.Heard:
        """One try: the next one comes soon."""
        self._said = time.monotonic()
        heard: pb.Heard = await self._once(self._beat, pulse, seconds=10.0)
        return heard

    async def steer(self, action: str, learner: str, version: int = 0) -> pb.Done:
        done: pb.Done = await self._once(self._steer, pb.Wish(action=action, learner=learner, version=version))
        return done

    async def look(self) -> pb.Status:
        status: pb.Status = await self._once(self._look, pb.Glance())
        return status

    async def listen(self) -> AsyncGenerator[pb.Order]:
        """Orders until the call ends; whoever listens watches for silence and calls again."""
        call = self._listen(pb.Here(), metadata=self._metadata)
        try:
            async for order in call:
                yield order
        finally:
            call.cancel()  # cancel the call when the caller stops listening

    # ----------------------------------------------------------------------------------------------------- models

    async def fetch(self, task: int, layers: Sequence[str], size: int, *, shift: bool = False) -> memoryview:
        """Fetch the body of these layers of a task's model, of so many bytes; resume where a call broke off.

        shift: of the vector that the task adds to gradients, instead.
        """
        body, here = as_bytes(empty(-(-size // 4), self._spare))[:size], 0

        async def rest() -> None:
            nonlocal here
            want = pb.Want(task=task, layers=layers, offset=here, shift=shift)
            timeout = PATIENCE + (size - here) / SLOWEST
            call = self._fetch(want, metadata=self._metadata, timeout=timeout, wait_for_ready=True)
            async for piece in call:
                if here + len(piece) > size:
                    raise ValueError(f"The controller sent more than the {size:,} bytes of task {task}'s model.")
                body[here : here + len(piece)] = piece
                here += len(piece)

        while here < size:
            await self._again(rest)
        return body

    async def answer(self, head: pb.Head, *body: Buffer) -> pb.Receipt:
        """Bring an answer until its receipt comes; its body in as many parts as it lies in."""
        size, tried, began = sum(map(len, body)), False, 0.0

        async def bring() -> pb.Receipt:
            nonlocal tried, began
            began = time.monotonic()
            if size <= CHUNK:
                portion = pb.Portion(head=head, data=b"".join(body))
                whole: pb.Receipt = await self._reply(
                    portion, metadata=self._metadata, timeout=PATIENCE, wait_for_ready=True
                )
                return whole
            offset = 0
            if tried:
                parcel = pb.Parcel(task=head.task, sha256=head.sha256)
                known = await self._once(self._stored, parcel, wait=True)
                offset = min(known.offset, size)
            tried = True
            head.offset = offset
            receipt: pb.Receipt = await self._answer(
                _portions(head, body, offset),
                metadata=self._metadata,
                timeout=PATIENCE + (size - offset) / SLOWEST,
                wait_for_ready=True,  # it leaves in the moment when the controller is back
            )
            return receipt

        receipt = await self._again(bring)
        self._said = max(self._said, began)
        return receipt

    # ------------------------------------------------------------------------------------------------- small things

    async def _once(
        self, method: Callable[..., Any], message: Any, seconds: float = PATIENCE, wait: bool = False
    ) -> Any:
        """`wait`: for a controller that is down; otherwise that is an answer too."""
        try:
            return await method(message, metadata=self._metadata, timeout=seconds, wait_for_ready=wait)
        except grpc.aio.AioRpcError as error:
            raise _told(error) from None

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call until there is an answer."""
        pause = 0.1
        while True:
            try:
                return await call()
            except TurnedAway as error:
                if error.code in FOR_GOOD:
                    raise
                log.warning("no answer from the controller", extra={"reason": str(error), "again_in": pause})
            except grpc.aio.AioRpcError as error:
                if error.code() in FOR_GOOD:
                    raise _told(error) from None
                log.warning("no answer from the controller", extra={"reason": error.details(), "again_in": pause})
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)


def _told(error: grpc.aio.AioRpcError) -> TurnedAway:
    return TurnedAway(error.code(), error.details() or error.code().name)


def _portions(head: pb.Head, body: Sequence[Buffer], offset: int) -> Iterator[pb.Portion | bytes]:
    yield pb.Portion(head=head)  # the controller asks for the data when it has room for them
    for piece in _pieces(body, offset):
        yield encode_portion(*piece)


def _pieces(body: Iterable[Buffer], offset: int) -> Iterator[list[memoryview]]:
    """Yield a body from a byte on, in pieces of one message each, and each in the parts it is stored in."""
    piece: list[memoryview] = []
    room = CHUNK
    for part in body:
        skipped = min(offset, len(part))
        offset -= skipped
        rest = memoryview(part)[skipped:]
        while rest:
            piece.append(rest[:room])
            rest, room = rest[room:], room - len(piece[-1])
            if not room:
                yield piece
                piece, room = [], CHUNK
    if piece:
        yield piece


def bounded(seconds: float) -> float:
    """Return a time that the controller has set, within sensible limits."""
    return min(3600.0, max(0.05, seconds))  # not a number: the smallest
