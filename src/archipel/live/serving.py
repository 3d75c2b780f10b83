"""Open the server of a page: its source, address and access rules."""

from __future__ import annotations

import errno
import secrets
from pathlib import Path

from archipel.live.access import Access, is_loopback, parse_address, tls_context
from archipel.live.federation_state import JOURNAL, FederationState
from archipel.live.follower import Followed, Follower
from archipel.live.http_server import LiveServer
from archipel.live.results_folder import RUNS, ResultsFolder
from archipel.live.run_folder import DESCRIPTION, LIVE

USUAL = "localhost:9444"
"""The default port."""


class PortTaken(OSError):
    """Another program is listening at the address."""


def open_page(
    followed: Followed,
    listen: str | None = None,
    *,
    certificates: Path | None = None,
    operators: tuple[str, ...] = (),
    revoked: Path | None = None,
    token: str | None = None,
) -> LiveServer:
    """Start the server and its follower; without an address at the default port, or at a free one if that is taken.

    certificates: folder of the controller's certificate, for TLS beyond this machine. operators: names whose
    certificates are admitted there, unless revoked. token: admits as well; generated if nothing else would.
    """
    host, port = parse_address(listen or USUAL)
    beyond = not is_loopback(host)
    if beyond and token is None and not operators:
        token = secrets.token_urlsafe(24)
    access = Access(host, token if beyond else None, operators, revoked)
    context = tls_context(certificates) if beyond and certificates is not None else None
    follower = Follower(followed)
    try:
        server = LiveServer(_bound(host, port), follower, access, context)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        if listen is not None:
            raise PortTaken(
                f"{listen}: another program is listening there. Give another port, or none for a free one."
            ) from None
        server = LiveServer(_bound(host, 0), follower, access, context)
    follower.start()
    return server


def followed_in(folder: Path) -> Followed:
    """Return the source in a folder: a federation's state, or results."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder. Give a folder with saved runs.")
    if (folder / JOURNAL).exists():
        return FederationState(folder)
    if not (folder / RUNS).exists() and not any(next(folder.rglob(name), None) for name in (DESCRIPTION, LIVE)):
        raise FileNotFoundError(
            f"No run in {folder}: there is no {DESCRIPTION}. Run a study there, save a run with run.save(folder), or "
            "give the --state folder of a controller."
        )
    return ResultsFolder(folder)


def _bound(host: str, port: int) -> tuple[str, int]:
    """Return the address to bind; localhost becomes 127.0.0.1, which needs no lookup."""
    return ("127.0.0.1" if host.lower() == "localhost" else host, port)
