"""Which callers reach a handler, over real connections on loopback: only known and admitted ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from archipel.federation.security.authority import read_authority
from archipel.federation.security.certificates import YEAR, new_key, sign
from archipel.federation.security.gate import CALLER, METADATA, Gate, Turned
from archipel.federation.security.key_files import key_pem, no_passphrase, pem, read_certificate, read_key
from archipel.federation.security.names import Identity
from archipel.federation.security.tls import (
    channel_credentials,
    insecure_allowed,
    server_credentials,
)
from tests.federation.forging import NOW, forged, papers, root
from tests.waiting import LIMIT

LONG_AGO = NOW - timedelta(days=2 * YEAR)
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
HOSPITAL = Identity("learner", "hospital-1")
ALICE = Identity("operator", "alice")


# ---------------------------------------------------------------------------------------------- a service of four kinds


class Echo:
    """Answer each request with its caller; count the calls."""

    def __init__(self) -> None:
        self.reached = 0
        self.closed = asyncio.Event()

    async def unary_unary(self, request: bytes, context: Any) -> bytes:
        self.reached += 1
        return self.answer(request)

    async def unary_stream(self, request: bytes, context: Any) -> None:
        self.reached += 1
        for _ in range(3):
            await context.write(self.answer(request))
            await asyncio.sleep(0.01)  # others run in between

    async def stream_unary(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        self.reached += 1
        return b" ".join([self.answer(request) async for request in requests])

    async def stream_stream(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.reached += 1
        async for request in requests:
            await context.write(self.answer(request))

    async def endless(self, request: bytes, context: Any) -> None:
        try:
            while True:
                await context.write(self.answer(request))
        finally:
            self.closed.set()

    def answer(self, request: bytes) -> bytes:
        return f"{CALLER.get()} {request.decode()}".encode()

    def handlers(self) -> grpc.GenericRpcHandler:
        made = {name: getattr(grpc, f"{name}_rpc_method_handler")(getattr(self, name)) for name in KINDS}
        made["endless"] = grpc.unary_stream_rpc_method_handler(self.endless)
        return grpc.method_handlers_generic_handler("test.Echo", made)


async def call(channel: grpc.aio.Channel, kind: str, metadata: Any = None) -> str:
    stub = getattr(channel, kind)(f"/test.Echo/{kind}")
    request = iter([b"a", b"b"]) if kind.startswith("stream") else b"a"
    # a refused handshake is an answer: nobody waits for a better one
    made = stub(request, timeout=LIMIT, metadata=metadata)
    if "_stream" in kind:
        return " ".join([response.decode() async for response in made])
    return str((await made).decode())


def spoken(kind: str, who: Any) -> str:
    """The answer to a caller that is admitted."""
    times = {"unary_stream": "aaa", "stream_unary": "ab", "stream_stream": "ab"}.get(kind, "a")
    return " ".join(f"{who} {letter}" for letter in times)


def admit(caller: Identity) -> str | None:
    return None if caller.name in {"hospital-1", "hospital-2", "alice"} else "is not on the list of this study"


class Site:
    """A server that listens on loopback, what reached it and what it refused."""

    def __init__(self, allowed: Callable[[Identity], str | None] = admit, *, insecure: bool = False) -> None:
        self.echo = Echo()
        self.refusals: list[str] = []
        self.gate = Gate(allowed, self.turned_away, insecure=insecure)
        self.port = 0

    def turned_away(self, turned: Turned) -> bool:
        self.refusals.append(turned.reason)
        return True


@asynccontextmanager
async def serving(site: Site, credentials: grpc.ServerCredentials | None) -> AsyncIterator[Site]:
    server = grpc.aio.server(interceptors=(site.gate,))
    server.add_generic_rpc_handlers((site.echo.handlers(),))
    if credentials is None:
        site.port = server.add_insecure_port("localhost:0")
    else:
        site.port = server.add_secure_port("localhost:0", credentials)
    await server.start()
    try:
        yield site
    finally:
        await server.stop(None)


def dial(port: int, credentials: grpc.ChannelCredentials | None, host: str = "localhost") -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(f"{host}:{port}")
    return grpc.aio.secure_channel(f"{host}:{port}", credentials)


async def refused(port: int, credentials: grpc.ChannelCredentials | None, kind: str, metadata: Any = None) -> Any:
    async with dial(port, credentials) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(channel, kind, metadata)
    return caught.value


def heard(error: Any, code: grpc.StatusCode, reason: str, kind: str) -> bool:
    """The caller was told why.

    Who still sends when the refusal comes may hear INTERNAL instead: https://github.com/grpc/grpc/issues/36066
    """
    if kind.startswith("stream") and error.code() == grpc.StatusCode.INTERNAL:
        return "SendMessageOperation" in error.debug_error_string()
    return (error.code(), error.details()) == (code, reason)


def uri(text: str) -> x509.UniformResourceIdentifier:
    return x509.UniformResourceIdentifier(text)


# ---------------------------------------------------------------------------------------------------------- who gets in


def test_a_known_caller_may_make_every_kind_of_call(ca: Path) -> None:
    async def scene() -> None:
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            for who in (HOSPITAL, ALICE):
                async with dial(site.port, channel_credentials(ca / who.name)) as channel:
                    answers = {kind: await call(channel, kind) for kind in KINDS}
                assert answers == {kind: spoken(kind, who) for kind in KINDS}
            assert site.echo.reached == 2 * len(KINDS)
            assert site.refusals == []

    asyncio.run(scene())


def test_concurrent_calls_keep_their_own_callers(ca: Path) -> None:
    async def scene() -> None:
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            first, second = (dial(site.port, channel_credentials(ca / f"hospital-{k}")) for k in (1, 2))
            async with first, second:
                kinds = [kind for kind in KINDS for _ in range(5)]
                answers = await asyncio.gather(*(call(channel, kind) for kind in kinds for channel in (first, second)))
            assert answers == [spoken(kind, f"learner/hospital-{k}") for kind in kinds for k in (1, 2)]

    asyncio.run(scene())


def test_a_stream_whose_caller_goes_away_is_closed(ca: Path) -> None:
    async def scene() -> None:
        async with (
            serving(Site(), server_credentials(ca / "controller")) as site,
            dial(site.port, channel_credentials(ca / "hospital-1")) as channel,
        ):
            endless: Any = channel.unary_stream("/test.Echo/endless")
            stream = endless(b"a")
            assert await anext(aiter(stream)) == b"learner/hospital-1 a"
            stream.cancel()
            await asyncio.wait_for(site.echo.closed.wait(), LIMIT)

    asyncio.run(scene())


def test_an_unknown_method_is_unimplemented(ca: Path) -> None:
    async def scene() -> None:
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            async with dial(site.port, channel_credentials(ca / "hospital-1")) as channel:
                nothing: Any = channel.unary_unary("/test.Echo/nothing")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await nothing(b"a", timeout=LIMIT)
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scene())


# -------------------------------------------------------------------------------------------- who does not even connect


def no_certificate(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(root(ca))


def of_another_authority(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(root(ca), *papers(other / "hospital-1"))


def expired(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(root(ca), *papers(ca / "expired"))


def not_yet_valid(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(root(ca), *papers(ca / "early"))


def the_controllers_own(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return grpc.ssl_channel_credentials(root(ca), *papers(ca / "controller"))


def certified_by_a_learner(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    """A learner's certificate is no authority, even if it is sent along."""
    learner, signer = read_certificate(ca / "hospital-1" / "certificate.pem"), read_key(ca / "hospital-1" / "key.pem")
    mine, names = new_key(), [uri("archipel:operator/alice")]
    made = sign(learner, signer, mine.public_key(), "operator", names, NOW, NOW + timedelta(days=1))
    return grpc.ssl_channel_credentials(root(ca), key_pem(mine), pem(made) + pem(learner))


def plaintext(ca: Path, other: Path) -> grpc.ChannelCredentials | None:
    return None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "credentials",
    [
        no_certificate,
        of_another_authority,
        expired,
        not_yet_valid,
        the_controllers_own,
        certified_by_a_learner,
        plaintext,
    ],
)
def test_without_a_valid_certificate_of_this_authority_nobody_connects(
    ca: Path,
    other: Path,
    kind: str,
    credentials: Callable[[Path, Path], grpc.ChannelCredentials | None],
) -> None:
    async def scene() -> None:
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            # to say a name helps nobody
            error = await refused(site.port, credentials(ca, other), kind, ((METADATA, "learner/hospital-1"),))
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert site.echo.reached == 0

    asyncio.run(scene())


# ----------------------------------------------------------------------------------------- who connects and is rejected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "names",
    [
        [],
        ["https://example.org/learner/hospital-1"],
        ["archipel:controller"],
        ["archipel:learner/"],
        ["archipel:learner/home"],
        ["archipel:learner/../hospital-1"],
        ["archipel:admin/hospital-1"],
        ["archipel:hospital-1"],
        ["archipel:learner/hospital-1", "archipel:operator/alice"],
        ["archipel:learner/hospital-1", "archipel:learner/hospital-1"],
    ],
)
def test_a_certificate_that_does_not_say_who_is_turned_away(ca: Path, kind: str, names: list[str]) -> None:
    async def scene() -> None:
        credentials = grpc.ssl_channel_credentials(
            root(ca), *forged(ca, "learner", x509.DNSName("archipel.example"), *map(uri, names))
        )
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            error = await refused(site.port, credentials, kind, ((METADATA, "learner/hospital-1"),))
            (reason,) = site.refusals
            assert reason.startswith("the certificate does not say which learner or operator it is for")
            assert heard(error, grpc.StatusCode.UNAUTHENTICATED, reason, kind)
            assert site.echo.reached == 0

    asyncio.run(scene())


def test_only_uris_name_the_caller(ca: Path) -> None:
    """Other kinds of names may hold the same letters."""

    async def scene() -> None:
        mine = forged(ca, "learner", x509.DNSName("archipel:learner/hospital-1"))
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            error = await refused(site.port, grpc.ssl_channel_credentials(root(ca), *mine), "unary_unary")
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert site.echo.reached == 0

    asyncio.run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_not_on_the_list_is_turned_away_with_the_reason(ca: Path, kind: str) -> None:
    async def scene() -> None:
        async with serving(Site(), server_credentials(ca / "controller")) as site:
            # its certificate counts, not what it says
            said = ((METADATA, "learner/hospital-1"),)
            error = await refused(site.port, channel_credentials(ca / "stranger"), kind, said)
            assert site.refusals == ["is not on the list of this study"]
            assert heard(error, grpc.StatusCode.PERMISSION_DENIED, site.refusals[0], kind)
            assert site.echo.reached == 0

    asyncio.run(scene())


def test_who_is_withdrawn_is_turned_away_from_then_on(ca: Path) -> None:
    async def scene() -> None:
        withdrawn: set[Identity] = set()
        site = Site(lambda caller: "was withdrawn" if caller in withdrawn else None)
        async with (
            serving(site, server_credentials(ca / "controller")),
            dial(site.port, channel_credentials(ca / "hospital-1")) as channel,
        ):
            await call(channel, "unary_unary")
            withdrawn.add(HOSPITAL)
            with pytest.raises(grpc.aio.AioRpcError, match="was withdrawn"):
                await call(channel, "unary_unary")
            assert site.echo.reached == 1

    asyncio.run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_that_cannot_be_read_lets_nobody_through(ca: Path, kind: str) -> None:
    def broken(caller: Identity) -> str | None:
        raise RuntimeError("no list")

    async def scene() -> None:
        async with serving(Site(broken), server_credentials(ca / "controller")) as site:
            await refused(site.port, channel_credentials(ca / "hospital-1"), kind)
            assert site.echo.reached == 0

    asyncio.run(scene())


# ------------------------------------------------------------------------------------ who cannot pose as the controller


def a_learner(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    return grpc.ssl_server_credentials([papers(ca / "hospital-2")], root(ca), True)


def a_learner_that_is_called_like_the_host(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    mine = forged(ca, "learner", uri("archipel:controller"), x509.DNSName("localhost"))
    return grpc.ssl_server_credentials([mine], root(ca), True)


def a_controller_for_another_host(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    mine = forged(ca, "controller", uri("archipel:controller"), x509.DNSName("fl.example.org"))
    return grpc.ssl_server_credentials([mine], root(ca), True)


def a_controller_of_another_authority(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    return grpc.ssl_server_credentials([papers(other / "controller")], root(ca), True)


def an_expired_controller(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    authority, signer = read_authority(ca, no_passphrase)
    key, names = new_key(), [uri("archipel:controller"), x509.DNSName("localhost")]
    made = sign(authority, signer, key.public_key(), "controller", names, LONG_AGO, NOW - timedelta(days=1))
    return grpc.ssl_server_credentials([(key_pem(key), pem(made))], root(ca), True)


def a_controller_without_tls(ca: Path, other: Path) -> grpc.ServerCredentials | None:
    return None


@pytest.mark.parametrize(
    "credentials",
    [
        a_learner,
        a_learner_that_is_called_like_the_host,
        a_controller_for_another_host,
        a_controller_of_another_authority,
        an_expired_controller,
        a_controller_without_tls,
    ],
)
def test_a_learner_talks_to_the_controller_of_its_authority_alone(
    ca: Path, other: Path, credentials: Callable[[Path, Path], grpc.ServerCredentials | None]
) -> None:
    async def scene() -> None:
        async with serving(Site(insecure=True), credentials(ca, other)) as site:
            error = await refused(site.port, channel_credentials(ca / "hospital-1"), "unary_unary")
            assert error.code() == grpc.StatusCode.UNAVAILABLE
            assert site.echo.reached == 0

    asyncio.run(scene())


def test_a_certificate_made_by_the_tests_with_the_right_content_is_accepted(ca: Path) -> None:
    """The control for the tests above: the same certificates with the right content are accepted."""

    async def scene() -> None:
        server = forged(ca, "controller", uri("archipel:controller"), x509.DNSName("localhost"))
        client = forged(ca, "learner", uri("archipel:learner/hospital-1"))
        async with (
            serving(Site(), grpc.ssl_server_credentials([server], root(ca), True)) as site,
            dial(site.port, grpc.ssl_channel_credentials(root(ca), *client)) as channel,
        ):
            assert await call(channel, "unary_unary") == spoken("unary_unary", HOSPITAL)

    asyncio.run(scene())


# ---------------------------------------------------------------------------------------------------- the insecure mode


@pytest.mark.parametrize("kind", KINDS)
def test_without_tls_a_claimed_name_is_trusted(kind: str) -> None:
    async def scene() -> None:
        async with serving(Site(insecure=True), None) as site, dial(site.port, None) as channel:
            for who in (HOSPITAL, ALICE):
                assert await call(channel, kind, ((METADATA, str(who)),)) == spoken(kind, who)
            error = await refused(site.port, None, kind, ((METADATA, "learner/stranger"),))
            assert heard(error, grpc.StatusCode.PERMISSION_DENIED, "is not on the list of this study", kind)
            assert site.echo.reached == 2

    asyncio.run(scene())


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        ((METADATA, ""),),
        ((METADATA, "hospital-1"),),
        ((METADATA, "controller"),),
        ((METADATA, "learner/a/b"),),
        ((METADATA, "learner/hospital-1"), (METADATA, "operator/alice")),
    ],
)
def test_without_tls_a_caller_has_to_claim_a_name(metadata: Any) -> None:
    async def scene() -> None:
        async with serving(Site(insecure=True), None) as site:
            error = await refused(site.port, None, "unary_unary", metadata)
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert "archipel-identity: learner/NAME" in error.details()
            assert len(site.refusals) == 1
            assert site.echo.reached == 0

    asyncio.run(scene())


def test_a_claimed_name_is_not_trusted_without_the_insecure_mode() -> None:
    async def scene() -> None:
        async with serving(Site(), None) as site:
            error = await refused(site.port, None, "unary_unary", ((METADATA, "learner/hospital-1"),))
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert site.echo.reached == 0

    asyncio.run(scene())


@pytest.mark.parametrize(
    "address", ["localhost:9443", "LOCALHOST:1", "127.0.0.1:9443", "127.8.9.10:0", "[::1]:9443", "localhost", "[::1]"]
)
def test_the_insecure_mode_is_for_this_machine(address: str) -> None:
    insecure_allowed(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        ":9443",
        "0.0.0.0:9443",
        "[::]:9443",
        "10.0.0.5:9443",
        "fl.example.org:9443",
        "localhost.example.org:9443",
        "127.0.0.1.example.org:9443",
        "127.0.0.1@example.org:9443",
        "0177.0.0.1:9443",
        "2130706433:9443",
        "::1:9443",  # to gRPC this is an address of eight groups, without a port
        "[::1]:9443,10.0.0.5:9443",
        "localhost:9443\n",
        "dns:///localhost:9443",
        "unix:/tmp/socket",
    ],
)
def test_the_insecure_mode_is_refused_for_other_machines(address: str) -> None:
    with pytest.raises(ValueError, match=r"without TLS only this machine itself.*archipel ca.*--tls"):
        insecure_allowed(address)
