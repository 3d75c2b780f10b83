"""The page from a process of its own: it costs the run or the controller beside it neither a thread nor the lock.

The two processes speak over pipes: down go the settings and then, line by line, what a controller says of itself; up
comes the address of the page, or why there is none. When the parent ends, however it ends, the pipe closes and the
child ends too.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from archipel.live.federation_state import FederationState
from archipel.live.follower import Followed
from archipel.live.http_server import LiveServer
from archipel.live.results_folder import ResultsFolder
from archipel.live.serving import PortTaken, open_page

TRIES, PAUSE = 50, 0.1
"""How often and how long apart the port of a controller that was killed is tried."""


@dataclass(frozen=True)
class PageSettings:
    """What the page follows, and where it listens."""

    folder: str
    listen: str | None = None
    """HOST:PORT; None: the usual place, or a free port."""
    federation: bool = False
    """The folder is a controller's state."""
    certificates: str | None = None
    """Folder of the controller's certificate, for pages beyond this machine."""
    operators: tuple[str, ...] = ()
    revoked: str | None = None
    token: str | None = None


class PageProcess:
    """The child process, as its parent holds it."""

    def __init__(self, settings: PageSettings) -> None:
        """Start it; `url` waits until it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "archipel.live"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._news = threading.Condition()
        self._next: str | None = json.dumps(asdict(settings))
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="live page", daemon=True)
        self._writer.start()

    @cached_property
    def url(self) -> str:
        """The page's address, when the process listens; raises OSError if it cannot."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if not said.startswith("http"):
            self.close()
            raise OSError(said or "The live page's process ended before it listened.")
        return said

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def announce(self, opened: Callable[[str], None], failed: Callable[[str], None]) -> None:
        """Say where the page is, or why there is none, as soon as that is known; do not wait for it."""

        def say() -> None:
            try:
                opened(self.url)
            except OSError as error:
                failed(str(error))

        threading.Thread(target=say, name="announce", daemon=True).start()

    def tell(self, status: dict[str, Any]) -> None:
        """Pass on what a controller says of itself; of what waits, only the last stays."""
        with self._news:
            self._next = json.dumps(status)
            self._news.notify()

    def close(self) -> None:
        """End the process."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._writer.join()
        self._process.wait()

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        while True:
            with self._news:
                self._news.wait_for(lambda: self._next is not None or self._closed)
                line, self._next = self._next, None
            try:
                if line is not None:
                    pipe.write(line + "\n")
                    pipe.flush()
                if self._closed:
                    pipe.close()
                    return
            except OSError:  # it has ended: the page is away, and nothing else
                return


def open_when_free(followed: Followed, listen: str | None, **access: Any) -> LiveServer:
    """Open the page; while the page of a controller that was killed still has the port, wait for it."""
    for _ in range(TRIES):
        try:
            return open_page(followed, listen, **access)
        except PortTaken:
            if not isinstance(followed, FederationState):
                raise
            time.sleep(PAUSE)
    return open_page(followed, listen, **access)


def serve_from_pipe() -> None:
    """Be the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the parent
    settings = PageSettings(**json.loads(sys.stdin.readline()))
    folder = Path(settings.folder)
    followed = FederationState(folder) if settings.federation else ResultsFolder(folder)
    try:
        server = open_when_free(
            followed,
            settings.listen,
            certificates=None if settings.certificates is None else Path(settings.certificates),
            operators=tuple(settings.operators),
            revoked=None if settings.revoked is None else Path(settings.revoked),
            token=settings.token,
        )
    except (OSError, ValueError) as error:
        print(error, flush=True)
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.url, flush=True)
    for line in sys.stdin:
        if isinstance(followed, FederationState):
            followed.tell(json.loads(line))
    server.follower.close()
