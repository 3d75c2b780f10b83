"""The keeper: a process that has imported everything a controller needs, and forks the controller.

A killed controller restarts without Python's imports, which take almost two seconds. The keeper reads nothing of
the federation, and has neither threads nor gRPC when it forks: they would not survive a fork.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from archipel.federation.controller.release_memory import release_startup_code, trim_heap

TRIES, WITHIN = 5, 60.0
"""A controller that is killed this many times within this many seconds is not restarted."""

STOPPED = 130
"""The exit code of a controller that was asked to end."""
ASKED = frozenset({signal.SIGINT, signal.SIGTERM})
HEARD = ASKED | {signal.SIGCHLD}

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""Constants of Linux' prctl."""

log = logging.getLogger("archipel.federation")


@dataclass(frozen=True)
class Life:
    """A controller's process, as its keeper began it."""

    restarts: int = 0
    """Controllers that were killed before it."""
    since: float | None = None
    """When the last of them was killed, by this machine's monotonic clock."""


def keep(journal: Path) -> Life:
    """Fork a process for the controller, and another one whenever it is killed.

    This returns only in the controller's process. The process that called it stays behind as the keeper, and ends when
    the controller ends by itself, with its exit code.
    """
    if sys.platform != "linux":  # nothing would end a controller without its keeper
        return Life()
    trim_heap()
    gc.freeze()  # modules stay: garbage collection would touch, and so copy, the shared pages
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    keeper, killed = os.getpid(), list[float]()
    while True:
        try:
            pid = os.fork()
        except OSError as error:  # maybe memory is short: after exit code 1, systemd tries again later
            log.error(
                f"the controller cannot be started: {error}. Nothing is lost; run the same command again to continue."
            )
            raise SystemExit(1) from None
        if pid == 0:
            _end_with(keeper)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            return Life(len(killed), killed[-1] if killed else None)
        ctypes.CDLL(None).prctl(PR_SET_NAME, b"archipel-keeper")
        release_startup_code()
        code, asked = _wait_for(pid)
        if code >= 0:
            raise SystemExit(code)
        if -code in ASKED:
            raise SystemExit(STOPPED)
        killed.append(time.monotonic())
        words = f"the controller was killed by signal {-code} ({signal.strsignal(-code)})"
        if asked:
            log.warning(f"{words} while it ended", extra={"pid": pid})
            raise SystemExit(STOPPED)
        if len(killed) >= TRIES and killed[-1] - killed[-TRIES] < WITHIN:
            log.error(
                f"{words}, the {TRIES}th time within {WITHIN:g} s: it is not restarted. The log before this "
                f"line, or the kernel's, may say why. {journal} is intact: remove the cause and run the same command "
                "again to continue.",
                extra={"pid": pid},
            )
            raise SystemExit(1)
        log.warning(f"{words}; restarting it", extra={"pid": pid, "restarts": len(killed)})


def _end_with(keeper: int) -> None:
    """Have this process killed when its keeper ends; else the next controller could not lock the folder."""
    library = ctypes.CDLL(None)
    library.prctl(PR_SET_NAME, b"archipel")
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:  # it ended before the request
        os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(pid: int) -> tuple[int, bool]:
    """Pass on the signals that the keeper gets until the controller ends.

    Return its exit code, or minus the signal that killed it, and whether it was asked to end.
    """
    asked = False
    while True:
        heard = signal.sigwaitinfo(HEARD)
        if heard.si_signo in ASKED:
            asked = True
            if heard.si_code <= 0:  # from a process; a terminal sends its signals to the controller too
                os.kill(pid, heard.si_signo)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status), asked
