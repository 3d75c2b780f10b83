"""LEAF's JSON: files with `users`, `num_samples` and `user_data`, in which every user has `x` and `y`.

LEAF's scripts write into `data/`: first `all_data/`, then, if they are to split, `train/` and `test/`. These folders
are searched in the data set's folder and in `data/` inside it; a test part becomes the source's test set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archipel.data.fetch import DataFiles, File, find, missing

SPLIT = (File("train/*.json", also=("data/train/*.json",)),)
WHOLE = (File("all_data/*.json", also=("all_data*.json", "data/all_data/*.json", "data/all_data*.json")),)
FORMS = (SPLIT, WHOLE)


@dataclass(frozen=True)
class Leaf:
    """The JSON files of a LEAF data set."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        return self.train + self.test


@dataclass(frozen=True)
class User:
    """One user's examples in one file."""

    name: str
    x: list[Any]
    y: list[Any]
    test: bool
    path: Path


def find_leaf(wanted: DataFiles) -> Leaf:
    """Find the JSON files; raise an error that says how to make them if there are none."""
    found = find(wanted)
    if found is None:
        raise FileNotFoundError(missing(wanted, ""))
    folder = found.paths[0].parent
    if found.files is SPLIT:
        return Leaf(tuple(sorted(folder.glob("*.json"))), tuple(sorted(folder.with_name("test").glob("*.json"))))
    return Leaf(tuple(sorted(folder.glob("*.json" if folder.name == "all_data" else "all_data*.json"))), ())


def users(leaf: Leaf) -> Iterator[User]:
    """Yield every user of every file, with one file in memory at a time."""
    for path in leaf.paths:
        try:
            content = json.loads(path.read_bytes())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{path} is truncated or damaged: {error}. Make it again with LEAF's preprocess.sh."
            ) from error
        if not isinstance(content, dict) or not {"users", "user_data"} <= content.keys():
            raise ValueError(f"{path} is not LEAF's JSON: it lacks 'users' or 'user_data'.")
        for name in content["users"]:
            data = content["user_data"].get(name, {})
            x, y = data.get("x"), data.get("y")
            if x is None or y is None or len(x) != len(y):
                raise ValueError(
                    f"{path}: user {name!r} should have as many x as y, got {len(x or ())} and {len(y or ())}. "
                    "Make the file again with LEAF's preprocess.sh."
                )
            yield User(str(name), x, y, path in leaf.test, path)
