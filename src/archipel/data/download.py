"""Download one file over HTTP: resumable, checked before it gets its name, by one process at a time.

pooch transfers the bytes. Resuming, trying several addresses and locking are done here, since pooch has none of them
(docs/decisions/0041-fetching-with-pooch.md).
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO

TRIES = 3
"""Attempts at each address before a download fails; the next call resumes it."""

TIMEOUT = 30.0
"""Seconds without data after which a connection counts as broken."""

BLOCK = 2**16
"""Bytes written at a time; a connection that breaks loses less than this."""

RANGE_REFUSED = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE


def download(urls: tuple[str, ...], target: Path, check: Callable[[Path], None]) -> None:
    """Download a file to `target`, resuming an earlier attempt; do nothing if it exists.

    urls: addresses of the file, tried in order.
    check: raises ValueError if the complete download, given by its path, is not the right file.

    The download grows as `<name>.part` and is renamed at the end. One that fails its check is deleted.
    """
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with locked(part) as stream:
        # another process may have finished the file while this one waited for the lock
        if target.exists():
            return
        resumed = stream.seek(0, os.SEEK_END) > 0
        while True:
            transfer(target.name, urls, stream)
            try:
                check(part)
                break
            except ValueError as error:
                stream.truncate(0)
                if not resumed:
                    part.unlink()
                    raise ValueError(
                        f"{urls[0]} gave something else than the official {target.name}, and nothing was kept: {error}"
                    ) from error
                # the part may be from another version of the file: download it once more, from the start
                resumed = False
        os.replace(part, target)


def published_sha256(url: str, name: str) -> str:
    """Return the SHA-256 of a file from its publisher's list of checksums, as "sha256:…"."""
    content = io.BytesIO()
    get(url, content)
    for line in content.getvalue().decode().splitlines():
        digest, _, listed = line.strip().partition(" ")
        if listed.strip().lstrip("*") == name:
            return f"sha256:{digest}"
    raise FileNotFoundError(f"{url} does not list {name}")


def reason(error: OSError) -> str:
    """Return what an error says, or its first cause, such as "[Errno 111] Connection refused"."""
    if isinstance(error, ConnectionError) or getattr(error, "response", None) is not None:
        return str(error)
    first: BaseException = error
    while further := first.__cause__ or first.__context__:
        first = further
    return str(first)


@contextlib.contextmanager
def locked(part: Path) -> Iterator[BinaryIO]:
    """Open the part of a download for appending, by one process at a time; delete it if it stays empty."""
    while True:
        with part.open("ab") as stream:
            lock(stream)
            # the process that held the lock may have renamed or deleted the part: then open the new one
            if is_open_as(stream, part):
                try:
                    yield stream
                finally:
                    stream.flush()
                    if is_open_as(stream, part) and os.fstat(stream.fileno()).st_size == 0:
                        part.unlink(missing_ok=True)
                return


def is_open_as(stream: BinaryIO, path: Path) -> bool:
    """Return whether an open file is the one that has this path now."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def lock(stream: BinaryIO) -> None:
    """Wait until no other process has locked this file, and lock it; the lock ends with the process."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)


def transfer(name: str, urls: tuple[str, ...], stream: BinaryIO) -> None:
    """Complete a file whose beginning may be in the stream, from the first address that answers."""
    attempts = [url for url in urls for _ in range(TRIES)]
    refused = set()
    while attempts:
        url = attempts.pop(0)
        if url in refused:
            continue
        try:
            receive(name, url, stream)
            return
        except OSError as error:
            stream.flush()
            response = getattr(error, "response", None)
            # 4xx does not change with a retry; 416 does, since `receive` has emptied the stream
            if response is not None and response.status_code < 500 and response.status_code != RANGE_REFUSED:
                refused.add(url)
            if set(attempts) <= refused:
                raise


def receive(name: str, url: str, stream: BinaryIO) -> None:
    """Make one attempt: request the bytes that are missing and append them to the stream."""
    bar = ProgressBar(name, stream.seek(0, os.SEEK_END))

    def restart_unless_resumed(response: Any, *_: object, **__: object) -> None:
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {bar.start}-")
        answered = response.ok and not response.is_redirect
        if bar.start and not resumed and (answered or response.status_code == RANGE_REFUSED):
            # the server sends the whole file, or the part is at least as long as the file
            stream.truncate(0)
            bar.start = 0

    resume = {"Range": f"bytes={bar.start}-"} if bar.start else {}
    try:
        get(url, stream, resume, hooks={"response": restart_unless_resumed}, progressbar=bar)
    except OSError as error:
        done = stream.seek(0, os.SEEK_END)
        if getattr(error, "response", None) is None and bar.total:
            bar.close()
            raise ConnectionError(
                f"it broke off after {done} of {bar.start + bar.total} bytes; call again to resume it"
            ) from error
        raise


def get(url: str, stream: BinaryIO, headers: Mapping[str, str] = {}, **options: Any) -> None:
    """Write the answer to a GET request to a stream.

    headers: in addition to the usual ones; options: of `pooch.HTTPDownloader`.
    """
    # imported late: it is an extra
    from pooch import HTTPDownloader

    # identity: an encoding chosen by the server would change the bytes, and with them where to resume
    usual = {"User-Agent": "archipel", "Accept-Encoding": "identity"}
    downloader = HTTPDownloader(chunk_size=BLOCK, timeout=TIMEOUT, headers={**usual, **headers}, **options)
    downloader(url, stream, None)


class ProgressBar:
    """Show the progress of one attempt on stderr: a bar on a terminal, one line elsewhere.

    pooch sets `total` and calls the methods.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = start
        """Bytes that were there before."""
        self._total = 0
        self._done = 0
        self._shown = ""

    @property
    def total(self) -> int:
        """Bytes that the server announces."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        if sys.stderr.isatty():
            self._show()
        else:
            print(f"downloading {self.name}, {self._size()}", file=sys.stderr, flush=True)

    def update(self, count: int) -> None:
        """Add bytes; pooch counts whole blocks, so the last one may be too many."""
        self._done = min(self._done + count, self._total)
        if sys.stderr.isatty():
            self._show()

    def reset(self) -> None:
        """Start counting anew."""
        self._done = 0

    def close(self) -> None:
        """End the line of the bar."""
        if sys.stderr.isatty():
            print(file=sys.stderr, flush=True)

    def _size(self) -> str:
        return f"{(self.start + self._total) / 1e6:.1f} MB" if self._total else "unknown size"

    def _show(self) -> None:
        done, total = self.start + self._done, self.start + self._total
        bar = ("#" * int(30 * done / total if self._total else 0)).ljust(30)
        line = f"\r{self.name} [{bar}] {done / 1e6:.1f} of {self._size()}"
        if line != self._shown:
            print(line, end="", file=sys.stderr, flush=True)
            self._shown = line
