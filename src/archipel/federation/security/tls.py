"""Mutual TLS: which certificate one shows, and whom the other side is taken for.

Rule 1: what a folder of certificates lacks is said before anything is dialled or listened on.
Rule 2: who calls stands in the certificate that TLS has checked, and nowhere else. Only in the insecure mode, which
stays on one machine, a caller's word is taken for it.
Rule 3: no handler runs before its caller is known and admitted.
"""

from __future__ import annotations

import ipaddress
import re
import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from archipel.core.checks import ArchipelWarning, require
from archipel.federation.security.authority import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    SOON,
    check_name,
    check_pair,
    command_for,
    read_certificate,
    read_key,
    title_of,
    titles,
)

ServerCredentials: TypeAlias = grpc.ServerCredentials
METADATA = "archipel-identity"
"""Where a caller says who it is in the insecure mode: learner/hospital-1."""


@dataclass(frozen=True)
class Identity:
    """Who calls the controller; as text, learner/hospital-1."""

    kind: Literal["learner", "operator"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


CALLER: ContextVar[Identity] = ContextVar("CALLER")
"""Whom the handler that runs was called by."""


def identity_of(title: str) -> Identity | None:
    """Who is meant by a text such as learner/hospital-1, if anybody who may call."""
    kind, _, name = title.partition("/")
    try:
        check_name(kind, name)
    except ValueError:
        return None
    return Identity(kind, name) if kind in ("learner", "operator") else None  # type: ignore[arg-type]  # just compared


# ----------------------------------------------------------------------------------------------------- one's own papers


class Certificates:
    """The three files of a --tls folder, found whole, fitting together and valid now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (CERTIFICATE, KEY, AUTHORITY):
            if not (folder / name).is_file():
                what = f"has no {name}" if folder.is_dir() else "is no folder"
                raise FileNotFoundError(
                    f"--tls {folder}: {what}. It should hold {CERTIFICATE}, {KEY} and {AUTHORITY}, as `archipel ca "
                    f"controller`, `learner` and `operator` make them; copy the whole folder."
                )
        certificate, authority = read_certificate(folder / CERTIFICATE), read_certificate(folder / AUTHORITY)
        check_pair(certificate, read_key(folder / KEY), folder)
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise ValueError(
                f"{folder}: {CERTIFICATE} is not from the authority in {AUTHORITY}. Copy both again from where they "
                f"were made."
            ) from None
        self.title = title_of(certificate)
        """Whom they are for: controller, learner/hospital-1 or operator/alice."""
        renewal = f"{command_for(self.title or 'learner/NAME')} --renew"
        check_dates(folder / AUTHORITY, authority, f"archipel ca init CA --renew, and then {renewal}")
        check_dates(folder / CERTIFICATE, certificate, renewal)
        if (folder / KEY).stat().st_mode & 0o077:
            warn(f"{folder / KEY}: can be read by others on this machine. Close it: chmod 600 {folder / KEY}")
        self.certificate, self.key, self.authority = (
            (folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)
        )


def check_dates(path: Path, certificate: x509.Certificate, renewal: str) -> None:
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    way_out = f"Renew it where the authority is (CA: its folder) and copy it here: {renewal}"
    require(
        start <= now,
        f"{path}: is valid from {start:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}. Set the clock.",
    )
    require(now <= end, f"{path}: expired on {end:%Y-%m-%d %H:%M} UTC, and here it is {now:%Y-%m-%d %H:%M}. {way_out}")
    left = (end - now) // timedelta(days=1)
    if left < SOON:
        warn(f"{path}: expires on {end:%Y-%m-%d}, in {left} day{'s' * (left != 1)}. {way_out}")


def warn(text: str) -> None:
    warnings.warn(text, ArchipelWarning, stacklevel=2)


def own_identity(folder: Path) -> Identity:
    """Whom the certificate in a folder says one is: a learner or an operator."""
    return caller_in(Certificates(folder))


def caller_in(papers: Certificates) -> Identity:
    identity = None if papers.title is None else identity_of(papers.title)
    if identity is None:
        raise ValueError(
            f"--tls {papers.folder}: is the certificate of {papers.title or 'nobody'}; here it takes one of a learner "
            f"or an operator. Make it: archipel ca learner CA NAME"
        )
    return identity


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """What a controller listens with: its own certificate, and callers must show one of the same authority."""
    papers = Certificates(folder)
    require(
        papers.title == "controller",
        f"--tls {folder}: is the certificate of {papers.title or 'nobody'}; a controller needs its own. Make it: "
        f"archipel ca controller CA",
    )
    return grpc.ssl_server_credentials([(papers.key, papers.certificate)], papers.authority, require_client_auth=True)


def channel_credentials(folder: Path) -> grpc.ChannelCredentials:
    """What a learner or an operator dials with; only a controller of the same authority is talked to."""
    papers = Certificates(folder)
    caller_in(papers)
    return grpc.ssl_channel_credentials(papers.authority, papers.key, papers.certificate)


def insecure_allowed(address: str) -> None:
    """Refuse an address that reaches beyond this machine: without TLS anybody could read and pose as anybody."""
    # an IPv6 address without brackets is left out: gRPC would take its port for a part of it
    found = re.fullmatch(r"(?:\[(?P<six>[^\[\]]+)\]|(?P<host>[^\[\]:]+))(?::\d+)?", address)
    host = (found["six"] or found["host"]).lower() if found else ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    require(
        loopback,
        f"{address}: without TLS only this machine itself may be spoken to (localhost, 127.0.0.1 or [::1]). Make "
        f"certificates with `archipel ca` and give --tls.",
    )


# ------------------------------------------------------------------------------------------------------- the other side


def peer_identity(context: grpc.aio.ServicerContext[Any, Any]) -> Identity | None:
    """Whom the caller's certificate says it is; nobody, if it says nothing of ours or more than one thing."""
    uris = [uri.decode(errors="replace") for uri in context.auth_context().get("peer_uri", ())]
    return only(titles(uris))


def said_identity(context: grpc.aio.ServicerContext[Any, Any]) -> Identity | None:
    """Who the caller says it is, in the insecure mode."""
    return only([str(value) for key, value in context.invocation_metadata() or () if key == METADATA])


def only(titles: list[str]) -> Identity | None:
    return identity_of(titles[0]) if len(titles) == 1 else None


class Gate(grpc.aio.ServerInterceptor):
    """Lets callers through to handlers, which are coroutines, and tells these who calls.

    `allowed` gives a reason why somebody is not let through, or None; `on_refusal` hears of everybody who is not.
    """

    def __init__(
        self,
        allowed: Callable[[Identity], str | None],
        on_refusal: Callable[[str], None],
        *,
        insecure: bool = False,
    ) -> None:
        self._allowed = allowed
        self._on_refusal = on_refusal
        self._identify = said_identity if insecure else peer_identity
        self._handlers: dict[Any, Any] = {}
        """By those they stand before; made at the first call."""
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
        if handler is None:  # there is no such method
            return None
        if handler not in self._handlers:
            directions = (handler.request_streaming, handler.response_streaming)
            kind = "_".join("stream" if streaming else "unary" for streaming in directions)
            remake = getattr(grpc, f"{kind}_rpc_method_handler")
            guarded = self._guarded(getattr(handler, kind))
            self._handlers[handler] = remake(guarded, handler.request_deserializer, handler.response_serializer)
        return self._handlers[handler]

    def _guarded(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            await self._admit(context)
            return await behaviour(request, context)

        return answer

    async def _admit(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        caller = self._identify(context)
        if caller is None:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, self._nobody)
        reason = self._allowed(caller)
        if reason is not None:
            await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, reason)
        CALLER.set(caller)  # every call is a task of its own, with variables of its own

    async def _refuse(
        self, context: grpc.aio.ServicerContext[Any, Any], code: grpc.StatusCode, reason: str
    ) -> NoReturn:
        self._on_refusal(reason)
        await context.abort(code, reason)
