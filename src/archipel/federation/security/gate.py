"""Access control of a controller: which callers reach a handler, and for how long.

Rule 1: who calls stands in the certificate that TLS has checked, and nowhere else. Only in the insecure mode, which
stays on one machine, a caller's word is taken for it.
Rule 2: no handler runs before its caller is known and admitted.
Rule 3: a call ends when the certificate it was made with expires or is revoked, and a connection has a largest age, so
that nobody stays by never hanging up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn

import grpc
from cryptography import x509

from archipel.federation.security.certificates import serial_of
from archipel.federation.security.names import Identity, identity_of, titles
from archipel.federation.security.revocation import RevocationList

METADATA = "archipel-identity"
"""Where a caller says who it is in the insecure mode: learner/hospital-1."""
DELAY, HELD_BACK = 10.0, 1000
"""Seconds that a refusal is held back from a caller that has had many lately, so that one that calls in a loop takes
little of the controller's time; and how many are held back at once, since each takes memory."""
LOOK = 1.0
"""Seconds between two looks at the revocation list and at the clock."""
AGES: list[tuple[str, Any]] = [
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 600_000),
]
"""Options of a server: a connection is closed after an hour, and calls that are out by then have ten more minutes. A
learner dials again at once; uploads and downloads go on where they were."""

CALLER: ContextVar[Identity] = ContextVar("CALLER")
"""The caller of the current RPC."""


@dataclass(frozen=True)
class Peer:
    """The caller of a call."""

    identity: Identity | None
    """None if its certificate does not say who it is."""
    address: str
    serial: str = ""
    """Of its certificate; empty in the insecure mode."""
    expires: datetime | None = None


@dataclass(frozen=True)
class Turned:
    """A caller that was rejected."""

    peer: Peer
    reason: str


class Gate(grpc.aio.ServerInterceptor):
    """Lets callers through to handlers, which are coroutines, and tells these who calls."""

    def __init__(
        self,
        allowed: Callable[[Identity], str | None],
        on_refusal: Callable[[Turned], bool],
        *,
        insecure: bool = False,
        revoked: RevocationList | None = None,
        on_certificate: Callable[[Identity, datetime], None] = lambda who, expires: None,
    ) -> None:
        """Build a gate for one server.

        allowed: returns why a caller is refused, or None. on_refusal: called with every refusal; returns False if the
        caller has had many lately. on_certificate: called with the expiry of an admitted caller's certificate, once for
        each certificate.
        """
        self._allowed = allowed
        self._on_refusal = on_refusal
        self._peer = insecure_peer if insecure else certified_peer
        self._revoked = revoked or RevocationList()
        self._on_certificate = on_certificate
        self._handlers: dict[Any, Any] = {}
        """By those they stand before; made at the first call."""
        self._calls: dict[str, dict[asyncio.Task[Any], Peer]] = {}
        """Calls that are running, by the serial numbers of their certificates."""
        self._ended: dict[asyncio.Task[Any], str] = {}
        """Calls that were ended here, and why."""
        self._latest: dict[Identity, str] = {}
        """The serial number that each caller was last seen with."""
        self._held_back = 0
        """Refusals that are being held back."""
        self._unknown: Any = grpc.stream_unary_rpc_method_handler(self._guarded(self._refuse_unknown))
        """Stands in for a method that does not exist: whoever calls one in a loop is counted like others."""
        self._nobody = (
            f"in the insecure mode a caller says who it is by the metadata {METADATA}: learner/NAME"
            if insecure
            else "the certificate does not say which learner or operator it is for; make one with `archipel ca`"
        )

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return self._unknown
        if handler not in self._handlers:
            directions = (handler.request_streaming, handler.response_streaming)
            kind = "_".join("stream" if streaming else "unary" for streaming in directions)
            remake = getattr(grpc, f"{kind}_rpc_method_handler")
            guarded = self._guarded(getattr(handler, kind))
            self._handlers[handler] = remake(guarded, handler.request_deserializer, handler.response_serializer)
        return self._handlers[handler]

    async def watch(self) -> None:
        """Read the revocation list again when it changes, and end the calls of whoever is on it or has expired."""
        while True:
            await asyncio.sleep(LOOK)
            self._revoked.refresh()
            self.end_invalid_calls()

    def end_invalid_calls(self) -> None:
        for calls in list(self._calls.values()):
            for task, peer in list(calls.items()):
                reason = self._invalid(peer)
                if reason is not None and task not in self._ended:
                    self._ended[task] = reason
                    task.cancel()

    def _guarded(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            peer = await self._admit(context)
            task = asyncio.current_task()
            assert task is not None
            with self._running(task, peer):
                try:
                    return await behaviour(request, context)
                except asyncio.CancelledError:
                    if task not in self._ended:
                        raise  # the caller hung up
                    task.uncancel()
                    await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, Turned(peer, self._ended[task]))

        return answer

    async def _refuse_unknown(self, _: object, context: grpc.aio.ServicerContext[Any, Any]) -> NoReturn:
        turned = Turned(self._peer(context), "there is no such call; are both sides of the same version?")
        await self._refuse(context, grpc.StatusCode.UNIMPLEMENTED, turned)

    @contextmanager
    def _running(self, task: asyncio.Task[Any], peer: Peer) -> Iterator[None]:
        calls = self._calls.setdefault(peer.serial, {})
        calls[task] = peer
        try:
            yield
        finally:
            del calls[task]
            self._ended.pop(task, None)
            if not calls and self._calls.get(peer.serial) is calls:
                del self._calls[peer.serial]

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> Peer:
        peer = self._peer(context)
        if peer.identity is None:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, Turned(peer, self._nobody))
        reason = self._invalid(peer) or self._allowed(peer.identity)
        if reason is not None:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, Turned(peer, reason))
        if peer.expires is not None and self._latest.get(peer.identity) != peer.serial:
            self._latest[peer.identity] = peer.serial
            self._on_certificate(peer.identity, peer.expires)
        CALLER.set(peer.identity)  # every call is a task of its own, with variables of its own
        return peer

    def _invalid(self, peer: Peer) -> str | None:
        """Return why a certificate counts no longer, or None. TLS looks at it only when the connection is made."""
        if peer.serial in self._revoked:
            return f"the certificate with serial number {peer.serial} has been revoked; ask the authority for a new one"
        if peer.expires is not None and peer.expires < datetime.now(UTC):
            return f"the certificate expired on {peer.expires:%Y-%m-%d %H:%M} UTC; ask the authority for a new one"
        return None

    async def _refuse(
        self, context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, turned: Turned
    ) -> NoReturn:
        if not self._on_refusal(turned) and self._held_back < HELD_BACK:
            self._held_back += 1
            try:
                await asyncio.sleep(DELAY)
            finally:
                self._held_back -= 1
        await context.abort(code, turned.reason)


def certified_peer(context: grpc.aio.ServicerContext[Any, Any]) -> Peer:
    """Return whom the caller's certificate says it is; nobody unless it has exactly one URI of Archipel's."""
    about = context.auth_context()
    uris = [uri.decode(errors="replace") for uri in about.get("peer_uri", ())]
    shown = next(iter(about.get("x509_pem_cert", ())), None)
    serial, expires = ("", None) if shown is None else _facts(shown)
    return Peer(_only(titles(uris)), context.peer(), serial, expires)


def insecure_peer(context: grpc.aio.ServicerContext[Any, Any]) -> Peer:
    """Return who the caller says it is."""
    said = [str(value) for key, value in context.invocation_metadata() or () if key == METADATA]
    return Peer(_only(said), context.peer())


def _only(titles: list[str]) -> Identity | None:
    return identity_of(titles[0]) if len(titles) == 1 else None


@lru_cache(maxsize=4096)
def _facts(pem: bytes) -> tuple[str, datetime]:
    """Return serial number and end of a certificate; a learner calls many times with the same one."""
    certificate = x509.load_pem_x509_certificate(pem)
    return serial_of(certificate), certificate.not_valid_after_utc
