"""Serve the page from a separate process, which takes no thread and no interpreter lock from the run.

The parent sends the settings over a pipe and then lines with a controller's status; the child answers with the page's
address, or the reason why there is none. When the parent ends in any way, the pipe closes and the child exits.
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
"""Number of attempts, and seconds between them, while a killed controller's page still has the port."""


@dataclass(frozen=True)
class PageSettings:
    """The page's source and address."""

    folder: str
    listen: str | None = None
    """HOST:PORT; None: the default port, or a free one."""
    federation: bool = False
    """Whether the folder is a controller's state."""
    certificates: str | None = None
    """Folder of the controller's certificate, for pages beyond this machine."""
    operators: tuple[str, ...] = ()
    revoked: str | None = None
    token: str | None = None


class PageProcess:
    """The parent's handle of the child process."""

    def __init__(self, settings: PageSettings) -> None:
        """Start the process; `url` waits until it listens."""
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
        """The page's address; waits until the process listens, and raises OSError if it cannot."""
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
        """Call one of these with the page's address or the error, once known, without waiting for it."""

        def say() -> None:
            try:
                opened(self.url)
            except OSError as error:
                failed(str(error))

        threading.Thread(target=say, name="announce", daemon=True).start()

    def tell(self, status: dict[str, Any]) -> None:
        """Send a controller's status; a newer one replaces one not sent yet."""
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
            except OSError:  # the process has ended; only the page is lost
                return


def open_when_free(followed: Followed, listen: str | None, **access: Any) -> LiveServer:
    """Open the page; retry while a killed controller's page still has the port."""
    for _ in range(TRIES):
        try:
            return open_page(followed, listen, **access)
        except PortTaken:
            if not isinstance(followed, FederationState):
                raise
            time.sleep(PAUSE)
    return open_page(followed, listen, **access)


def serve_from_pipe() -> None:
    """Run the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
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
