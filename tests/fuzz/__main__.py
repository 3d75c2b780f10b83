"""Fuzz every parser and say how many executions were made: `python -m tests.fuzz --executions 10000000 --out FILE`.

The counts are written every hundred rounds, and the same command goes on from them: the inputs of a round follow from
seed, parser and round. Ends with exit code 1 and the inputs if a parser raised something that it should not.
`python -m tests.fuzz.guided` is the same with inputs that are led by coverage.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Target, problem

EACH = {
    "study in TOML": 20,
    "study in YAML": 20,
    "site file": 60,
    "journal": 20,
    "split file": 40,
    "status": 50,
    "certificate request": 100,
    "certificate": 100,
    "revocation list": 100,
    "sum step": 2,
    "sum answer": 2,
}
"""Executions a round of the slower ones; the others, which are a hundred times faster, have 500."""
MOST_PROBLEMS = 20


class Progress:
    """Counts that a file keeps between processes."""

    def __init__(self, path: Path | None, seed: int) -> None:
        told = json.loads(path.read_text()) if path is not None and path.exists() else {}
        if told.get("seed", seed) != seed:
            raise SystemExit(
                f"{path} was begun with --seed {told['seed']}, not {seed}: give that seed or another file."
            )
        self.path, self.seed = path, seed
        self.counts = Counter[str](told.get("by parser", {}))
        self.rounds: int = told.get("rounds", 0)
        self.seconds: float = told.get("seconds", 0.0)
        self.problems: list[str] = told.get("problems", [])

    def save(self) -> None:
        if self.path is None:
            return
        told = {
            "executions": self.counts.total(),
            "by parser": dict(self.counts),
            "problems": self.problems,
            "seed": self.seed,
            "rounds": self.rounds,
            "seconds": round(self.seconds),
        }
        whole = self.path.with_suffix(".part")
        whole.write_text(json.dumps(told, indent=2) + "\n")
        whole.replace(self.path)


def feed(target: Target, corpus: list[bytes], seed: int, number: int, executions: int) -> list[str]:
    """Return what the inputs of one round did that they should not."""
    draw = Random(f"{seed}/{target.name}/{number}")
    found = (problem(target, mutated(corpus, draw)) for _ in range(executions))
    return [one for one in found if one is not None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000, help="in all, with those of the file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    corpora = {target.name: target.corpus() for target in TARGETS}
    progress, began = Progress(given.out, given.seed), time.monotonic()
    before = progress.seconds
    while progress.counts.total() < given.executions and time.monotonic() - began < given.seconds:
        for target in TARGETS:
            executions = EACH.get(target.name, 500)
            progress.problems += feed(target, corpora[target.name], given.seed, progress.rounds, executions)
            progress.counts[target.name] += executions
        progress.rounds += 1
        progress.seconds = before + time.monotonic() - began
        if len(progress.problems) >= MOST_PROBLEMS:
            break
        if progress.rounds % 100 == 0:
            progress.save()
    progress.save()
    print(f"{progress.counts.total():,} executions in {progress.seconds:.0f} s, {len(progress.problems)} problems")
    print(*progress.problems, sep="\n")
    return 1 if progress.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
