"""Find the files of a data set on this machine, or download them from their official address.

Laws:
  1. Places are searched in order: $ARCHIPEL_DATA, the user's cache, Debian's /usr/share/datasets. The first
     place that holds every file of one form wins; only then is anything downloaded, into the cache.
  2. A file under its own name is whole and has been checked: a download grows as `<name>.part`, is resumed
     from there, and is renamed at the end. One with a wrong checksum leaves nothing.
  3. The checksum of a compressed file is that of its contents, of an archive (.zip, .tar.gz) its own: gzip
     headers differ between mirrors, contents do not.
  4. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")

DEBIAN = Path("/usr/share/datasets")
"""Where Debian's packages put data sets, such as fashion-mnist of `dataset-fashion-mnist`."""

TRIES = 3
"""So often a download that breaks off is taken up again before it is given up; the next call resumes it."""

TIMEOUT = 30.0
"""Seconds without an answer after which a connection counts as broken."""

BLOCK = 2**20


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    name: str
    """Its path inside the folder of the data set; `*` stands for anything."""
    urls: tuple[str, ...] = ()
    """Official addresses; none where the publisher asks for a registration."""
    digest: str = ""
    """Checksum of the official contents, such as "sha256:65a5…"; empty where there are several versions."""
    sums: str = ""
    """Address of the publisher's own list of SHA-256 sums, asked for when the file is downloaded."""
    also: tuple[str, ...] = ()
    """Other names under which people keep it."""


@dataclass(frozen=True)
class Wanted:
    """The files of a data set: any one of several forms, the official one first."""

    name: str
    forms: tuple[tuple[File, ...], ...]
    folders: tuple[str, ...] = ()
    """Names of the folder that holds them, if not the data set's own; a download goes into the last."""
    how: str = ""
    """How to come by files that cannot be downloaded just like that."""
    refused: tuple[tuple[str, str], ...] = ()
    """Files that people may have instead, and why they are not read."""

    def inside(self, place: Path) -> list[Path]:
        """The folders of this data set in a place."""
        return [place / folder for folder in self.folders or (self.name,)]

    @property
    def official(self) -> tuple[File, ...]:
        """The files that can be downloaded; none where the publisher does not let one."""
        return next((form for form in self.forms if all(file.urls for file in form)), ())


@dataclass(frozen=True)
class Found:
    """The files of one form, on this machine."""

    files: tuple[File, ...]
    paths: tuple[Path, ...]
    verify: bool

    def read(self, number: int = 0) -> bytes:
        """The contents of a file, uncompressed, and known to be the official ones where a checksum is known."""
        path, file = self.paths[number], self.files[number]
        data = whole(path, lambda: gzip.decompress(path.read_bytes()) if gzipped(path) else path.read_bytes())
        if self.verify and file.digest:
            kind, _, right = file.digest.partition(":")
            compare(path, f"{kind}:{hashlib.new(kind, data).hexdigest()}", f"{kind}:{right}")
        return data

    def check(self, number: int = 0) -> Path:
        """The path of a file, known to be the official one where a checksum is known."""
        path, file = self.paths[number], self.files[number]
        if self.verify and file.digest:
            compare(path, checksum(path, file.digest.partition(":")[0]), file.digest)
        return path


def cache() -> Path:
    """The user's cache: $XDG_CACHE_HOME/archipel, or where the system keeps such things."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "archipel"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "archipel"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "archipel" / "cache"
    return Path.home() / ".cache" / "archipel"


def places() -> list[Path]:
    """Where data sets are looked for, in order."""
    given = os.environ.get("ARCHIPEL_DATA")
    if given and not Path(given).is_dir():
        raise FileNotFoundError(
            f"ARCHIPEL_DATA={given} is not a folder. Set it to the folder that holds a folder for each data set, "
            "such as mnist, or unset it."
        )
    return ([Path(given)] if given else []) + [cache(), DEBIAN]


def fetch(wanted: Wanted, verify: bool = True) -> Found:
    """The files of the first form that a place holds, downloaded where no place does; one error if neither."""
    found = find(wanted, verify)
    if found is not None:
        return found
    home = wanted.inside(cache())[-1]
    official = wanted.official
    if not official:
        raise FileNotFoundError(missing(wanted, ""))
    for file in official:
        try:
            download(file, home / file.name)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise FileNotFoundError(missing(wanted, f"Downloading {file.urls[0]}: {reason}.")) from error
    return Found(official, tuple(home / file.name for file in official), verify)


def find(wanted: Wanted, verify: bool = True) -> Found | None:
    """The files of the first form that a place holds: only looked for, neither read nor downloaded."""
    for place in places():
        for folder in wanted.inside(place):
            for form in wanted.forms:
                paths = [locate(folder, file) for file in form]
                if None not in paths:
                    return Found(form, tuple(path for path in paths if path), verify)
    return None


def locate(folder: Path, file: File) -> Path | None:
    """The file in a folder, under one of its names, with or without .gz."""
    for name in (file.name, *file.also):
        if "*" in name:
            matches = sorted(folder.glob(name))
            if matches:
                return matches[0]
            continue
        bare = name.removesuffix(".gz") if gzipped(Path(name)) else name
        for spelling in (name, bare, f"{bare}.gz"):
            if (folder / spelling).exists():
                return folder / spelling
    return None


def missing(wanted: Wanted, tried: str) -> str:
    """What to say when files are neither here nor to be had: which to put where."""
    forms = [", ".join(file.name for file in form) for form in wanted.forms]
    lines = [f"{wanted.name}: its files are not on this machine. Wanted: {'; or '.join(forms)}. Looked in:"]
    if not os.environ.get("ARCHIPEL_DATA"):
        lines.append("  $ARCHIPEL_DATA, which is not set")
    refused = ""
    for place in places():
        for folder in wanted.inside(place):
            lines.append(f"  {folder}")
            for form in wanted.forms:
                absent = [file.name for file in form if locate(folder, file) is None]
                if len(absent) < len(form):
                    lines[-1] += f", which lacks {', '.join(absent)}"
            for name, why in wanted.refused:
                if (folder / name).exists():
                    refused = f"{folder / name} is there, but {why}"
    lines += [line for line in (refused, tried, wanted.how) if line]
    folder_name = wanted.inside(Path())[-1]
    lines.append(
        f"Put the files into {wanted.inside(cache())[-1]}, or into a folder {str(folder_name)!r} anywhere and "
        "set ARCHIPEL_DATA to the folder above it."
    )
    return "\n".join(lines)


def gzipped(path: Path) -> bool:
    """Whether a file is compressed by itself; an archive is not."""
    return path.name.endswith(".gz") and not path.name.endswith(".tar.gz")


def whole(path: Path, read: Callable[[], T]) -> T:
    """What `read` reads from a compressed file, or one clear error when the file is damaged."""
    try:
        return read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is cut short or damaged: {error}. Delete it and copy or download it again."
        ) from error


def checksum(path: Path, kind: str) -> str:
    """The checksum of a file's contents, or of an archive itself, read block by block."""
    digest = hashlib.new(kind)

    def read() -> str:
        with gzip.open(path) if gzipped(Path(path.name.removesuffix(".part"))) else path.open("rb") as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        return f"{kind}:{digest.hexdigest()}"

    return whole(path, read)


def compare(path: Path, got: str, right: str) -> None:
    """Refuse a file whose contents are not the official ones."""
    if got != right:
        raise ValueError(
            f"{path} is not the official file: its contents have {got}, the official ones {right}. "
            "Delete it and copy or download it again; if you want this version of it, say verify=False."
        )


def download(file: File, target: Path) -> None:
    """Download a file: resumed where it broke off, checked, and only then under its own name."""
    if target.exists():
        return
    right = listed(file) if file.sums else file.digest
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    with claimed(part) as stream:
        # whoever held the claim before may have finished
        if target.exists():
            return
        resumed = stream.seek(0, os.SEEK_END) > 0
        while True:
            transfer(file, stream)
            try:
                if right:
                    compare(part, digest_of(file, part, right), right)
                break
            except ValueError as error:
                stream.truncate(0)
                if not resumed:
                    part.unlink()
                    raise ValueError(
                        f"{file.urls[0]} gave something else than the official {file.name}, and nothing was kept: "
                        f"{error}"
                    ) from error
                # the part may have been left by another version of the file: once more, from the start
                resumed = False
        os.replace(part, target)


def digest_of(file: File, part: Path, right: str) -> str:
    """The checksum of a download: of its contents if ours, of the bytes themselves if the publisher's."""
    kind = right.partition(":")[0]
    if not file.sums:
        return checksum(part, kind)
    with part.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"


def listed(file: File) -> str:
    """The SHA-256 sum in the publisher's list."""
    with ask(file.sums) as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        digest, _, name = line.strip().partition(" ")
        if name.strip().lstrip("*") == file.name:
            return f"sha256:{digest}"
    raise FileNotFoundError(f"{file.sums} does not list {file.name}")


@contextlib.contextmanager
def claimed(part: Path) -> Iterator[BinaryIO]:
    """The part of a download, for one process at a time; the claim ends with the process, however it ends."""
    while True:
        with part.open("ab") as stream:
            lock(stream)
            # whoever held it may have renamed or removed it meanwhile: then this one has no name any more
            if _is(stream, part):
                try:
                    yield stream
                finally:
                    stream.flush()
                    if _is(stream, part) and os.fstat(stream.fileno()).st_size == 0:
                        part.unlink(missing_ok=True)
                return


def _is(stream: BinaryIO, path: Path) -> bool:
    """Is this open file the one that has that name now?"""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def lock(stream: BinaryIO) -> None:
    """Wait until no other process holds this file."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)


def transfer(file: File, stream: BinaryIO) -> None:
    """Write a file to a stream that may hold its beginning already, from the first address that answers."""
    attempts = [url for url in file.urls for _ in range(TRIES)]
    refused = set()
    while attempts:
        url = attempts.pop(0)
        if url in refused:
            continue
        try:
            receive(file.name, url, stream)
            return
        except (OSError, http.client.HTTPException) as error:
            stream.flush()
            # a server that says no says it again
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                refused.add(url)
            if set(attempts) <= refused:
                raise


def receive(name: str, url: str, stream: BinaryIO) -> None:
    """One attempt: ask for what is still missing."""
    start = stream.seek(0, os.SEEK_END)
    try:
        answer = ask(url, start)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # the part is as long as the file or longer: whether it is the file, the checksum says
        stream.truncate(0)
        start = 0
        answer = ask(url)
    with answer:
        if start and not answer.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
            # a server that knows no ranges sends everything
            stream.truncate(0)
            start = 0
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else 0
        done = start
        with progress(name, total) as show:
            show(done)
            while block := answer.read(BLOCK):
                stream.write(block)
                done += len(block)
                show(done)
        stream.flush()
    if done < total:
        raise ConnectionError(f"it broke off after {done} of {total} bytes; call again to resume it")


def ask(url: str, start: int = 0) -> http.client.HTTPResponse:
    """Ask a server for a file, from a byte on."""
    headers = {"User-Agent": "archipel"} | ({"Range": f"bytes={start}-"} if start else {})
    answer: http.client.HTTPResponse = urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=TIMEOUT
    )
    return answer


@contextlib.contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal; elsewhere one line, so that logs stay readable."""
    lively = sys.stderr.isatty()
    size = f"{total / 1e6:.1f} MB" if total else "unknown size"

    def show(done: int) -> None:
        if lively:
            share = done / total if total else 0.0
            bar = ("#" * int(30 * share)).ljust(30)
            print(f"\r{name} [{bar}] {done / 1e6:.1f} of {size}", end="", file=sys.stderr, flush=True)

    if not lively:
        print(f"downloading {name}, {size}", file=sys.stderr, flush=True)
    try:
        yield show
    finally:
        if lively:
            print(file=sys.stderr, flush=True)
