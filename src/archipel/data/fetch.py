"""Find the files of a data set on this machine, or download them from their official addresses.

Laws:
  1. Places are searched in order: $ARCHIPEL_DATA, the user's cache, Debian's /usr/share/datasets. The first place that
     holds every file of one form wins. If there is none, the files are downloaded into the cache.
  2. A file under its own name is complete and has been checked (`download.py`).
  3. The checksum of a gzip file is that of its contents, since gzip headers differ between mirrors; an archive (.zip,
     .tar.gz) has its own.
  4. Nothing is ever unpickled.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from archipel.data.download import download, published_sha256, reason

T = TypeVar("T")

DEBIAN = Path("/usr/share/datasets")
"""Where Debian's packages put data sets, such as fashion-mnist of `dataset-fashion-mnist`."""

BLOCK = 2**20
"""Bytes read at a time."""


@dataclass(frozen=True)
class File:
    """One file of a data set."""

    name: str
    """Its path inside the folder of the data set; `*` stands for anything."""
    urls: tuple[str, ...] = ()
    """Official addresses; none where the publisher requires a registration."""
    digest: str = ""
    """Checksum of the official contents, such as "sha256:65a5…"; empty where there are several versions."""
    sums: str = ""
    """Address of the publisher's list of SHA-256 checksums, read when the file is downloaded."""
    also: tuple[str, ...] = ()
    """Other usual names of the file."""


@dataclass(frozen=True)
class DataFiles:
    """The files that a data set is read from: any one of several forms, the official one first."""

    name: str
    forms: tuple[tuple[File, ...], ...]
    folders: tuple[str, ...] = ()
    """Names of the folder that holds them, if not the data set's own; a download goes into the last."""
    how: str = ""
    """How to get files that cannot be downloaded directly."""
    refused: tuple[tuple[str, str], ...] = ()
    """Files of another form that is not read, and why it is not."""

    def inside(self, place: Path) -> list[Path]:
        """Return the folders of this data set in a place."""
        return [place / folder for folder in self.folders or (self.name,)]

    @property
    def official(self) -> tuple[File, ...]:
        """The files that can be downloaded; none where the publisher requires a registration."""
        return next((form for form in self.forms if all(file.urls for file in form)), ())


@dataclass(frozen=True)
class Found:
    """The files of one form, on this machine."""

    files: tuple[File, ...]
    paths: tuple[Path, ...]
    verify: bool

    def read(self, number: int = 0) -> bytes:
        """Return the contents of a file, uncompressed; refuse one whose known checksum differs."""
        path, file = self.paths[number], self.files[number]
        data = read_complete(path, lambda: gzip.decompress(path.read_bytes()) if gzipped(path) else path.read_bytes())
        if self.verify and file.digest:
            kind, _, right = file.digest.partition(":")
            compare(path, f"{kind}:{hashlib.new(kind, data).hexdigest()}", f"{kind}:{right}")
        return data

    def check(self, number: int = 0) -> Path:
        """Return the path of a file; refuse one whose known checksum differs."""
        path, file = self.paths[number], self.files[number]
        if self.verify and file.digest:
            compare(path, checksum(path, file.digest.partition(":")[0]), file.digest)
        return path


def cache() -> Path:
    """Return the user's cache folder: $XDG_CACHE_HOME/archipel, or the operating system's usual place."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "archipel"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "archipel"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "archipel" / "cache"
    return Path.home() / ".cache" / "archipel"


def places() -> list[Path]:
    """Return the folders in which data sets are searched, in order."""
    given = os.environ.get("ARCHIPEL_DATA")
    if given and not Path(given).is_dir():
        raise FileNotFoundError(
            f"ARCHIPEL_DATA={given} is not a folder. Set it to the folder that holds a folder for each data set, "
            "such as mnist, or unset it."
        )
    return ([Path(given)] if given else []) + [cache(), DEBIAN]


def fetch(wanted: DataFiles, verify: bool = True) -> Found:
    """Return the files of a data set: those found first, or downloaded ones."""
    found = find(wanted, verify)
    if found is not None:
        return found
    home = wanted.inside(cache())[-1]
    official = wanted.official
    if not official:
        raise FileNotFoundError(missing(wanted, ""))
    if importlib.util.find_spec("pooch") is None:
        advice = "Downloading them needs pooch: pip install '.[data]' in the source folder."
        raise FileNotFoundError(missing(wanted, advice))
    for file in official:
        try:
            retrieve(file, home / file.name)
        except OSError as error:
            raise FileNotFoundError(missing(wanted, f"Downloading {file.urls[0]}: {reason(error)}.")) from error
    return Found(official, tuple(home / file.name for file in official), verify)


def find(wanted: DataFiles, verify: bool = True) -> Found | None:
    """Return the files of the first form that a place holds, without reading or downloading any."""
    for place in places():
        for folder in wanted.inside(place):
            for form in wanted.forms:
                paths = [locate(folder, file) for file in form]
                if None not in paths:
                    return Found(form, tuple(path for path in paths if path), verify)
    return None


def locate(folder: Path, file: File) -> Path | None:
    """Return the path of a file in a folder, under one of its names, with or without .gz."""
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


def missing(wanted: DataFiles, tried: str) -> str:
    """Return the error text for files that are not there: where they were searched, and where to put them."""
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


def retrieve(file: File, target: Path) -> None:
    """Download a file and compare its checksum with the official one."""
    right = published_sha256(file.sums, file.name) if file.sums and not target.exists() else file.digest

    def check(part: Path) -> None:
        if right:
            kind = right.partition(":")[0]
            # a publisher's list has checksums of the files themselves, our digests are of uncompressed contents
            compare(part, checksum_of_bytes(part, kind) if file.sums else checksum(part, kind), right)

    download(file.urls, target, check)


def gzipped(path: Path) -> bool:
    """Return whether a file is a compressed single file, not an archive."""
    return path.name.endswith(".gz") and not path.name.endswith(".tar.gz")


def read_complete(path: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns; raise ValueError if the compressed file is damaged."""
    try:
        return read()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is truncated or damaged: {error}. Delete it and copy or download it again."
        ) from error


def checksum(path: Path, kind: str) -> str:
    """Return the checksum of a file's uncompressed contents; an archive counts as it is."""
    if not gzipped(Path(path.name.removesuffix(".part"))):
        return checksum_of_bytes(path, kind)
    digest = hashlib.new(kind)

    def read() -> str:
        with gzip.open(path) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
        return f"{kind}:{digest.hexdigest()}"

    return read_complete(path, read)


def checksum_of_bytes(path: Path, kind: str) -> str:
    """Return the checksum of a file as it is."""
    with path.open("rb") as stream:
        return f"{kind}:{hashlib.file_digest(stream, kind).hexdigest()}"


def compare(path: Path, got: str, right: str) -> None:
    """Refuse a file whose contents are not the official ones."""
    if got != right:
        raise ValueError(
            f"{path} is not the official file: its contents have {got}, the official ones {right}. "
            "Delete it and copy or download it again; to use this version of it, pass verify=False."
        )
