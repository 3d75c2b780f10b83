"""Slow connections of strangers to the page: what they cost is a few slots, for a few seconds."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from archipel.federation.security.authority import create_authority, issue
from archipel.live import callers
from archipel.live.access import Access, tls_context
from archipel.live.callers import MOST_CALLERS, MOST_STRANGERS, Callers, network_of
from archipel.live.follower import Follower
from archipel.live.http_server import LiveServer
from archipel.live.serving import followed_in
from tests.live.scenes import save_film
from tests.waiting import LIMIT, until

TOKEN = "secret"


@pytest.fixture(autouse=True)
def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise connections that should be closed at once would be closed a little later for another reason."""
    monkeypatch.setattr(callers, "INTRODUCTION", 10 * LIMIT)


@contextmanager
def beyond(folder: Path, context: ssl.SSLContext | None = None) -> Iterator[LiveServer]:
    """Serve a page to other machines, which takes a token."""
    follower = Follower(followed_in(save_film(folder / "results")))
    server = LiveServer(("127.0.0.1", 0), follower, Access("example.org", TOKEN), context)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        follower.close()
        server.shutdown()
        thread.join()
        server.server_close()


def silent(server: LiveServer, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=60, source_address=(source, 0))


def asked(line: socket.socket, cookie: str = "") -> http.client.HTTPResponse:
    line.sendall(f"GET /curve/99 HTTP/1.1\r\nHost: example.org\r\nCookie: archipel_live={cookie}\r\n\r\n".encode())
    answer = http.client.HTTPResponse(line, method="GET")
    answer.begin()
    answer.read()  # to its end, so that the next answer on this connection begins behind it
    return answer


def is_closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"], ids=["same address", "another address"])
def test_whoever_has_the_token_comes_in_past_connections_that_say_nothing(tmp_path: Path, source: str) -> None:
    """Without the limit, 64 of them blocked all others for 30 seconds."""
    with beyond(tmp_path) as server, ExitStack() as open_lines:
        lines = [open_lines.enter_context(silent(server)) for _ in range(MOST_CALLERS + 6)]
        assert asked(open_lines.enter_context(silent(server, source)), TOKEN).status == 404
        assert all(is_closed(line) for line in lines[: MOST_CALLERS + 6 - MOST_STRANGERS])


def test_connections_from_many_addresses_make_room_too(tmp_path: Path) -> None:
    with beyond(tmp_path) as server, ExitStack() as open_lines:
        lines = [
            open_lines.enter_context(silent(server, f"127.0.1.{1 + number % 8}")) for number in range(MOST_CALLERS)
        ]
        with silent(server) as line:
            assert asked(line, TOKEN).status == 404
        assert is_closed(lines[0])


def test_whoever_was_admitted_is_not_ended_for_others(tmp_path: Path) -> None:
    with beyond(tmp_path) as server, ExitStack() as open_lines:
        watcher = open_lines.enter_context(silent(server))
        assert asked(watcher, TOKEN).status == 404
        lines = [open_lines.enter_context(silent(server)) for _ in range(MOST_CALLERS + 6)]
        assert is_closed(lines[0])
        assert asked(watcher, TOKEN).status == 404


def test_a_header_that_comes_byte_by_byte_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte began another 30 seconds."""
    with beyond(tmp_path) as server, silent(server) as line:
        line.sendall(b"GET / HTTP/1.1\r\n")
        until(lambda: len(server.callers) == 1, "the caller")
        monkeypatch.setattr(callers, "INTRODUCTION", 0.0)
        assert is_closed(line)
        until(lambda: len(server.callers) == 0, "its end")


def test_a_handshake_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create_authority(tmp_path / "ca")
    issue(tmp_path / "ca", "controller", "controller", hosts=("localhost",))
    trusting = ssl.create_default_context(cafile=tmp_path / "ca" / "controller" / "authority.pem")
    with beyond(tmp_path, tls_context(tmp_path / "ca" / "controller")) as server:
        with silent(server) as line, trusting.wrap_socket(line, server_hostname="localhost") as secured:
            assert asked(secured, TOKEN).status == 404
        until(lambda: len(server.callers) == 0, "nobody")
        monkeypatch.setattr(callers, "INTRODUCTION", 0.0)
        with silent(server) as line:
            line.sendall(b"\x16\x03\x01")
            assert is_closed(line)


def test_whoever_is_refused_is_disconnected(tmp_path: Path) -> None:
    with beyond(tmp_path) as server, silent(server) as line:
        answer = asked(line, "wrong")
        assert (answer.status, answer.headers["Connection"]) == (403, "close")
        until(lambda: len(server.callers) == 0, "its end")


def test_there_is_no_room_if_all_were_admitted() -> None:
    here, pairs = Callers(), [socket.socketpair() for _ in range(MOST_CALLERS + 1)]
    for mine, _ in pairs[:-1]:
        assert here.enter(mine, "192.0.2.1")
        here.admit(mine)
    assert not here.enter(pairs[-1][0], "192.0.2.2")
    here.leave(pairs[0][0])
    assert here.enter(pairs[-1][0], "192.0.2.2")
    for one, other in pairs:
        one.close()
        other.close()


def test_an_address_of_ipv6_counts_by_its_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2%eth0")
    assert network_of("192.0.2.1") != network_of("192.0.2.2")
