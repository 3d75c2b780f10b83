"""File descriptors: raise the limit, and keep connections from using all of them."""

from __future__ import annotations

import logging
import resource

RESERVE = 128
"""Descriptors reserved for the journal, libraries, the event loop and models that are read."""
BESIDE = 1024
"""Connections beside those of the listed learners: callers that reconnect, operators, and strangers until their
handshake fails or times out."""
EACH = 4
"""Connections for each listed learner: it has one, and a connection that died may still look open."""
ENOUGH = 1 << 16
"""The limit to set where the system has none."""
FEWEST = 16

log = logging.getLogger("archipel.federation")


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:  # some systems allow less than the hard limit
            log.warning(
                "cannot raise the limit of open files", extra={"files": soft, "wanted": wanted, "reason": str(error)}
            )
    return limit()


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


def most_connections(learners: int) -> int:
    """Return how many connections a controller accepts; half of the other descriptors are for uploads, one each."""
    most = min((limit() - RESERVE) // 2, BESIDE + EACH * learners)
    if most < learners:
        log.warning(
            "too few open files are allowed for all learners to connect: raise the limit (systemd: LimitNOFILE, "
            "shell: ulimit -Hn)",
            extra={"files": limit(), "connections": max(most, FEWEST), "learners": learners},
        )
    return max(most, FEWEST)
