"""Who may see the page.

On loopback: every user of this machine, if the browser was told to come here (a page elsewhere could name this machine
by a domain of its own, which the Host header gives away). Elsewhere: a caller with an operator's certificate, or
with the token, which the first address carries and a cookie keeps afterwards.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any

COOKIE = "archipel_live"
OPERATOR = "archipel:operator/"


@dataclass(frozen=True)
class Access:
    """The rules of one server."""

    host: str
    token: str | None = None
    """None: no token opens it."""
    operators: Collection[str] = ()
    """Names of operators whose certificates open it."""
    revoked: Path | None = None
    """File of serial numbers of certificates that no longer count."""
    _last: list[frozenset[str]] = field(default_factory=lambda: [frozenset()], compare=False, repr=False)
    """The list as it was last read."""

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    def admits(self, headers: Any, certificate: dict[str, Any] | None) -> bool:
        """Return whether a caller may see the page."""
        if self.loopback:
            return is_loopback(_host(headers.get("Host", "")))
        return self.knows(certificate) or self.opens(_cookie(headers.get("Cookie", "")))

    def opens(self, token: str) -> bool:
        """Return whether this is the token."""
        return self.token is not None and hmac.compare_digest(self.token.encode(), token.encode())

    def knows(self, certificate: dict[str, Any] | None) -> bool:
        """Return whether a verified certificate is that of a listed operator, and neither expired nor revoked."""
        if not certificate or ssl.cert_time_to_seconds(certificate["notAfter"]) <= time.time():
            return False  # a connection may be older than the end of its certificate
        uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        ours = [uri for uri in uris if uri.startswith("archipel:")]
        if len(ours) != 1 or not ours[0].startswith(OPERATOR) or ours[0].removeprefix(OPERATOR) not in self.operators:
            return False
        return certificate["serialNumber"].lower().lstrip("0") not in self._revoked_serials()

    def _revoked_serials(self) -> frozenset[str]:
        """Return the list; what was read stays in force if the file vanishes or is damaged."""
        if self.revoked is not None:
            with suppress(OSError, ValueError):
                lines = self.revoked.read_text(encoding="utf-8").splitlines()
                serials = {line.partition("#")[0].strip().lower().replace(":", "").lstrip("0") for line in lines}
                self._last[0] = frozenset(serials - {""})
        return self._last[0]


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address}: must be HOST:PORT, for example localhost:9444 or [::1]:9444.")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is this very machine."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def tls_context(certificates: Path) -> ssl.SSLContext:
    """Return the context of a server with the controller's certificate; callers may show one of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificates / "certificate.pem", certificates / "key.pem")
    context.load_verify_locations(certificates / "authority.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _host(header: str) -> str:
    """Return the host of a Host header, without its port."""
    return header.partition("]")[0].strip("[") if header.startswith("[") else header.rpartition(":")[0] or header


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""
