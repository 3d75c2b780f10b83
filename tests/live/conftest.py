"""A browser and the page in it; without Debian's chromium or playwright these tests skip with that reason."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from archipel.live.follower import Followed
from archipel.live.http_server import LiveServer
from archipel.live.serving import followed_in, open_page
from tests.live.scenes import save_film


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Return a browser, closed with its module: playwright's event loop would be in the way of other tests' loops."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = which("chromium")
    if path is None:
        pytest.skip("there is no chromium to open the page with")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """Return the server of a folder with the hand-made run."""
    with serving(save_film(tmp_path_factory.mktemp("results"))) as opened:
        yield opened


@contextmanager
def serving(what: Path | Followed) -> Iterator[LiveServer]:
    """Serve a folder, or what is followed, from a thread of this process."""
    server = open_page(followed_in(what) if isinstance(what, Path) else what, "localhost:0")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.follower.close()
        server.shutdown()
        thread.join()
        server.server_close()
