"""Access control of the page.

On loopback, every user of this machine is admitted if the Host header names this machine, which prevents DNS
rebinding. Elsewhere, a caller needs an operator's certificate, or the token, which is in the page's first URL and then
in a cookie.
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
    """None: no token is accepted."""
    operators: Collection[str] = ()
    """Names of operators whose certificates are accepted."""
    revoked: Path | None = None
    """File of serial numbers of revoked certificates."""
    _last: list[frozenset[str]] = field(default_factory=lambda: [frozenset()], compare=False, repr=False)
    """The revoked serial numbers, as last read."""

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
        """Return whether a verified certificate belongs to a listed operator and is neither expired nor revoked."""
        if not certificate or ssl.cert_time_to_seconds(certificate["notAfter"]) <= time.time():
            return False  # the certificate may have expired since the connection was made
        uris = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]
        ours = [uri for uri in uris if uri.startswith("archipel:")]
        if len(ours) != 1 or not ours[0].startswith(OPERATOR) or ours[0].removeprefix(OPERATOR) not in self.operators:
            return False
        return certificate["serialNumber"].lower().lstrip("0") not in self._revoked_serials()

    def _revoked_serials(self) -> frozenset[str]:
        """Return the revoked serial numbers; the last ones read stay in force if the file is missing or damaged."""
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
    """Return whether a host is a loopback address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def tls_context(certificates: Path) -> ssl.SSLContext:
    """Return a TLS context with the controller's certificate; clients may present one of the same authority."""
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
