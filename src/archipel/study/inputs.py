"""Hash the files that a study uses: own code, own data, weights, splits.

The hashes are stored with the results, so that a study whose code has changed is not resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archipel.data.tokenizers import BYTES
from archipel.study.files import methods
from archipel.study.own_code import is_own
from archipel.study.schema import Study


def hashes(study: Study) -> dict[str, str]:
    """Return the SHA-256 of every file that the study names, by that name; for a folder, of all its files."""
    folder = Path(study.folder or ".")
    return {name: _hash(folder / name) for name in sorted(set(_named(study.raw))) if (folder / name).exists()}


def files_of(study: Study) -> dict[str, bytes]:
    """Return the files that another machine needs to run the study, by their paths from the study's folder.

    Own code may import its neighbours, so all Python files beside it are among them. Files elsewhere, and data sets
    known by name, must already be on that machine.
    """
    folder = Path(study.folder or ".")
    named = {folder / name for name in _named(study.raw)}
    if any(path.suffix == ".py" for path in named):
        named |= set(folder.glob("*.py"))
    files = [file for path in named for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file()]
    beside = [file for file in files if file.resolve().is_relative_to(folder.resolve())]
    return {file.resolve().relative_to(folder.resolve()).as_posix(): file.read_bytes() for file in sorted(beside)}


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the files whose contents have changed."""
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _named(raw: dict[str, Any]) -> Iterator[str]:
    """Yield the names of files in a study: paths, and the part of own code before the colon."""
    data, model = raw.get("data", {}), raw.get("model", {})
    source = data.get("source", {})
    for table in (source, model, *methods(raw)):
        for text in table.values() if isinstance(table, dict) else [table]:
            for one in text if isinstance(text, list) else [text]:
                if isinstance(one, str) and is_own(one.partition("(")[0]):
                    yield one.partition(":")[0]
    if is_own(str(raw.get("loss", ""))):
        yield raw["loss"].partition(":")[0]
    paths = [
        source.get("path") if isinstance(source, dict) else None,
        source.get("folder") if isinstance(source, dict) else None,
        tokenizer_folder(source),
        data.get("split_file"),
        model.get("weights") if isinstance(model, dict) else None,
    ]
    yield from (str(path) for path in paths if path)


def tokenizer_folder(source: Any) -> str | None:
    """Return the folder of a source's tokenizer, if it has one."""
    named = source.get("tokenizer") if isinstance(source, dict) else None
    return None if named in (None, BYTES) else str(named)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                while block := stream.read(2**20):
                    digest.update(block)
    return digest.hexdigest()
