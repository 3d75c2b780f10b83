"""Who is connected to the page: few connections at a time, and little time to say who one is.

Otherwise slow senders that nobody knows could take all connections, and keep an operator out.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

MOST_CALLERS = 64
"""Connections at a time."""
MOST_STRANGERS = 16
"""Connections of an address at a time that were not admitted yet; a browser opens six at once."""
INTRODUCTION = 10.0
"""Seconds within which a caller has to be admitted: for its handshake and the header of a request together."""


@dataclass(eq=False)
class Caller:
    """One connection."""

    connection: socket.socket
    network: str
    since: float
    admitted: bool = False
    """Whether it has shown that it may see the page."""

    def end(self) -> None:
        """Shut the connection down, which also ends a read that waits."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)  # at once: TLS would say goodbye first


class Callers:
    """The connections of a server, in the order in which they came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers: list[Caller] = []

    def __len__(self) -> int:
        return len(self._callers)

    def enter(self, connection: socket.socket, address: str) -> bool:
        """Take a connection; one that waits to be admitted makes room. False: all have been admitted."""
        with self._lock:
            network = network_of(address)
            strangers = [caller for caller in self._callers if not caller.admitted]
            counts = Counter(caller.network for caller in strangers)
            if counts[network] >= MOST_STRANGERS:
                self._end_oldest(strangers, network)
            elif len(self._callers) >= MOST_CALLERS:
                if not strangers:
                    return False
                self._end_oldest(strangers, max(counts, key=counts.__getitem__))
            self._callers.append(Caller(connection, network, time.monotonic()))
            return True

    def moved(self, connection: socket.socket, to: socket.socket) -> None:
        """Know a caller by its connection over TLS."""
        with self._lock:
            for caller in self._callers:
                if caller.connection is connection:
                    caller.connection = to
                    return
        raise ConnectionAbortedError("it was ended meanwhile")

    def admit(self, connection: socket.socket) -> None:
        """Let a caller that may see the page stay."""
        with self._lock:
            for caller in self._callers:
                caller.admitted |= caller.connection is connection

    def leave(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._callers = [caller for caller in self._callers if caller.connection is not connection]

    def end_late(self) -> None:
        """End the callers that were not admitted in time."""
        with self._lock:
            latest = time.monotonic() - INTRODUCTION
            for caller in [one for one in self._callers if not one.admitted and one.since <= latest]:
                self._end(caller)

    def _end_oldest(self, strangers: list[Caller], network: str) -> None:
        self._end(next(caller for caller in strangers if caller.network == network))

    def _end(self, caller: Caller) -> None:
        self._callers.remove(caller)
        caller.end()


def network_of(address: str) -> str:
    """Return what counts as one address: of IPv6 the first half, of which a machine may choose the other."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
