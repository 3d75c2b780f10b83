"""Serve the page over HTTP: read-only, from the standard library.

    /                         the page
    /news                     server-sent events: lengths of texts, and the overview when it has changed
    /curve/N?from=BYTES       the curve of run N from a byte on
    /events/N?from=BYTES      its events

The page fetches new data at its own pace; the server never waits for it.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from archipel.live.access import COOKIE, Access
from archipel.live.callers import MOST_CALLERS, Callers
from archipel.live.follower import Follower
from archipel.live.page_file import live_page

PATIENCE = 30.0
"""Seconds that a caller who was admitted may take to say or to take something."""
PULSE = 10.0
"""Seconds without news before a watcher is sent a heartbeat."""
PACE = 0.03
"""Fewest seconds between two pieces of news for a watcher."""
LOOK = 5.0
"""Seconds between checks of a watcher's access."""
OVERVIEW_PACE = 0.5
"""Fewest seconds between two overviews for a watcher, which are larger."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LiveServer(ThreadingHTTPServer):
    """The server of one page."""

    daemon_threads = True
    request_queue_size = MOST_CALLERS  # a connection that finds the queue full tries again only after a second

    def __init__(
        self, address: tuple[str, int], follower: Follower, access: Access, context: ssl.SSLContext | None = None
    ) -> None:
        """Listen at an address; with a context, over TLS."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.follower = follower
        self.access = access
        self.page = live_page()
        self._context = context
        self.callers = Callers()
        super().__init__(address, LiveHandler)

    @property
    def url(self) -> str:
        """The address of the page, with the token if there is one."""
        host = f"[{self.access.host}]" if ":" in self.access.host else self.access.host
        scheme = "http" if self._context is None else "https"
        token = "" if self.access.token is None else f"?token={self.access.token}"
        return f"{scheme}://{host}:{self.server_port}/{token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a caller in a thread, if there is a free slot."""
        if self.callers.enter(request, client_address[0]):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the caller's thread, so that a silent caller does not block others."""
        request.settimeout(PATIENCE)
        try:
            if self._context is not None:
                plain = request
                request = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                self.callers.moved(plain, request)
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError:  # no TLS, or the wrong one
            self.shutdown_request(request)
        finally:
            self.callers.leave(request)

    def service_actions(self) -> None:
        """End the callers that have not said in time who they are; called twice a second."""
        self.callers.end_late()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore callers that have disconnected."""


class LiveHandler(BaseHTTPRequestHandler):
    """Answer one caller."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version = "archipel"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer a request."""
        url = urlsplit(self.path)
        asked = {name: values[-1] for name, values in parse_qs(url.query).items()}
        access = self.server.access
        if "token" in asked and access.opens(asked["token"]):
            secure = "; Secure" if isinstance(self.connection, ssl.SSLSocket) else ""
            cookie = f"{COOKIE}={asked['token']}; HttpOnly; SameSite=Strict; Path=/{secure}"
            self.server.callers.admit(self.connection)
            self._answer(b"", "text/plain", HTTPStatus.SEE_OTHER, {"Location": "/", "Set-Cookie": cookie})
            return
        if not access.admits(self.headers, self._certificate()):
            needed = (
                "Open the page at localhost." if access.loopback else "It needs an operator's certificate or a token."
            )
            self._answer(needed.encode(), "text/plain", HTTPStatus.FORBIDDEN, {"Connection": "close"})
            return
        self.server.callers.admit(self.connection)
        match url.path.strip("/").split("/"):
            case [""]:
                page = self.server.page
                self._answer(page.text, "text/html; charset=utf-8", more={"Content-Security-Policy": page.policy})
            case ["news"]:
                self._tell_news()
            case [("curve" | "events") as what, number] if number.isdigit():
                self._read(what, int(number), asked.get("from", "0"))
            case _:
                self._answer(b"There is no such page.", "text/plain", HTTPStatus.NOT_FOUND)

    def _read(self, what: str, number: int, start: str) -> None:
        """Send a run's text from a byte on."""
        runs = self.server.follower.followed.runs
        if number >= len(runs) or not start.isdigit():
            self._answer(b"There is no such run.", "text/plain", HTTPStatus.NOT_FOUND)
            return
        timeline = runs[number].timeline
        text = timeline.curve if what == "curve" else timeline.events
        self._answer(text.read(int(start)), "text/plain; charset=utf-8")

    def _tell_news(self) -> None:
        """Send changes until the caller disconnects."""
        self.send_response(HTTPStatus.OK)
        self._headers({"Content-Type": "text/event-stream", "Connection": "close"})
        self.close_connection = True
        follower = self.server.follower
        follower.watchers += 1
        try:
            self._follow(follower)
        except OSError:
            pass  # disconnected or timed out
        finally:
            follower.watchers -= 1

    def _follow(self, follower: Follower) -> None:
        self._event("hello", json.dumps({"server": follower.server}))
        sizes: dict[int, tuple[int, int, int]] = {}
        overview, rested, seen = "", OVERVIEW_PACE, -1
        pause, looked = threading.Event(), time.monotonic()
        while not follower.closed:
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                if not self.server.access.admits(self.headers, self._certificate()):
                    return  # its certificate has expired, or was revoked
            changes = follower.wait(seen, PULSE)
            if changes == seen and overview == follower.overview:
                self.wfile.write(b": there\n\n")
                continue
            if overview != follower.overview and rested >= OVERVIEW_PACE:
                overview, rested = follower.overview, 0.0
                self._event("overview", overview)
            grown = {number: size for number, size in follower.sizes.items() if sizes.get(number) != size}
            if grown:
                sizes |= grown
                self._event("sizes", json.dumps(grown))
            # a delayed overview is sent by the next check, even without other changes
            seen = changes if overview == follower.overview else -1
            pause.wait(PACE)
            rested += PACE

    def _event(self, kind: str, data: str) -> None:
        self.wfile.write(f"event: {kind}\nretry: 500\ndata: {data}\n\n".encode())

    def _certificate(self) -> dict[str, Any] | None:
        found = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        return dict(found) if found else None

    def _answer(
        self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK, more: dict[str, str] | None = None
    ) -> None:
        with suppress(OSError):
            self.send_response(status)
            self._headers({"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})})
            self.wfile.write(body)

    def _headers(self, more: dict[str, str]) -> None:
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""
