"""The runs that are there: a line of JSON each, those of benchmarks/measured compressed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.field.problems import RATES, SEEDS, Problem

STORED = Path(__file__).parent.parent / "measured" / "field.jsonl.gz"


def key(run: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells runs apart."""
    return tuple(run[name] for name in ("data", "fleet", "split", "method", "rate", "seed", "tuning"))


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file, if there is one; a line that was cut off is left out."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def stored(path: Path = STORED) -> list[dict[str, Any]]:
    """Return the runs that are stored."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()] if path.exists() else []


def store(runs: list[dict[str, Any]], path: Path = STORED) -> None:
    """Write runs, each once; the same runs give the same bytes."""
    lines = sorted(json.dumps(run) for run in {key(run): run for run in runs}.values())
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def best_rate(problem: Problem, done: Mapping[tuple[Any, ...], dict[str, Any]]) -> float | None:
    """Return the rate with the best final score on validation data; None until all have been tried.

    The lowest of rates that do as well, and of those that end with a score.
    """
    about = {**vars(problem), "seed": SEEDS[0], "tuning": True}
    tried = {rate: done.get(key({**about, "rate": rate})) for rate in RATES}
    known = {rate: run["final"] for rate, run in tried.items() if run and run.get("final") is not None}
    return max(known, key=known.__getitem__) if known and all(tried.values()) else None
